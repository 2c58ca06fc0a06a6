"""The functions that people import from `onnxruntime.quantization.quant_utils`.

Types are given as `onnx.TensorProto` numbers and come back as numpy arrays of the type's own
dtype, as there; the arithmetic is Bitwright's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import TensorProto

from bitwright import graph
from bitwright.compat.onnxruntime.enums import (
    QuantFormat,
    QuantizationMode,
    QuantizedValueType,
    QuantType,
)
from bitwright.compat.onnxruntime.tensors_data import write_calibration_table
from bitwright.decide.divergence import smooth_counts
from bitwright.errors import DataError, RecipeError
from bitwright.numerics import QType, float_scale, grid_parameters, pack, quantize

__all__ = [
    "DEQUANT_OP_NAME",
    "DEQUANT_OUTPUT_SUFFIX",
    "FLOAT8_TYPES",
    "MODEL_SIZE_THRESHOLD",
    "ONNX_INT_TYPE_RANGE",
    "ONNX_INT_TYPE_REDUCED_RANGE",
    "ONNX_INT_TYPE_SYMMETRIC_RANGE",
    "ONNX_TYPE_TO_NP_TYPE",
    "QUANT_INPUT_SUFFIX",
    "QUANT_OP_NAME",
    "TENSOR_NAME_QUANT_SUFFIX",
    "QuantFormat",
    "QuantType",
    "QuantizationMode",
    "QuantizedValueType",
    "add_dequant_input_suffix",
    "add_dequant_output_suffix",
    "add_dequant_suffix",
    "add_infer_metadata",
    "add_pre_process_metadata",
    "add_quant_input_suffix",
    "add_quant_output_suffix",
    "add_quant_suffix",
    "attribute_to_kwarg",
    "compute_data_quant_params",
    "compute_scale_zp",
    "compute_scale_zp_float8",
    "find_by_name",
    "generate_identified_filename",
    "get_elem_index",
    "get_mul_node",
    "get_opset_version",
    "get_qmin_qmax_for_qType",
    "get_qrange_for_qType",
    "load_model_with_shape_infer",
    "model_has_external_data",
    "model_has_infer_metadata",
    "model_has_pre_process_metadata",
    "ms_domain",
    "normalize_axis",
    "onnx_domain",
    "pack_bytes_to_4bit",
    "quantize_data",
    "quantize_nparray",
    "quantize_onnx_initializer",
    "save_and_reload_model_with_shape_infer",
    "smooth_distribution",
    "tensor_proto_to_array",
    "type_to_name",
    "write_calibration_table",
]

Array = npt.NDArray[Any]

onnx_domain = "ai.onnx"
ms_domain = "com.microsoft"
QUANT_OP_NAME = "QuantizeLinear"
QUANT_INPUT_SUFFIX = "_QuantizeLinear_Input"
DEQUANT_OP_NAME = "DequantizeLinear"
DEQUANT_OUTPUT_SUFFIX = "_DequantizeLinear_Output"
TENSOR_NAME_QUANT_SUFFIX = "_quantized"
MODEL_SIZE_THRESHOLD = 1 << 31

FLOAT8_TYPES = (
    TensorProto.FLOAT8E4M3FN,
    TensorProto.FLOAT8E4M3FNUZ,
    TensorProto.FLOAT8E5M2,
    TensorProto.FLOAT8E5M2FNUZ,
)

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


# Numbers --------------------------------------------------------------------------------------


def get_qmin_qmax_for_qType(  # noqa: N802
    qType: int,  # noqa: N803
    reduce_range: bool = False,
    symmetric: bool = False,
) -> tuple[Array, Array]:
    """Return the least and the largest integer that a scale is spread over.

    >>> [int(end) for end in get_qmin_qmax_for_qType(TensorProto.INT8, symmetric=True)]
    [-127, 127]
    """
    qtype = _integer_type(qType)
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
    qtype = _QTYPES.get(qType)
    if qtype is None:
        raise _unknown_type(qType)
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
    qtype = _QTYPES.get(quant_type)
    if qtype is None:
        raise _unknown_type(quant_type)
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


def _integer_type(number: int) -> QType:
    if number not in _INTEGERS:
        raise _unknown_type(number)
    return _INTEGERS[number]


def _unknown_type(number: int) -> RecipeError:
    known = ", ".join(type_to_name[known] for known in _QTYPES)
    return RecipeError(f"type {type_to_name.get(number, number)} is not one of {known}.")


# Models ---------------------------------------------------------------------------------------


def load_model_with_shape_infer(model_path: str | Path | onnx.ModelProto) -> onnx.ModelProto:
    """Return a model, its external data loaded and its shapes inferred; no file is written.

    >>> import bitwright
    >>> len(load_model_with_shape_infer(bitwright.load_demo().model_path).graph.value_info) > 0
    True
    """
    model = graph.load_model(model_path)
    graph.infer_shapes(model)
    proto = ir.to_proto(ir.external_data.load_to_model(model))
    add_infer_metadata(proto)
    return proto


def save_and_reload_model_with_shape_infer(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model with its shapes inferred; nothing is saved.

    >>> import bitwright
    >>> demo = onnx.load(bitwright.load_demo().model_path)
    >>> model_has_infer_metadata(save_and_reload_model_with_shape_infer(demo))
    True
    """
    return load_model_with_shape_infer(model)


