"""Quantize and dequantize arrays with the same bits as ONNX Runtime's kernels."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from bitwright.numerics.broadcasting import broadcast_parameters
from bitwright.numerics.shared_exponent import round_to_shared_exponents
from bitwright.numerics.types import QType
from bitwright.support.array_types import Array


def quantize(
    x: npt.ArrayLike,
    scale: npt.ArrayLike,
    zero_point: npt.ArrayLike,
    qtype: QType,
    *,
    axis: int | None = None,
    block_size: int = 0,
) -> Array:
    """Return round(x / scale) + zero_point, saturated to the whole type.

    A scale of one element covers the tensor; a vector covers the channels along `axis`; with
    `block_size`, a scale of x's rank covers blocks along `axis`, the last of which may be
    shorter. Ties round to even. 32-bit types are computed in float64, but divided in float32
    where x and the scale are float32, as the vendor's operator does; all others are computed in
    float32 as ONNX Runtime does. NaN stays NaN in a float type and becomes the lowest integer:
    ONNX Runtime gives that or the zero point, depending on the kernel and the machine. Block
    formats have no scale: `round_to_shared_exponents` says what they are.

    >>> from bitwright.numerics.types import INT8, UINT8
    >>> quantize([0.25, -1.0, 9.0], 0.1, 10, UINT8)
    array([ 12,   0, 100], dtype=uint8)
    >>> quantize([[1.0, 2.0], [3.0, 4.0]], [1.0, 0.5], 0, INT8, axis=0)
    array([[1, 2],
           [6, 8]], dtype=int8)
    """
    if qtype.shares_exponent:
        return round_to_shared_exponents(x, qtype, axis)
    wide = qtype.is_integer and qtype.bits == 32
    work = np.dtype(np.float64 if wide else np.float32)
    both_single = np.asarray(x).dtype == np.float32 and np.asarray(scale).dtype == np.float32
    quotient = np.dtype(np.float32) if both_single else work
    values = np.asarray(x).astype(quotient, copy=False)
    step = broadcast_parameters(_in(scale, quotient), values.shape, axis, block_size)
    # An input near the largest float over a small scale may overflow: it saturates below.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        scaled = np.asarray(values / step)
        if qtype.is_integer:
            np.rint(scaled, out=scaled)
        offset = broadcast_parameters(_in(zero_point, work), values.shape, axis, block_size)
        scaled = np.asarray(scaled + offset)
    # Saturate first: casts beyond a type's end wrap around, or give NaN or infinity.
    np.clip(scaled, qtype.lowest, qtype.highest, out=scaled)
    if not qtype.is_integer:
        return scaled.astype(qtype.dtype)
    np.nan_to_num(scaled, copy=False, nan=qtype.lowest)
    return scaled.astype(qtype.dtype)


def dequantize(
    q: npt.ArrayLike,
    scale: npt.ArrayLike,
    zero_point: npt.ArrayLike,
    *,
    axis: int | None = None,
    block_size: int = 0,
    dtype: npt.DTypeLike = np.float32,
) -> Array:
    """Return (q - zero_point) * scale, computed in float32 and rounded to `dtype`."""
    values = np.asarray(q)
    result = np.dtype(dtype)
    work = np.dtype(np.float64 if result == np.float64 else np.float32)
    step = broadcast_parameters(_in(scale, work), values.shape, axis, block_size)
    exact = work
    if values.dtype.kind in "iu":
        # Differences of 32-bit numbers need 64 bits; all smaller types fit 32.
        exact = np.dtype(np.int64 if values.dtype.itemsize >= 4 else np.int32)
    offset = broadcast_parameters(_in(zero_point, exact), values.shape, axis, block_size)
    centred: Array = np.asarray(values.astype(exact) - offset).astype(work, copy=False)
    with np.errstate(over="ignore"):
        centred *= step
        return centred.astype(result, copy=False)


def fake_quantize(
    x: npt.ArrayLike,
    scale: npt.ArrayLike,
    zero_point: npt.ArrayLike,
    qtype: QType,
    *,
    axis: int | None = None,
    block_size: int = 0,
) -> Array:
    """Return x as it reads after quantizing and dequantizing, in x's own float dtype."""
    values = np.asarray(x)
    floats = values.dtype.kind == "f" or values.dtype == ml_dtypes.bfloat16
    return dequantize(
        quantize(values, scale, zero_point, qtype, axis=axis, block_size=block_size),
        scale,
        zero_point,
        axis=axis,
        block_size=block_size,
        dtype=values.dtype if floats else np.float32,
    )


def _in(values: npt.ArrayLike, dtype: np.dtype[Any]) -> Array:
    return np.asarray(values).astype(dtype, copy=False)
