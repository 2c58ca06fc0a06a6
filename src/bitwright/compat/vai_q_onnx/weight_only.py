"""`UseMatMulNBits` of Quark's `quantize_static`: low-bit weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bitwright.compat.options import choice, read_mapping, refuse_unknown
from bitwright.errors import RecipeError
from bitwright.recipe import GPTQ, HQQ, Nearest, Recipe, Selection, WeightOnly

__all__ = ["WEIGHT_KEYS", "weight_recipe"]

WEIGHT_KEYS = frozenset(
    {
        "CalibDataSize",
        "GPTQParams",
        "MatMulNBitsParams",
        "TmpDir",
        "UseMatMulNBits",
        "UseRandomData",
    }
)
"""The options that have a meaning where only weights are quantized."""

_SETTINGS = {
    "Algorithm": "DEFAULT",
    "GroupSize": 128,
    "Symmetric": True,
    "Bits": 4,
    "AccuracyLevel": 0,
}
# BlockSize is how many rows are corrected together, on which the result does not depend.
_GPTQ_SETTINGS = {
    "PercDamp": 0.01,
    "BlockSize": 128,
    "ActOrder": False,
    "MSE": False,
    "PerChannel": False,
}


def weight_recipe(options: Mapping[str, Any], select: Selection, name: str) -> Recipe | None:
    """Return the recipe of options with `UseMatMulNBits`; None: they ask for something else.

    >>> options = {"UseMatMulNBits": True, "MatMulNBitsParams": {"GroupSize": 32, "Bits": 8}}
    >>> found = weight_recipe(options, Selection(), "nbits")
    >>> found.weights.bits, found.weights.block_size, found.weights.symmetric
    (8, 32, True)
    """
    if not options.get("UseMatMulNBits"):
        _refuse_without_switch(options)
        return None
    for key in options:
        if key not in WEIGHT_KEYS:
            raise RecipeError(
                f"option {key!r} has no effect with UseMatMulNBits, which leaves activations "
                "float; leave it out."
            )
    given = _read(options, "MatMulNBitsParams", _SETTINGS)
    tuned = _read(options, "GPTQParams", _GPTQ_SETTINGS)
    methods: dict[str, Nearest | HQQ | GPTQ] = {
        "DEFAULT": Nearest(clip=False),
        "HQQ": HQQ(),
        "GPTQ": GPTQ(
            damping=tuned["PercDamp"],
            act_order=tuned["ActOrder"],
            clip=tuned["MSE"],
            per_column=tuned["PerChannel"],
        ),
    }
    return Recipe(
        name=name,
        mode="weight-only",
        select=select,
        weights=WeightOnly(
            bits=given["Bits"],
            block_size=given["GroupSize"],
            # HQQ searches for a zero point, which a symmetric grid does not have.
            symmetric=given["Symmetric"] and given["Algorithm"] != "HQQ",
            rounding=choice(methods)("Algorithm in MatMulNBitsParams", given["Algorithm"]),
            accuracy_level=given["AccuracyLevel"] or None,
        ),
    )


def _refuse_without_switch(options: Mapping[str, Any]) -> None:
    for key in ("MatMulNBitsParams", "GPTQParams"):
        if options.get(key):
            raise RecipeError(f"{key} goes with UseMatMulNBits=True; add it.")


def _read(options: Mapping[str, Any], key: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    given = read_mapping(f"option {key!r}", options.get(key), "settings")
    refuse_unknown(given, defaults, f" in {key}")
    for name, value in given.items():
        wanted = type(defaults[name])
        fits = isinstance(value, int if wanted is float else wanted) or type(value) is wanted
        if not fits or (wanted is int and isinstance(value, bool)):
            raise RecipeError(f"{name} in {key} is of the type {wanted.__name__}, not {value!r}.")
    return {**defaults, **given}
