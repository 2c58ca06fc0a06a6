"""A target: the types, granularities, formats and limits of hardware, read from its file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from bitwright.errors import RecipeError, TargetError, did_you_mean
from bitwright.numerics.types import QType
from bitwright.support import convert, read_parsed
from bitwright.targets.npu_limits import LimitRule

Consequence = Literal["refused", "leaves", "wrong", "float", "slow"]
"""Does not load or build; leaves the accelerator; changes numbers; is computed in float; slow."""

Role = Literal["activation", "weight", "bias"]

TypeName = Literal[
    "int2",
    "uint2",
    "int4",
    "uint4",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "float4e2m1",
    "float8e4m3fn",
    "float8e5m2",
    "float8e8m0",
]
"""Types that files of models store; not all are types that this package quantizes to."""


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hardware that a model is quantized for: its recipe, and what it takes (None: anything)."""

    name: str
    description: str
    recipe: str
    """Name of the recipe that is taken where none is given."""
    settings: dict[str, Any] = {}
    """Options of the recipe that are others for this target, as in a file of a recipe."""
    op_types: tuple[str, ...] | None = None
    """Operators that its compiler takes in integers."""
    modes: tuple[str, ...] | None = None
    """Modes of a recipe that it runs."""
    formats: tuple[str, ...] | None = None
    """Output formats that it runs."""
    types: tuple[QType, ...] | None = None
    """Number types of activations and weights."""
    per_tensor: bool = False
    """Whether a tensor has one scale, and not one for each channel."""
    power_of_two: bool = False
    """Whether scales are applied by shifting."""
    fixed_shapes: bool = False
    """Whether its compiler takes fixed shapes only, and one image at a time."""
    limits: tuple[LimitRule, ...] = ()
    """What its shifters allow."""
    cpus: tuple[str, ...] = ()
    """The kinds of CPU that it stands for, which differ in how they multiply bytes."""
    host: bool = False
    """Of these kinds, only that of the machine counts."""

    rules: dict[str, dict[str, Any]] = {}
    """Name -> what it asks of a quantized model, which `verification.rules` reads."""
    variants: tuple[str, ...] = ()
    """What may stand behind its name and a colon: architectures, devices, number types."""
    file: str = ""
    """Where a target of the user's own comes from."""

    @property
    def needs_limits(self) -> bool:
        """Whether a recipe for it has to keep scales within limits."""
        return bool(self.limits)

    @property
    def takes_integer_operators(self) -> bool:
        """Whether it runs operators on integers as well as Q/DQ pairs."""
        return self.formats is None or "qoperator" in self.formats


# Files: one TOML file for each target, checked when it is read ---------------------------------

DATA = Path(__file__).parent / "data"
"""Where the files of the targets lie that come with the package."""

ALIASES = {"wasm": "web"}
"""Other names that people have for a target."""


def known_names() -> tuple[str, ...]:
    """Return the names of the targets that come with the package."""
    return tuple(sorted(path.stem for path in DATA.glob("*.toml")))


def read_target(name: str) -> Target:
    """Return a target by its name, or from a file of the user's own, whose name ends with .toml.

    A name may have a variant behind a colon, as in `"qualcomm-htp:v68"`.
    """
    plain, _, variant = name.partition(":")
    plain = ALIASES.get(plain, plain)
    is_file = plain.endswith(".toml")
    if not is_file and plain not in known_names():
        files = " A target of your own is a file whose name ends with .toml."
        hint = did_you_mean(plain, known_names())
        raise TargetError(f"unknown target {name!r}.{hint or files}")
    path = Path(plain) if is_file else DATA / f"{plain}.toml"
    return _build(_read(path, seen=()), variant, str(path) if is_file else plain)


def _read(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """Return what a file says, on top of the target that it extends."""
    data = read_parsed(path, "target", TargetError, _parse, "is not TOML")
    base = data.pop("extends", None)
    if base is None:
        return data
    found = {below.stem: below for below in DATA.rglob("*.toml")}
    if not isinstance(base, str) or base not in found:
        hint = did_you_mean(str(base), found)
        raise TargetError(f"{path}: extends must be the name of a target, not {base!r}.{hint}")
    if found[base] in (*seen, path):
        raise TargetError(f"{path}: it extends itself, through {base!r}.")
    return _merged(_read(found[base], (*seen, path)), data)


def _parse(content: bytes) -> dict[str, Any]:
    return tomllib.loads(content.decode("utf-8"))


def _build(data: dict[str, Any], variant: str, source: str) -> Target:
    variants = data.pop("variants", {})
    if not isinstance(variants, Mapping) or not all(
        isinstance(one, Mapping) for one in variants.values()
    ):
        raise TargetError(f"{source}: variants must be tables, as in [variants.{variant or 'v1'}].")
    chosen = variant or data.pop("variant", "")
    data.pop("variant", None)
    if chosen:
        if chosen not in variants:
            hint = did_you_mean(chosen, variants)
            known = f" It has {', '.join(variants)}." if variants and not hint else hint
            raise TargetError(f"the target {source} has no variant {chosen!r}.{known}")
        data = _merged(data, variants[chosen])
    if variant:
        data["name"] = f"{data.get('name', source)}:{variant}"
    data["variants"] = tuple(variants)
    data["file"] = source if source.endswith(".toml") else ""
    try:
        return convert(data, Target, source)
    except RecipeError as error:
        raise TargetError(str(error)) from error
    except TargetError as error:  # from a value of the right type that means nothing
        raise TargetError(f"{source}: {error}") from error


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return both in one: tables merge, all else is replaced."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(old, Mapping)
        merged[key] = _merged(old, value) if both else value  # type: ignore[arg-type]
    return merged
