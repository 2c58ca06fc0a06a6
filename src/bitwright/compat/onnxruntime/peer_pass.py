"""The peer's own pass over the nodes of a model, for what a plan of the whole does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import onnx

from bitwright.compat.onnxruntime.enums import QuantFormat, as_quant_type
from bitwright.compat.onnxruntime.options import translate_options
from bitwright.compat.onnxruntime.peer import peer
from bitwright.compat.onnxruntime.ranges import as_sketches
from bitwright.compat.onnxruntime.registries import default_op_types
from bitwright.compat.options import RecipeParts

Names = Sequence[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizerRequest:
    """The arguments that all quantizer classes take, by the peer's names."""

    model: str | Path | onnx.ModelProto
    per_channel: bool
    reduce_range: bool
    weight_qType: Any  # noqa: N815
    activation_qType: Any  # noqa: N815
    tensors_range: Any = None
    nodes_to_quantize: Names = None
    nodes_to_exclude: Names = None
    op_types_to_quantize: Names = None
    extra_options: Mapping[str, Any] | None = None

    @staticmethod
    def of(given: Mapping[str, Any]) -> QuantizerRequest:
        """Return those of the given arguments that all classes take."""
        return QuantizerRequest(
            **{each.name: given[each.name] for each in fields(QuantizerRequest)}
        )

    def proto(self) -> onnx.ModelProto:
        """Return the model as a message."""
        return self.model if isinstance(self.model, onnx.ModelProto) else onnx.load(self.model)

    @property
    def overrides(self) -> Any:
        """What is asked for single tensors."""
        return (self.extra_options or {}).get("TensorQuantOverrides")

    def recipe_parts(self, op_types: Names) -> RecipeParts:
        """Return the fields of a recipe that the arguments ask for, with these op types."""
        parts = translate_options(self.extra_options)
        parts.choose_nodes(op_types, self.nodes_to_quantize, self.nodes_to_exclude)
        parts.recipe.update(per_channel=self.per_channel, reduce_range=self.reduce_range)
        return parts

    def as_arguments(self, written: QuantFormat | None) -> dict[str, Any]:
        """Return the arguments of the peer's class, which changes its model and its ranges."""
        as_sketches(self.tensors_range)  # refuses what is not a range
        model, ranges = onnx.ModelProto(), self.tensors_range
        model.CopyFrom(self.proto())
        if ranges is not None:
            method = getattr(ranges, "calibration_method", None)
            ranges = peer("calibrate").TensorsData(method, dict(ranges.items()))
        given = {each.name: getattr(self, each.name) for each in fields(QuantizerRequest)}
        if self.op_types_to_quantize is None:
            given["op_types_to_quantize"] = default_op_types(written)
        for role in ("weight", "activation"):
            kind = as_quant_type(given[f"{role}_qType"], f"{role} type")
            given[f"{role}_qType"] = kind.tensor_type
        options = dict(self.extra_options or {})
        return {**given, "model": model, "tensors_range": ranges, "extra_options": options}


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
