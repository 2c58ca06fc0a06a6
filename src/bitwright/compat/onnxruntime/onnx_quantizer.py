"""`ONNXQuantizer`, on the peer's class; other names of the module are the peer's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from bitwright.compat.onnxruntime.dynamic import dynamic_recipe
from bitwright.compat.onnxruntime.enums import QuantFormat, QuantizationMode, as_member
from bitwright.compat.onnxruntime.peer import hand_on, peer
from bitwright.compat.onnxruntime.peer_pass import Names, QuantizerRequest
from bitwright.compat.onnxruntime.planned_quantizer import PlannedQuantizer
from bitwright.errors import RecipeError

__getattr__, __dir__ = hand_on(__name__)


class ONNXQuantizer(PlannedQuantizer, peer("onnx_quantizer").ONNXQuantizer):  # type: ignore[misc]
    """Integer ops: with `static` from given ranges (QLinearOps), else measured at every run.

    >>> import bitwright
    >>> from bitwright.compat.onnxruntime import QuantizationMode, QuantType
    >>> types = QuantType.QInt8, QuantType.QUInt8
    >>> model = bitwright.load_demo().model_path
    >>> quantizer = ONNXQuantizer(
    ...     model, False, False, QuantizationMode.IntegerOps, False, *types, None)
    >>> bitwright.inspect(quantizer.quantize_model()).is_quantized
    True
    """

    MARKS = ("quantized_value_map", "new_nodes")

    def __init__(
        self,
        model: str | Path | onnx.ModelProto,
        per_channel: bool,
        reduce_range: bool,
        mode: Any,
        static: bool,
        weight_qType: Any,  # noqa: N803
        activation_qType: Any,  # noqa: N803
        tensors_range: Any,
        nodes_to_quantize: Names = None,
        nodes_to_exclude: Names = None,
        op_types_to_quantize: Names = None,
        extra_options: Mapping[str, Any] | None = None,
    ) -> None:
        wanted = QuantizationMode.QLinearOps if static else QuantizationMode.IntegerOps
        if as_member(QuantizationMode, mode, "quantization mode") is not wanted:
            raise RecipeError(f"static={static} goes with the mode {wanted}, not with {mode}.")
        self.written = QuantFormat.QOperator if static else None
        self.request = QuantizerRequest.of(locals())
        self.check()
        if static:
            self.recipe = self.static_recipe()
        else:
            parts = self.recipe_parts()
            # Only quantize_dynamic leaves products of two activations float by default.
            parts.select.setdefault("constant_weights_only", False)
            self.recipe = dynamic_recipe(parts, weight_qType)
        arguments = self.request.as_arguments(self.written)
        mode = peer("quant_utils").QuantizationMode[wanted.name]
        super().__init__(mode=mode, static=static, **arguments)

    def find_quantized_value(self, input_name: str) -> Any:
        """Return the names of a quantized tensor, planned or marked, or None."""
        planned = self.planned(input_name)
        if planned is None:
            return super().find_quantized_value(input_name)
        names = peer("quant_utils")
        kind = "Initializer" if self.is_input_a_initializer(input_name) else "Input"
        return names.QuantizedValue(
            input_name,
            f"{input_name}{names.TENSOR_NAME_QUANT_SUFFIX}",
            f"{input_name}_scale",
            f"{input_name}_zero_point",
            names.QuantizedValueType[kind],
            axis=planned.axis,
        )
