"""Rounding of float32 constants to float16 and bfloat16, with what does not fit made to fit."""

from __future__ import annotations

import numpy as np

from bitwright.numerics.types import FLOAT16, QTYPES
from bitwright.support.array_types import Array

MAX_FLOAT16 = FLOAT16.highest
INFINITE = 1e30
"""From here on a float32 stands for infinity, as in the masks of attentions."""
_FLOAT16_MASK = MAX_FLOAT16 / 4
"""What stands for infinity in float16: more than any logarithm of a probability, and what is added
to it, other masks too, leaves it finite, so that a row of nothing else is no row of NaN."""
_MIN_FLOAT16 = float(np.finfo(np.float16).smallest_subnormal)


def narrow(array: Array, kind: str) -> tuple[Array, int]:
    """Return numbers in float16 or bfloat16, and how many of them were moved to fit.

    The float32 that is used for infinity becomes a large float16; a single number that would
    become zero, as the epsilon of a division, becomes the smallest one. Others that are too large
    become infinite: what has them should stay float32.
    """
    if kind != "float16":
        return array.astype(QTYPES[kind].dtype), 0
    infinite = np.isfinite(array) & (np.abs(array) >= INFINITE)
    moved = int(infinite.sum())
    wide = np.where(infinite, np.sign(array) * _FLOAT16_MASK, array)
    with np.errstate(over="ignore"):
        result = wide.astype(np.float16)
    if array.size == 1 and np.any((result == 0) & (array != 0)):
        result = np.asarray(np.sign(array) * _MIN_FLOAT16, np.float16).reshape(array.shape)
        moved += 1
    return result, moved
