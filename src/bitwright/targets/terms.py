"""The words in which rules of targets are written: consequences, roles of tensors, number types."""

from __future__ import annotations

from typing import Literal

__all__ = ["Consequence", "Role", "TypeName"]

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
