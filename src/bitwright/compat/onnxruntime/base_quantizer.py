"""`BaseQuantizer`: what the quantizer classes of ONNX Runtime's tool answer of their model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx
from onnx import NodeProto, TensorProto

from bitwright.compat.onnxruntime.enums import as_quant_type
from bitwright.compat.onnxruntime.errors import InvalidSettingError
from bitwright.compat.onnxruntime.onnx_model import ONNXModel
from bitwright.compat.onnxruntime.operators.base_operator import refuse_operator_quantizer
from bitwright.compat.onnxruntime.quant_records import QuantizationParams
from bitwright.compat.onnxruntime.quant_utils import (
    DEQUANT_OP_NAME,
    ONNX_TYPE_TO_NP_TYPE,
    QUANT_OP_NAME,
    TENSOR_NAME_QUANT_SUFFIX,
    find_by_name,
    get_opset_version,
    load_model_with_shape_infer,
    model_has_infer_metadata,
    normalize_axis,
    pack_bytes_to_4bit,
    quantize_data,
    quantize_nparray,
    save_and_reload_model_with_shape_infer,
    tensor_proto_to_array,
)
from bitwright.compat.onnxruntime.registry import QDQRegistry, QLinearOpsRegistry
from bitwright.compat.onnxruntime.tensor_quant_overrides import TensorQuantOverridesHelper
from bitwright.compat.onnxruntime.tensors_data import TensorData

__all__ = [
    "DEQUANT_OP_NAME",
    "ONNX_TYPE_TO_NP_TYPE",
    "QUANT_OP_NAME",
    "TENSOR_NAME_QUANT_SUFFIX",
    "BaseQuantizer",
    "ONNXModel",
    "QuantizationParams",
    "TensorData",
    "TensorQuantOverridesHelper",
    "find_by_name",
    "get_opset_version",
    "model_has_infer_metadata",
    "normalize_axis",
    "pack_bytes_to_4bit",
    "quantize_data",
    "quantize_nparray",
    "refused",
    "save_and_reload_model_with_shape_infer",
    "tensor_proto_to_array",
]

Names = Sequence[str] | None
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
_SIGNED = (TensorProto.INT4, TensorProto.INT8, TensorProto.INT16, TensorProto.FLOAT8E4M3FN)


def refused(name: str) -> Any:
    """Return a method that is a step of the other tool's own pass over the nodes: an error."""

    def method(self: Any, *arguments: Any, **options: Any) -> NoReturn:
        refuse_operator_quantizer(f"{type(self).__name__}.{name}")

    method.__name__ = name
    method.__doc__ = "Do one step of the other tool's pass over the nodes: an error here."
    return method


class BaseQuantizer:
    """A model and what is asked for, with answers about both.

    >>> import bitwright
    >>> from bitwright.compat.onnxruntime import QuantType
    >>> model = onnx.load(bitwright.load_demo().model_path)
    >>> types = QuantType.QInt8, QuantType.QUInt8
    >>> base = BaseQuantizer(model, True, False, *types, None, None, None, ["Conv"])
    >>> base.is_per_channel(), base.should_quantize_node(model.graph.node[0])
    (True, True)
    """

    def __init__(
        self,
        model: str | Path | onnx.ModelProto,
        per_channel: bool,
        reduce_range: bool,
        weight_qType: Any,  # noqa: N803
        activation_qType: Any,  # noqa: N803
        tensors_range: Any,
        nodes_to_quantize: Names = None,
        nodes_to_exclude: Names = None,
        op_types_to_quantize: Names = None,
        extra_options: Mapping[str, Any] | None = None,
    ) -> None:
        proto = model if isinstance(model, onnx.ModelProto) else onnx.load(model)
        shaped = proto if model_has_infer_metadata(proto) else load_model_with_shape_infer(proto)
        graph = shaped.graph
        self.value_infos = {v.name: v for v in (*graph.value_info, *graph.output, *graph.input)}
        self.model = ONNXModel(proto)
        self.initializers = {tensor.name: tensor for tensor in proto.graph.initializer}
        self.opset_version = get_opset_version(proto)
        self.per_channel = per_channel
        self.reduce_range = reduce_range
        self.weight_qType = as_quant_type(weight_qType, "weight type").tensor_type
        activation = as_quant_type(activation_qType, "activation type")
        self.activation_qType = activation.tensor_type
        self.tensors_range = tensors_range
        self.nodes_to_quantize = nodes_to_quantize
        self.nodes_to_exclude = nodes_to_exclude
        if op_types_to_quantize is None:
            op_types_to_quantize = [*QLinearOpsRegistry, *QDQRegistry]
        self.op_types_to_quantize = op_types_to_quantize
        self.extra_options = dict(extra_options or {})
        self.is_activation_symmetric = self.extra_options.get("ActivationSymmetric", False)
        self.min_real_range = self.extra_options.get("MinimumRealRange")
        self.tensor_quant_overrides = TensorQuantOverridesHelper(
            self.extra_options.get("TensorQuantOverrides", {})
        )
        valid, fault = self.tensor_quant_overrides.is_valid(
            self.initializers, self.value_infos, activation
        )
        if not valid:
            raise InvalidSettingError(fault)

    def quantize_model(self) -> onnx.ModelProto:
        """Return the quantized model; QDQQuantizer and ONNXQuantizer have one."""
        raise NotImplementedError

    def is_weight_symmetric(self, weight_quant_type: int) -> bool:
        """Return whether weights of a type are quantized without zero points."""
        asked = self.extra_options.get("WeightSymmetric")
        return weight_quant_type in _SIGNED if asked is None else bool(asked)

    def is_input_a_initializer(self, input_name: str) -> bool:
        """Return whether a tensor is a constant of the model as it was given."""
        return input_name in self.initializers

    def is_per_channel(self) -> bool:
        """Return whether weights have a scale for each channel."""
        return self.per_channel

    def is_valid_quantize_weight(self, weight_name: str) -> bool:
        """Return whether a tensor is a constant of floats."""
        weight = self.initializers.get(weight_name)
        return weight is not None and weight.data_type in _FLOATS

    def should_quantize_node(self, node: NodeProto) -> bool:
        """Return whether a node is selected by name and by type."""
        if node.op_type in (QUANT_OP_NAME, DEQUANT_OP_NAME):
            return False
        selected = not self.nodes_to_quantize or node.name in self.nodes_to_quantize
        excluded = node.name in (self.nodes_to_exclude or ())
        return selected and not excluded and node.op_type in self.op_types_to_quantize

    def adjust_tensor_ranges(self) -> None:
        """Give what a Relu or Clip alone reads the range behind it, and a Softmax [0, 1]."""
        if self.tensors_range is None:
            return
        readers = self.model.input_name_to_nodes()
        for node in filter(self.should_quantize_node, self.model.nodes()):
            source, result = node.input[0] if node.input else "", node.output[0]
            if node.op_type in ("Clip", "Relu"):
                known = source in self.tensors_range and result in self.tensors_range
                if known and len(readers[source]) == 1:
                    self.tensors_range[source] = self.tensors_range[result]
            elif node.op_type == "Softmax" and result in self.tensors_range:
                ends = {"lowest": np.float32(0.0), "highest": np.float32(1.0)}
                self.tensors_range[result] = TensorData(**ends)

    quantize_bias_static_impl = refused("quantize_bias_static_impl")
    quantize_initializer_impl = refused("quantize_initializer_impl")
    quantize_weight_per_channel_impl = refused("quantize_weight_per_channel_impl")
