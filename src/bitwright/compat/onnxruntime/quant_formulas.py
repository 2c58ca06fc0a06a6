"""Scales, zero points and integers by the names of `onnxruntime.quantization.quant_utils`.

Types are given as `onnx.TensorProto` numbers and come back as numpy arrays of the type's own
dtype, as there; the arithmetic is Bitwright's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from bitwright.compat.onnxruntime.enums import QuantType
from bitwright.compat.onnxruntime.kl_search import smooth_counts
from bitwright.errors import DataError, RecipeError
from bitwright.numerics.packing import pack
from bitwright.numerics.quantize import quantize
from bitwright.numerics.scales import float_scale, grid_parameters, restricted_asymmetric_parameters
from bitwright.numerics.types import QType

__all__ = [
    "FLOAT8_DISTRIBUTIONS",
    "FLOAT8_TYPES",
    "ONNX_INT_TYPE_RANGE",
    "ONNX_INT_TYPE_REDUCED_RANGE",
    "ONNX_INT_TYPE_SYMMETRIC_RANGE",
    "ONNX_TYPE_TO_NP_TYPE",
    "TENSOR_NAME_QUANT_SUFFIX",
    "compute_data_quant_params",
    "compute_scale_zp",
    "compute_scale_zp_blocked",
    "compute_scale_zp_float8",
    "get_qmin_qmax_for_qType",
    "get_qrange_for_qType",
    "normalize_axis",
    "pack_bytes_to_4bit",
    "quantize_data",
    "quantize_nparray",
    "quantize_onnx_initializer",
    "smooth_distribution",
    "snap_zero_point_to_uint8",
    "tensor_proto_to_array",
    "type_to_name",
]

Array = npt.NDArray[Any]

TENSOR_NAME_QUANT_SUFFIX = "_quantized"

FLOAT8_TYPES = (
    TensorProto.FLOAT8E4M3FN,
    TensorProto.FLOAT8E4M3FNUZ,
    TensorProto.FLOAT8E5M2,
    TensorProto.FLOAT8E5M2FNUZ,
)

_FLOAT8 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
FLOAT8_DISTRIBUTIONS = {TensorProto.FLOAT8E4M3FN: _FLOAT8[np.isfinite(_FLOAT8)]}
"""All finite values of a float8 type: their deviation is that of a tensor with scale 1."""

type_to_name = {number: name for name, number in TensorProto.DataType.items()}

_QTYPES = {member.tensor_type: member.qtype for member in QuantType}
_INTEGERS = {number: qtype for number, qtype in _QTYPES.items() if qtype.is_integer}
_PACKED = {"int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4}

ONNX_TYPE_TO_NP_TYPE: dict[int, np.dtype[Any]] = {
    number: np.dtype(_PACKED.get(qtype.name, qtype.dtype)) for number, qtype in _QTYPES.items()
}


def _range_of(qtype: QType, **options: bool) -> tuple[Array, Array]:
    dtype = ONNX_TYPE_TO_NP_TYPE[qtype.onnx_type]
    low, high = qtype.bounds(**options)
    return np.array(low, dtype), np.array(high, dtype)


ONNX_INT_TYPE_RANGE = {number: _range_of(qtype) for number, qtype in _INTEGERS.items()}
ONNX_INT_TYPE_SYMMETRIC_RANGE = {
    number: _range_of(qtype, symmetric=True)
    for number, qtype in _INTEGERS.items()
    if qtype.bounds(symmetric=True) != qtype.bounds()
}
ONNX_INT_TYPE_REDUCED_RANGE = {
    number: _range_of(qtype, reduced=True) for number, qtype in _INTEGERS.items()
}


def get_qmin_qmax_for_qType(  # noqa: N802
    qType: int,  # noqa: N803
    reduce_range: bool = False,
    symmetric: bool = False,
) -> tuple[Array, Array]:
    """Return the least and the largest integer that a scale is spread over.

    >>> [int(end) for end in get_qmin_qmax_for_qType(TensorProto.INT8, symmetric=True)]
    [-127, 127]
    """
    qtype = _type_of(qType, _INTEGERS)
    # A reduced range is the same with and without symmetry.
    return _range_of(qtype, reduced=reduce_range, symmetric=symmetric and not reduce_range)


def get_qrange_for_qType(  # noqa: N802
    qType: int,  # noqa: N803
    reduce_range: bool = False,
    symmetric: bool = False,
) -> int:
    """Return the number of steps of a type: the largest integer minus the least.

    >>> get_qrange_for_qType(TensorProto.UINT8)
    255
    """
    low, high = get_qmin_qmax_for_qType(qType, reduce_range, symmetric)
    return int(high) - int(low)


def compute_scale_zp(
    rmin: Any,
    rmax: Any,
    qmin: Any,
    qmax: Any,
    symmetric: bool = False,
    min_real_range: float | None = None,
) -> list[Array]:
    """Return [zero point, scale] for a range of real numbers and one of integers.

    >>> ends = np.float32(-1), np.float32(3)
    >>> zero_point, scale = compute_scale_zp(*ends, np.uint8(0), np.uint8(255))
    >>> int(zero_point), round(float(scale), 6)
    (64, 0.015686)
    """
    if int(qmin) > 0 or int(qmax) < 0:
        raise RecipeError(f"zero must lie between qmin {qmin} and qmax {qmax}.")
    low, high = np.asarray(rmin), np.asarray(rmax)
    scale, zero_point = grid_parameters(
        low,
        high,
        int(qmin),
        int(qmax),
        symmetric=symmetric,
        min_real_range=min_real_range,
        dtype=high.dtype if high.dtype.kind == "f" else np.float32,
    )
    return [np.asarray(zero_point).astype(np.asarray(qmin).dtype), np.asarray(scale)]


def compute_scale_zp_float8(element_type: int, std: Any) -> list[Array]:
    """Return [zero point, scale] of a float8 type for values of this deviation.

    >>> _, scale = compute_scale_zp_float8(TensorProto.FLOAT8E4M3FN, np.float32(1))
    >>> round(float(scale), 6)
    0.009994
    """
    qtype = _QTYPES.get(element_type)
    if qtype is None or qtype.is_integer:
        raise RecipeError(
            f"type {element_type} is not FLOAT8E4M3FN (17), the only float8 type here."
        )
    deviation = np.asarray(std)
    dtype = deviation.dtype if deviation.dtype.kind == "f" else np.float32
    scale, zero_point = float_scale(deviation, qtype, dtype=dtype)
    return [np.asarray(zero_point).astype(qtype.dtype), np.asarray(scale)]


def snap_zero_point_to_uint8(
    rmin: Any, rmax: Any, qmin: int = 0, qmax: int = 255, min_real_range: float | None = None
) -> tuple[Array, Array]:
    """Return (zero point, scale) of uint8: zero point 0 without negative values, else the middle.

    >>> zero_point, scale = snap_zero_point_to_uint8(-1.28, 1.0)
    >>> int(zero_point), round(float(scale), 6)
    (128, 0.01)
    """
    if (qmin, qmax) != (0, 255):
        raise RecipeError(f"zero points are snapped for all of uint8, not for {qmin} to {qmax}.")
    scale, zero_point = restricted_asymmetric_parameters(rmin, rmax, min_real_range=min_real_range)
    return np.asarray(zero_point).astype(np.uint8), np.asarray(scale)


def compute_scale_zp_blocked(
    weight: Array, quant_type: int, axis: int, block_size: int, symmetric: bool
) -> tuple[Array, Array]:
    """Return (zero points, scales) of blocks along an axis, of the weight's rank.

    >>> weight = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)
    >>> zero_points, scales = compute_scale_zp_blocked(weight, TensorProto.INT8, 0, 2, True)
    >>> (scales * 127).round().tolist(), zero_points.dtype.name
    ([[3.0, 4.0], [5.0, 6.0]], 'int8')
    """
    qmin, qmax = get_qmin_qmax_for_qType(quant_type, symmetric=symmetric)
    fits, axis = normalize_axis(axis, weight.ndim)
    if not fits or block_size < 1:
        raise RecipeError(
            f"a weight of rank {weight.ndim} has no blocks of {block_size} along axis {axis}."
        )
    starts = np.arange(0, weight.shape[axis], block_size)
    low = np.minimum.reduceat(weight, starts, axis=axis)
    high = np.maximum.reduceat(weight, starts, axis=axis)
    zero_points, scales = compute_scale_zp(low, high, qmin, qmax, symmetric)
    return zero_points, scales


def compute_data_quant_params(
    data: Array,
    quant_type: int,
    symmetric: bool,
    reduce_range: bool = False,
    min_real_range: float | None = None,
    rmin_override: float | None = None,
    rmax_override: float | None = None,
) -> tuple[Array, Array]:
    """Return (zero point, scale) for an array, from its extremes or from the given ones.

    >>> data = np.array([-2.0, 1.0], np.float32)
    >>> zero_point, scale = compute_data_quant_params(data, TensorProto.INT8, symmetric=True)
    >>> int(zero_point), round(float(scale) * 127, 6)
    (0, 2.0)
    """
    if not isinstance(data, np.ndarray):
        raise DataError(f"data to quantize is a numpy array, not a {type(data).__name__}.")
    if quant_type in FLOAT8_TYPES:
        if reduce_range:
            raise RecipeError("reduce_range has no meaning for float8.")
        zero_point, scale = compute_scale_zp_float8(quant_type, np.std(data))
        return zero_point, scale
    low = data.min(initial=np.inf) if rmin_override is None else rmin_override
    high = data.max(initial=-np.inf) if rmax_override is None else rmax_override
    qmin, qmax = get_qmin_qmax_for_qType(quant_type, reduce_range, symmetric)
    if not data.size:
        return np.zeros((), qmin.dtype), np.ones((), data.dtype)
    ends = np.array(low, data.dtype), np.array(high, data.dtype)
    zero_point, scale = compute_scale_zp(*ends, qmin, qmax, symmetric, min_real_range)
    return zero_point, scale


def quantize_nparray(
    qType: int,  # noqa: N803
    arr: Array,
    scale: Any,
    zero_point: Any,
    low: float | None = None,
    high: float | None = None,
) -> Array:
    """Return an array in integers (or float8), within the type and within [low, high].

    >>> quantize_nparray(TensorProto.INT8, np.array([0.5, 99.0], np.float32), 0.1, 0)
    array([  5, 127], dtype=int8)
    """
    qtype = _type_of(qType, _QTYPES)
    found = quantize(arr, scale, np.asarray(zero_point).astype(np.int64), qtype)
    if low is not None or high is not None:
        found = np.clip(found, low, high).astype(found.dtype)
    return found.astype(ONNX_TYPE_TO_NP_TYPE[qType])


def quantize_data(
    data: Array,
    qType: int,  # noqa: N803
    symmetric: bool,
    reduce_range: bool = False,
    min_real_range: float | None = None,
    rmin_override: float | None = None,
    rmax_override: float | None = None,
) -> tuple[Array, Array, Array]:
    """Return (zero point, scale, integers) of an array.

    >>> quantize_data(np.array([-1.0, 1.0], np.float32), TensorProto.INT8, True)[2]
    array([-127,  127], dtype=int8)
    """
    zero_point, scale = compute_data_quant_params(
        data, qType, symmetric, reduce_range, min_real_range, rmin_override, rmax_override
    )
    return zero_point, scale, quantize_nparray(qType, data, scale, zero_point)


def quantize_onnx_initializer(
    weight: TensorProto,
    quant_type: int,
    zero_point: Array,
    scale: Array,
    axis: int | None = None,
    quant_weight_name: str | None = None,
    block_size: int = 0,
) -> TensorProto:
    """Return an initializer in integers: one scale, or one for each channel or block along axis.

    >>> weight = onnx.numpy_helper.from_array(np.array([1.0, -1.0], np.float32), "w")
    >>> quantize_onnx_initializer(weight, TensorProto.INT8, np.int8(0), np.float32(0.5)).name
    'w_quantized'
    """
    qtype = _type_of(quant_type, _QTYPES)
    array = tensor_proto_to_array(weight)
    zeros = np.asarray(zero_point).astype(np.int64)
    integers = quantize(array, scale, zeros, qtype, axis=axis, block_size=block_size)
    name = quant_weight_name or f"{weight.name}{TENSOR_NAME_QUANT_SUFFIX}"
    stored = pack(integers.reshape(-1), qtype.bits) if qtype.name in _PACKED else integers
    return onnx.helper.make_tensor(name, quant_type, weight.dims, stored.tobytes(), raw=True)


def pack_bytes_to_4bit(src_8bit: bytes) -> bytearray:
    """Return two 4-bit values in each byte, the first in the low half.

    >>> list(pack_bytes_to_4bit(bytes([1, 2, 15])))
    [33, 15]
    """
    if not src_8bit:
        return bytearray()
    return bytearray(pack(np.frombuffer(bytes(src_8bit), np.uint8), 4).tobytes())


def smooth_distribution(p: Array, eps: float = 0.0001) -> Array | None:
    """Return counts with `eps` in every empty bin, taken from the others; None if all are empty.

    >>> smooth_distribution(np.array([0, 2, 2])).round(5).tolist()
    [9.999999747378752e-05, 1.9999500513076782, 1.9999500513076782]
    """
    if not np.any(p):
        return None
    smoothed = smooth_counts(p, eps)
    if smoothed is None:
        raise DataError(f"too many empty bins to fill with {eps} each; give a smaller eps.")
    return smoothed


def normalize_axis(axis: int, rank: int) -> tuple[bool, int]:
    """Return whether an axis lies within a rank, and the axis counted from the front.

    >>> normalize_axis(-1, 4), normalize_axis(4, 4)
    ((True, 3), (False, 4))
    """
    front = axis + rank if axis < 0 else axis
    return 0 <= front < rank, front


def tensor_proto_to_array(initializer: TensorProto) -> Array:
    """Return the array of a float initializer."""
    if initializer.data_type not in (TensorProto.FLOAT, TensorProto.FLOAT16):
        kind = type_to_name[initializer.data_type]
        raise DataError(f"weight {initializer.name!r} is {kind}; only floats are quantized.")
    return np.asarray(onnx.numpy_helper.to_array(initializer))


def _type_of(number: int, types: Mapping[int, QType]) -> QType:
    if number in types:
        return types[number]
    known = ", ".join(type_to_name[known] for known in _QTYPES)
    raise RecipeError(f"type {type_to_name.get(number, number)} is not one of {known}.")
