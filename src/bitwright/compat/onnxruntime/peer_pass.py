"""The peer's own pass over the nodes of a model, for what a plan of the whole does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from bitwright.compat.onnxruntime.enums import QuantFormat, as_quant_type
from bitwright.compat.onnxruntime.peer import peer
from bitwright.compat.onnxruntime.ranges import as_sketches
from bitwright.compat.onnxruntime.registries import default_op_types

__all__ = ["Names", "QuantizerRequest", "run_peer"]

Names = Sequence[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizerRequest:
    """The arguments that all quantizer classes take, as a script gives them."""

    model: str | Path | onnx.ModelProto
    per_channel: bool
    reduce_range: bool
    weight_type: Any
    activation_type: Any
    ranges: Any
    nodes: Names
    exclude: Names
    op_types: Names
    extra_options: Mapping[str, Any] | None

    def proto(self) -> onnx.ModelProto:
        """Return the model as a message."""
        return self.model if isinstance(self.model, onnx.ModelProto) else onnx.load(self.model)

    def as_arguments(self, written: QuantFormat | None) -> dict[str, Any]:
        """Return the arguments of the peer's class, which changes its model and its ranges."""
        as_sketches(self.ranges)  # refuses what is not a range
        model, ranges = onnx.ModelProto(), self.ranges
        model.CopyFrom(self.proto())
        if ranges is not None:
            method = getattr(ranges, "calibration_method", None)
            ranges = peer("calibrate").TensorsData(method, dict(ranges.items()))
        op_types = default_op_types(written) if self.op_types is None else self.op_types
        return {
            "model": model,
            "per_channel": self.per_channel,
            "reduce_range": self.reduce_range,
            "weight_qType": as_quant_type(self.weight_type, "weight type").tensor_type,
            "activation_qType": as_quant_type(self.activation_type, "activation type").tensor_type,
            "tensors_range": ranges,
            "nodes_to_quantize": self.nodes,
            "nodes_to_exclude": self.exclude,
            "op_types_to_quantize": op_types,
            "extra_options": dict(self.extra_options or {}),
        }


def run_peer(request: QuantizerRequest, written: QuantFormat | None) -> onnx.ModelProto:
    """Return what the peer's quantizer makes of a model; a format of None is a dynamic one."""
    arguments = request.as_arguments(written)
    if written is QuantFormat.QDQ:
        quantizer = peer("qdq_quantizer").QDQQuantizer(**arguments)
    else:
        modes = peer("quant_utils").QuantizationMode
        static = written is not None
        mode = modes.QLinearOps if static else modes.IntegerOps
        quantizer = peer("onnx_quantizer").ONNXQuantizer(mode=mode, static=static, **arguments)
    made: onnx.ModelProto = quantizer.quantize_model()
    return made
