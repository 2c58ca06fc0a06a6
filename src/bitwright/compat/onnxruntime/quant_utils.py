"""The functions that people import from `onnxruntime.quantization.quant_utils`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from bitwright import graph
from bitwright.api import preprocess
from bitwright.compat.onnxruntime.enums import (
    QuantFormat,
    QuantizationMode,
    QuantizedValueType,
    QuantType,
    as_quant_type,
)
from bitwright.compat.onnxruntime.errors import InvalidModelError
from bitwright.compat.onnxruntime.options import translate_options
from bitwright.compat.onnxruntime.quant_formulas import (
    FLOAT8_DISTRIBUTIONS,
    FLOAT8_TYPES,
    ONNX_INT_TYPE_RANGE,
    ONNX_INT_TYPE_REDUCED_RANGE,
    ONNX_INT_TYPE_SYMMETRIC_RANGE,
    ONNX_TYPE_TO_NP_TYPE,
    TENSOR_NAME_QUANT_SUFFIX,
    compute_data_quant_params,
    compute_scale_zp,
    compute_scale_zp_blocked,
    compute_scale_zp_float8,
    get_qmin_qmax_for_qType,
    get_qrange_for_qType,
    normalize_axis,
    pack_bytes_to_4bit,
    quantize_data,
    quantize_nparray,
    quantize_onnx_initializer,
    smooth_distribution,
    snap_zero_point_to_uint8,
    tensor_proto_to_array,
    type_to_name,
)
from bitwright.compat.onnxruntime.quant_records import (
    BiasToQuantize,
    QuantizedInitializer,
    QuantizedValue,
)
from bitwright.compat.onnxruntime.tensors_data import write_calibration_table
from bitwright.errors import MissingPackageError
from bitwright.jobs.opening import upgrade_for
from bitwright.recipe import Recipe

__all__ = [
    "DEQUANT_OP_NAME",
    "DEQUANT_OUTPUT_SUFFIX",
    "FLOAT8_DISTRIBUTIONS",
    "FLOAT8_TYPES",
    "MODEL_SIZE_THRESHOLD",
    "ONNX_INT_TYPE_RANGE",
    "ONNX_INT_TYPE_REDUCED_RANGE",
    "ONNX_INT_TYPE_SYMMETRIC_RANGE",
    "ONNX_TYPE_TO_NP_TYPE",
    "QUANT_INPUT_SUFFIX",
    "QUANT_OP_NAME",
    "TENSOR_NAME_QUANT_SUFFIX",
    "BiasToQuantize",
    "QuantFormat",
    "QuantType",
    "QuantizationMode",
    "QuantizedInitializer",
    "QuantizedValue",
    "QuantizedValueType",
    "add_dequant_input_suffix",
    "add_dequant_output_suffix",
    "add_dequant_suffix",
    "add_infer_metadata",
    "add_pre_process_metadata",
    "add_quant_input_suffix",
    "add_quant_output_suffix",
    "add_quant_suffix",
    "apply_plot",
    "attribute_to_kwarg",
    "compute_data_quant_params",
    "compute_scale_zp",
    "compute_scale_zp_blocked",
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
    "optimize_model",
    "pack_bytes_to_4bit",
    "quantize_data",
    "quantize_nparray",
    "quantize_onnx_initializer",
    "save_and_reload_model_with_shape_infer",
    "smooth_distribution",
    "snap_zero_point_to_uint8",
    "tensor_proto_to_array",
    "type_to_name",
    "update_opset_version",
    "write_calibration_table",
]

onnx_domain = "ai.onnx"
ms_domain = "com.microsoft"
QUANT_OP_NAME = "QuantizeLinear"
QUANT_INPUT_SUFFIX = "_QuantizeLinear_Input"
DEQUANT_OP_NAME = "DequantizeLinear"
DEQUANT_OUTPUT_SUFFIX = "_DequantizeLinear_Output"
MODEL_SIZE_THRESHOLD = 1 << 31
# What models written by ONNX Runtime's tool are stamped with.
__producer__ = "onnx.quantize"
__version__ = "0.1.0"

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


def get_opset_version(model: onnx.ModelProto) -> int:
    """Return the version of the standard operators that a model is written for."""
    # From the message itself: tensors in other files need not be there.
    found = [item.version for item in model.opset_import if item.domain in ("", "ai.onnx")]
    if len(found) != 1:
        raise InvalidModelError("the model names no version, or several, of ONNX's operators.")
    return int(found[0])


def update_opset_version(
    model: onnx.ModelProto,
    weight_type: Any,
    activation_type: Any = None,
    tensor_quant_overrides: Mapping[str, Any] | None = None,
    block_size: int = 0,
) -> onnx.ModelProto:
    """Return the model at an opset that has these types, converted and not just stamped.

    >>> import bitwright
    >>> model = onnx.load(bitwright.load_demo().model_path)
    >>> get_opset_version(update_opset_version(model, QuantType.QInt16))
    21
    """
    options = {"TensorQuantOverrides": tensor_quant_overrides or {}, "BlockSize": block_size}
    parts = translate_options(options)
    parts.recipe["weight"] = as_quant_type(weight_type, "weight type").qtype
    if activation_type is not None:
        kind = as_quant_type(activation_type, "activation type")
        parts.recipe["activation"] = kind.qtype
    loaded = graph.load_model(model)
    return ir.to_proto(upgrade_for(loaded, Recipe(**parts.build()), []))


def optimize_model(model_path: str | Path, opt_model_path: str | Path) -> None:
    """Write a model with its constants and batch norms folded.

    >>> import bitwright, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     optimize_model(bitwright.load_demo().model_path, f"{folder}/m.onnx")
    ...     bitwright.inspect(f"{folder}/m.onnx").is_quantized
    False
    """
    preprocess(model_path, opt_model_path, onnx_shapes=False, symbolic_shapes=False)


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


def apply_plot(hist: Sequence[float], hist_edges: Sequence[float]) -> None:
    """Show a histogram in a window, with matplotlib."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingPackageError(
            "plotting a histogram needs matplotlib; run: pip install matplotlib."
        ) from error
    plt.stairs(hist, hist_edges, fill=True)
    plt.title("Histogram of a tensor")
    plt.xlabel("value")
    plt.ylabel("count")
    plt.show()


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
