"""Which variants there are, what each loader calls them, and where it looks for them."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec

from bitwright.errors import ArgumentError, did_you_mean
from bitwright.recipe import Recipe, read_recipe

_OF_OTHERS = ("_q1", "_q1f16", "_q2f16")
"""Ends of names of variants that are not made here."""


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """A form of a model, under the name that people ask for it by; see loaders.toml."""

    name: str
    suffix: str
    use: str
    recipe: dict[str, Any] | None = None
    with_data: dict[str, Any] | None = None
    of_convolutions: dict[str, Any] | None = None
    needs_data: bool = False
    runs_on: Literal["cpu", "gpu", "any"] = "any"

    def recipes(self, *, has_data: bool) -> list[Recipe]:
        """Return what to try, one after the other; none: the float model as it is."""
        first = (has_data and self.with_data) or self.recipe
        found = (first, self.of_convolutions if has_data else None)
        return [
            read_recipe(one) if len(one) > 1 else read_recipe(one["base"]) for one in found if one
        ]


class Loader(msgspec.Struct, frozen=True, kw_only=True):
    """A program that loads published models: what it looks for, and where; see loaders.toml."""

    name: str
    variants: tuple[str, ...]
    folder: str | None = None
    by_variant: bool = False
    configures: bool = False
    data: str = ".data"
    unread: tuple[str, ...] = ()
    needs: str | None = None
    in_web: bool = False

    def place(self, part: str, variant: Variant, *, apart: bool = False) -> str:
        """Return where a variant of a part goes; `apart`: parts of one name lie in folders.

        >>> LOADERS["transformers.js"].place("encoder_model.onnx", VARIANTS["q8"])
        'onnx/encoder_model_quantized.onnx'
        >>> LOADERS["genai"].place("model.onnx", VARIANTS["q4"])
        'q4/model.onnx'
        """
        path = PurePosixPath(part)
        if self.by_variant:
            return str(variant.name / path)
        folder = path.parent if apart or self.folder is None else PurePosixPath(self.folder)
        return str(folder / f"{path.stem}{variant.suffix}{path.suffix}")

    def choose(self, names: Sequence[str] | None) -> list[Variant]:
        """Return the variants of these names, or those that make sense for it."""
        for name in names or ():
            if name not in VARIANTS:
                hint = did_you_mean(name, VARIANTS) or f" There are {', '.join(VARIANTS)}."
                raise ArgumentError(f"there is no variant {name!r}.{hint}")
        return [VARIANTS[name] for name in dict.fromkeys(names or self.variants)]


_DATA = tomllib.loads(Path(__file__).with_name("loaders.toml").read_text(encoding="utf-8"))
VARIANTS = {
    name: msgspec.convert({"name": name, **facts}, Variant)
    for name, facts in _DATA["variants"].items()
}
LOADERS = {
    name: msgspec.convert({"name": name, **facts}, Loader)
    for name, facts in _DATA["loaders"].items()
}


def is_variant(part: str) -> bool:
    """Return whether a file is a variant of another model by its name.

    >>> is_variant("onnx/model_q4.onnx"), is_variant("onnx/model.onnx")
    (True, False)
    """
    ours = (one.suffix for one in VARIANTS.values() if one.suffix)
    return PurePosixPath(part).stem.endswith((*ours, *_OF_OTHERS))
