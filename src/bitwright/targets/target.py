"""A target: the types, granularities, formats and limits of hardware, as one value; its words."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from bitwright.numerics.types import QType
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