def model_has_external_data(model_path: str | Path) -> bool:
    """Return whether a model keeps weights in a file of their own."""
    model = onnx.load(str(model_path), load_external_data=False)
    uses = onnx.external_data_helper.uses_external_data
    return any(uses(tensor) for tensor in model.graph.initializer)


def tensor_proto_to_array(initializer: TensorProto) -> Array:
    """Return the array of a float initializer."""
    if initializer.data_type not in (TensorProto.FLOAT, TensorProto.FLOAT16):
        kind = type_to_name[initializer.data_type]
        raise DataError(f"weight {initializer.name!r} is {kind}; only floats are quantized.")
    return np.asarray(onnx.numpy_helper.to_array(initializer))


def get_opset_version(model: onnx.ModelProto) -> int:
    """Return the version of the standard operators that a model is written for."""
    return graph.opset_of(graph.load_model(model))


def _mark(model: onnx.ModelProto, key: str) -> None:
    known = {entry.key: entry.value for entry in model.metadata_props}
    onnx.helper.set_model_props(model, {key: "onnxruntime.quant", **known})


def _is_marked(model: onnx.ModelProto, key: str) -> bool:
    return any(p.key == key and p.value == "onnxruntime.quant" for p in model.metadata_props)


def add_infer_metadata(model: onnx.ModelProto) -> None:
    """Note in a model that its shapes were inferred."""
    _mark(model, "onnx.infer")


def model_has_infer_metadata(model: onnx.ModelProto) -> bool:
    """Return whether a model says that its shapes were inferred."""
    return _is_marked(model, "onnx.infer")


def add_pre_process_metadata(model: onnx.ModelProto) -> None:
    """Note in a model that it was pre-processed."""
    _mark(model, "onnx.quant.pre_process")


def model_has_pre_process_metadata(model: onnx.ModelProto) -> bool:
    """Return whether a model says that it was pre-processed."""
    return _is_marked(model, "onnx.quant.pre_process")


# Names and small things -----------------------------------------------------------------------


def find_by_name(item_name: str, item_list: Iterable[Any]) -> Any:
    """Return the first item of this name, or None.

    >>> find_by_name("w", []) is None
    True
    """
    return next((item for item in item_list if item.name == item_name), None)


def get_elem_index(elem_name: str, elem_list: Sequence[str]) -> int:
    """Return where a name stands last in a list, or -1.

    >>> get_elem_index("b", ["a", "b"]), get_elem_index("c", [])
    (1, -1)
    """
    return max((i for i, name in enumerate(elem_list) if name == elem_name), default=-1)


def get_mul_node(inputs: Sequence[str], output: str, name: str) -> onnx.NodeProto:
    """Return a Mul node."""
    return onnx.helper.make_node("Mul", inputs, [output], name)


def attribute_to_kwarg(attribute: onnx.AttributeProto) -> dict[str, Any]:
    """Return an attribute as a keyword argument for `onnx.helper.make_node`.

    >>> attribute_to_kwarg(onnx.helper.make_attribute("axis", 1))
    {'axis': 1}
    """
    return {attribute.name: onnx.helper.get_attribute_value(attribute)}


def generate_identified_filename(filename: Path, identifier: str) -> Path:
    """Return a path with something added to the file's stem.

    >>> generate_identified_filename(Path("model.onnx"), "-opt").name
    'model-opt.onnx'
    """
    return filename.with_name(f"{filename.stem}{identifier}{filename.suffix}")


def add_quant_suffix(tensor_name: str) -> str:
    """Return what the quantizer of a tensor is called."""
    return f"{tensor_name}_QuantizeLinear"


def add_quant_input_suffix(tensor_name: str) -> str:
    """Return what a quantized graph output is called before its quantizer."""
    return f"{tensor_name}{QUANT_INPUT_SUFFIX}"


def add_quant_output_suffix(tensor_name: str) -> str:
    """Return what a tensor is called behind its quantizer."""
    return f"{tensor_name}_QuantizeLinear_Output"


def add_dequant_suffix(tensor_name: str) -> str:
    """Return what the dequantizer of a tensor is called."""
    return f"{tensor_name}_DequantizeLinear"


def add_dequant_input_suffix(tensor_name: str) -> str:
    """Return what a tensor is called before its dequantizer."""
    return f"{tensor_name}_DequantizeLinear_Input"


def add_dequant_output_suffix(tensor_name: str) -> str:
    """Return what a tensor is called behind its dequantizer."""
    return f"{tensor_name}{DEQUANT_OUTPUT_SUFFIX}"
