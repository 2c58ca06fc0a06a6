"""`UseMatMulNBits`, `MatMulNBitsParams` and `GPTQParams`, translated into a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bitwright.compat.options import choice, read_mapping, refuse_unknown
from bitwright.errors import RecipeError
from bitwright.recipe import GPTQ, HQQ, Nearest, Recipe, Selection, WeightOnly
from bitwright.support.wording import warn_user

# The options that have a meaning where only weights are quantized.
_WEIGHT_KEYS = (
    "CalibDataSize GPTQParams MatMulNBitsParams TmpDir UseGPTQ UseMatMulNBits UseRandomData".split()
)

_NBITS_SETTINGS = {
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
# The rounding beside quantized activations has the scales of the model, and refits its codes until
# neither order nor damping matters. Bits and groups count for nothing there either.
_GPTQ_WITH_ACTIVATIONS = {**_GPTQ_SETTINGS, "Bits": 8, "GroupSize": -1, "WeightSymmetric": True}


def weight_recipe(
    options: Mapping[str, Any], select: Mapping[str, Any], name: str
) -> Recipe | None:
    """Return the recipe of options with `UseMatMulNBits`; None: they ask for something else."""
    if not options.get("UseMatMulNBits"):
        _warn_of_idle_settings(options)
        return None
    for key in options:
        if key not in _WEIGHT_KEYS:
            warn_user(
                f"option {key!r} has no effect with UseMatMulNBits, which leaves activations float."
            )
    given = _read_params(options, "MatMulNBitsParams", _NBITS_SETTINGS)
    tuned = _read_params(options, "GPTQParams", _GPTQ_SETTINGS)
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
        select=Selection(
            op_types=select.get("op_types", ("MatMul",)),
            nodes=select.get("nodes"),
            exclude=select.get("exclude", ()),
            exclude_between=select.get("exclude_between", ()),
        ),
        weights=WeightOnly(
            bits=given["Bits"],
            block_size=given["GroupSize"],
            # HQQ searches for a zero point, which a symmetric grid does not have.
            symmetric=given["Symmetric"] and given["Algorithm"] != "HQQ",
            rounding=choice(methods)("Algorithm in MatMulNBitsParams", given["Algorithm"]),
            accuracy_level=given["AccuracyLevel"] or None,
        ),
    )


def _warn_of_idle_settings(options: Mapping[str, Any]) -> None:
    """Warn of settings of rounding that have no effect in a static model."""
    if options.get("MatMulNBitsParams"):
        warn_user("option 'MatMulNBitsParams' has no effect without UseMatMulNBits=True.")
    if options.get("GPTQParams") and not options.get("UseGPTQ"):
        warn_user("option 'GPTQParams' has no effect without UseGPTQ=True or UseMatMulNBits=True.")
    elif options.get("GPTQParams"):
        given = _read_params(options, "GPTQParams", _GPTQ_WITH_ACTIVATIONS)
        idle = [key for key, default in _GPTQ_WITH_ACTIVATIONS.items() if given[key] != default]
        for key in idle:
            if key != "BlockSize":
                warn_user(
                    f"{key} in GPTQParams has no effect beside quantized activations: types and "
                    "scales are those of the configuration, and codes are refitted in any order."
                )


def _read_params(
    options: Mapping[str, Any], key: str, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    given = read_mapping(f"option {key!r}", options.get(key), "settings")
    refuse_unknown(given, defaults, f" in {key}")
    for name, value in given.items():
        wanted = type(defaults[name])
        fits = isinstance(value, int if wanted is float else wanted) or type(value) is wanted
        if not fits or (wanted is int and isinstance(value, bool)):
            raise RecipeError(f"{name} in {key} is of the type {wanted.__name__}, not {value!r}.")
    return {**defaults, **given}
