"""Several small integers in one byte, in ONNX's order: the first value in the lowest bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bitwright.errors import RecipeError
from bitwright.support.array_types import Array


def pack(values: npt.ArrayLike, bits: int) -> npt.NDArray[np.uint8]:
    """Return integers packed into bytes along the last axis; a last gap is filled with zeros.

    Values are cut to their low bits, so signed and unsigned ones pack the same way. ONNX packs
    a tensor as a whole: give it flattened. Row by row is the layout of MatMulNBits.

    >>> pack([1, 2, -1], 4).tolist()
    [33, 15]
    """
    per_byte = _per_byte(bits)
    array = np.atleast_1d(np.asarray(values))
    if array.dtype.kind not in "iu":
        array = array.astype(np.int8)
    unsigned = array.astype(np.uint8, casting="unsafe") & np.uint8((1 << bits) - 1)
    packed = unsigned[..., ::per_byte].copy()
    for place in range(1, per_byte):
        part = unsigned[..., place::per_byte]
        packed[..., : part.shape[-1]] |= part << np.uint8(bits * place)
    return packed


def pack_rows(codes: Any, bits: int) -> Any:
    """Return codes [K, N], whole bytes of each column, packed along the columns: [bytes, N].

    They are bytes of numpy or of torch, and stay that.

    >>> pack_rows(np.array([[1], [2], [3], [4]], np.uint8), 4).tolist()
    [[33], [67]]
    """
    if bits == 8:
        return codes
    per_byte = _per_byte(bits)
    packed = codes[::per_byte] | (codes[1::per_byte] << bits)
    for place in range(2, per_byte):
        packed |= codes[place::per_byte] << (bits * place)
    return packed


def unpack(packed: npt.ArrayLike, bits: int, count: int, signed: bool) -> Array:
    """Return the first `count` integers along the last axis of packed bytes, one per element."""
    per_byte = _per_byte(bits)
    array = np.atleast_1d(np.asarray(packed, np.uint8))
    capacity = array.shape[-1] * per_byte
    if not 0 <= count <= capacity:
        raise RecipeError(
            f"{array.shape[-1]} bytes hold {capacity} values of {bits} bits, not {count}."
        )
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    values = (array[..., None] >> shifts).reshape(*array.shape[:-1], capacity)[..., :count]
    if not signed:
        return np.asarray(values & np.uint8((1 << bits) - 1))
    # Up to the top of the byte and back down: the arithmetic shift copies the sign.
    spare = 8 - bits
    return np.asarray((values << np.uint8(spare)).view(np.int8) >> np.int8(spare))


def _per_byte(bits: int) -> int:
    if bits not in (2, 4):
        raise RecipeError(f"only 2-bit and 4-bit values are packed, not {bits}-bit ones.")
    return 8 // bits
