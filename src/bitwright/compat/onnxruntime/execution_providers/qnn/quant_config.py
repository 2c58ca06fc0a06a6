"""`get_qnn_qdq_config`: a configuration whose models the QNN execution provider takes."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto

from bitwright.compat.onnxruntime.calibrate import CalibrationDataReader
from bitwright.compat.onnxruntime.enums import CalibrationMethod, QuantFormat, QuantType, as_member
from bitwright.compat.onnxruntime.execution_providers.qnn.mixed_precision_overrides_utils import (
    MixedPrecisionTensorQuantOverridesFixer,
)
from bitwright.compat.onnxruntime.quant_utils import MODEL_SIZE_THRESHOLD
from bitwright.compat.onnxruntime.quantize import StaticQuantConfig
from bitwright.compat.onnxruntime.tensor_quant_overrides import TensorQuantOverridesHelper
from bitwright.graph import file_size

__all__ = [
    "MODEL_SIZE_THRESHOLD",
    "OP_TYPES_TO_EXCLUDE",
    "Q4_TYPES",
    "Q8_TYPES",
    "Q16_TYPES",
    "CalibrationDataReader",
    "CalibrationMethod",
    "MixedPrecisionTensorQuantOverridesFixer",
    "QnnCompatibilityOverrides",
    "QuantType",
    "StaticQuantConfig",
    "TensorQuantOverridesHelper",
    "get_qnn_qdq_config",
    "warn_unable_to_override",
]

Q16_TYPES = {QuantType.QInt16, QuantType.QUInt16}
Q8_TYPES = {QuantType.QInt8, QuantType.QUInt8}
Q4_TYPES = {QuantType.QInt4, QuantType.QUInt4}
OP_TYPES_TO_EXCLUDE = {"Cast"}

logger = logging.getLogger(__name__)

# The parameters that the hardware has for these in 16 bits: (scale, zero point).
_FIXED_OUTPUTS: dict[str, dict[QuantType, tuple[float, int]]] = {
    "Sigmoid": {QuantType.QUInt16: (1 / 65536, 0), QuantType.QInt16: (1 / 32768, 0)},
    "Tanh": {QuantType.QUInt16: (1 / 32768, 32768), QuantType.QInt16: (1 / 32768, 0)},
}


def get_qnn_qdq_config(
    model_input: str | Path | onnx.ModelProto,
    calibration_data_reader: Any,
    calibrate_method: Any = CalibrationMethod.MinMax,
    activation_type: Any = QuantType.QUInt8,
    weight_type: Any = QuantType.QUInt8,
    per_channel: bool = False,
    init_overrides: Mapping[str, list[dict[str, Any]]] | None = None,
    add_qtype_converts: bool = True,
    activation_symmetric: bool = False,
    weight_symmetric: bool | None = None,
    keep_removable_activations: bool = False,
    stride: int | None = None,
    calibration_providers: Sequence[str] | None = None,
    op_types_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
) -> StaticQuantConfig:
    """Return a configuration that quantizes every operator of a model for QNN, in QDQ format.

    With `add_qtype_converts` the given overrides are completed, so that a node with one 16-bit
    activation reads and writes only such. Weights of MatMul and LayerNormalization, and outputs of
    Sigmoid and Tanh, get the overrides that QNN needs. The given overrides stay as they are.

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> config = get_qnn_qdq_config(demo.model_path, demo.calibration[:8], per_channel=True)
    >>> config.per_channel, config.extra_options["MinimumRealRange"]
    (True, 0.0001)
    """
    model = model_input
    if not isinstance(model, onnx.ModelProto):
        model = onnx.load(str(model_input), load_external_data=False)
    activation = as_member(QuantType, activation_type, "activation type")
    weight = as_member(QuantType, weight_type, "weight type")
    if weight_symmetric is None:
        weight_symmetric = weight in {QuantType.QInt8, QuantType.QInt16}
    overrides = TensorQuantOverridesHelper(copy.deepcopy(dict(init_overrides or {})))
    if not overrides.empty() and add_qtype_converts:
        fixer = MixedPrecisionTensorQuantOverridesFixer.create_from_model(
            overrides, model, activation
        )
        fixer.apply(activation, activation_symmetric)
    needs = QnnCompatibilityOverrides(
        activation,
        weight,
        activation_symmetric,
        weight_symmetric,
        per_channel,
        overrides,
        {tensor.name: tensor for tensor in model.graph.initializer},
    )
    found = set()
    for node in model.graph.node:
        wanted = not op_types_to_quantize or node.op_type in op_types_to_quantize
        if wanted and node.name not in (nodes_to_exclude or ()):
            found.add(node.op_type)
            needs.process_node(node)
    options: dict[str, Any] = {
        "MinimumRealRange": 0.0001,
        "DedicatedQDQPair": False,
        "QDQKeepRemovableActivations": keep_removable_activations,
        "TensorQuantOverrides": overrides.get_dict(),
        "ActivationSymmetric": activation_symmetric,
        "WeightSymmetric": weight_symmetric,
        "CalibStridedMinMax": stride,
    }
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    # Before opset 21 only the contrib operators have these types.
    if opset < 21 and (Q16_TYPES | Q4_TYPES) & {activation, weight, *overrides.get_quant_types()}:
        options["UseQDQContribOps"] = True
    uses_external = onnx.external_data_helper.uses_external_data
    return StaticQuantConfig(
        calibration_data_reader,
        calibrate_method=calibrate_method,
        quant_format=QuantFormat.QDQ,
        activation_type=activation,
        weight_type=weight,
        op_types_to_quantize=op_types_to_quantize or sorted(found - OP_TYPES_TO_EXCLUDE),
        nodes_to_exclude=nodes_to_exclude,
        per_channel=per_channel,
        use_external_data_format=any(uses_external(t) for t in model.graph.initializer)
        or file_size(model) >= MODEL_SIZE_THRESHOLD,
        calibration_providers=calibration_providers,
        extra_options=options,
    )


def warn_unable_to_override(node: NodeProto, what_str: str, tensor_name: str, io_kind: str) -> None:
    """Warn that the caller's override of a tensor stands where QNN needs another."""
    logger.warning(
        "%s of %r, %s of the %s %r, is overridden already and stays as it is; if QNN does not run "
        "the model, look at this override.",
        what_str,
        tensor_name,
        io_kind,
        node.op_type,
        node.name,
    )


