"""What all rules of a target have: a consequence, a fix and a source; names of number types."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Consequence", "Role", "Rule", "TypeName"]

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


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """What all rules have: what follows where one is broken, what to do, and who says so.

    >>> from bitwright.targets.rules import StaticShapes
    >>> StaticShapes(consequence="leaves", fix="--fix-shape batch=1").consequence
    'leaves'
    """

    consequence: Consequence
    fix: str = ""
    source: str = ""
