"""`QDQQuantizer` and what it notes of tensors, where `onnxruntime.quantization` has them."""

from __future__ import annotations

from bitwright.compat.onnxruntime.base_quantizer import BaseQuantizer
from bitwright.compat.onnxruntime.enums import QuantizedValueType, QuantType
from bitwright.compat.onnxruntime.onnx_quantizer import QDQQuantizer
from bitwright.compat.onnxruntime.quant_records import (
    QDQBiasQuantInfo,
    QDQQuantParamProvider,
    QDQQuantTensorType,
    QDQScaleZpInitializers,
    QDQTensorQuantInfo,
    QDQTensorQuantizedValue,
    QDQTensorQuantParams,
    QDQTensorScaleZpInitializers,
    QuantizationParams,
    QuantizedValue,
)
from bitwright.compat.onnxruntime.quant_utils import (
    DEQUANT_OP_NAME,
    ONNX_TYPE_TO_NP_TYPE,
    QUANT_OP_NAME,
    add_dequant_output_suffix,
    add_dequant_suffix,
    add_quant_input_suffix,
    add_quant_output_suffix,
    add_quant_suffix,
    compute_data_quant_params,
    compute_scale_zp,
    compute_scale_zp_blocked,
    compute_scale_zp_float8,
    find_by_name,
    get_qmin_qmax_for_qType,
    ms_domain,
    normalize_axis,
    quantize_onnx_initializer,
    snap_zero_point_to_uint8,
    tensor_proto_to_array,
)
from bitwright.compat.onnxruntime.registry import CreateQDQQuantizer
from bitwright.compat.onnxruntime.tensors_data import TensorData

__all__ = [
    "DEQUANT_OP_NAME",
    "ONNX_TYPE_TO_NP_TYPE",
    "QUANT_OP_NAME",
    "BaseQuantizer",
    "CreateQDQQuantizer",
    "QDQBiasQuantInfo",
    "QDQQuantParamProvider",
    "QDQQuantTensorType",
    "QDQQuantizer",
    "QDQScaleZpInitializers",
    "QDQTensorQuantInfo",
    "QDQTensorQuantParams",
    "QDQTensorQuantizedValue",
    "QDQTensorScaleZpInitializers",
    "QuantType",
    "QuantizationParams",
    "QuantizedValue",
    "QuantizedValueType",
    "TensorData",
    "add_dequant_output_suffix",
    "add_dequant_suffix",
    "add_quant_input_suffix",
    "add_quant_output_suffix",
    "add_quant_suffix",
    "compute_data_quant_params",
    "compute_scale_zp",
    "compute_scale_zp_blocked",
    "compute_scale_zp_float8",
    "find_by_name",
    "get_qmin_qmax_for_qType",
    "ms_domain",
    "normalize_axis",
    "quantize_onnx_initializer",
    "snap_zero_point_to_uint8",
    "tensor_proto_to_array",
]