class QnnCompatibilityOverrides:
    """Adds to the overrides what QNN needs of a node.

    >>> overrides = TensorQuantOverridesHelper({})
    >>> needs = QnnCompatibilityOverrides(
    ...     QuantType.QUInt16, QuantType.QUInt8, False, False, False, overrides, {})
    >>> needs.process_node(onnx.helper.make_node("Sigmoid", ["x"], ["y"]))
    >>> int(overrides["y"][0]["zero_point"])
    0
    """

    def __init__(
        self,
        default_activation_qtype: QuantType,
        default_weight_qtype: QuantType,
        activation_symmetric: bool,
        weight_symmetric: bool,
        per_channel: bool,
        overrides: TensorQuantOverridesHelper,
        initializers: Mapping[str, TensorProto],
    ) -> None:
        self.default_activation_qtype = default_activation_qtype
        self.default_weight_qtype = default_weight_qtype
        self.activation_symmetric = activation_symmetric
        self.weight_symmetric = weight_symmetric
        self.per_channel = per_channel
        self.overrides = overrides
        self.initializers = initializers

    def process_node(self, node: NodeProto) -> None:
        """Override tensors of a node, if it is of a type for which QNN needs that."""
        if node.op_type in _FIXED_OUTPUTS:
            self._fix_output(node)
        elif node.op_type == "MatMul" and self.per_channel:
            # QNN has no per-channel MatMul; an override without axis keeps its weight per tensor.
            for name in node.input:
                if name in self.initializers and name not in self.overrides:
                    self.overrides.update_tensor_overrides(name, self._weight_entry())
        elif node.op_type in ("MatMul", "LayerNormalization") and not self.per_channel:
            self._keep_weight_type(node)

    def _weight_entry(self) -> dict[str, Any]:
        return {"quant_type": self.default_weight_qtype, "symmetric": self.weight_symmetric}

    def _fix_output(self, node: NodeProto) -> None:
        output = node.output[0]
        default = self.default_activation_qtype
        kind = self.overrides.get_node_output_qtype_info(output, default).quant_type
        if kind not in _FIXED_OUTPUTS[node.op_type]:
            return
        scale, zero_point = _FIXED_OUTPUTS[node.op_type][kind]
        entry = {
            "quant_type": kind,
            "scale": np.array(scale, np.float32),
            "zero_point": np.array(
                zero_point, onnx.helper.tensor_dtype_to_np_dtype(kind.tensor_type)
            ),
        }
        self.overrides.update_tensor_overrides(output, entry)

    def _keep_weight_type(self, node: NodeProto) -> None:
        """Give a weight beside a 16-bit activation the weight type, where it is 8-bit.

        ONNX Runtime's tool gives the constants of these operators the type of activations.
        """
        if self.default_weight_qtype not in Q8_TYPES:
            return
        wide, weight = False, ""
        for name in filter(None, node.input[:2]):
            constant = name in self.initializers
            default = None if constant else self.default_activation_qtype
            info = self.overrides.get_node_input_qtype_info(name, node.name, default)
            if info.axis is not None:
                return
            if not constant:
                wide = wide or info.quant_type in Q16_TYPES
                continue
            weight = name
            if (info.quant_type, info.symmetric) == tuple(self._weight_entry().values()):
                return
        if wide and weight:
            added = self.overrides.update_tensor_overrides(
                weight, self._weight_entry(), overwrite=False
            )
            if not added:
                warn_unable_to_override(node, "quant_type/symmetric", weight, "input weight")
