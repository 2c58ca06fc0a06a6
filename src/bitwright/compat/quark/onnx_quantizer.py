"""`ONNXQuantizer` and `VitisONNXQuantizer`: integer operators from given ranges.

Their methods quantize piece by piece; `quantize_model` makes the whole model at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from bitwright.api import quantize
from bitwright.compat.onnxruntime.enums import (
    CalibrationMethod,
    QuantFormat,
    QuantizationMode,
    QuantType,
)
from bitwright.compat.onnxruntime.peer import peer
from bitwright.compat.quark.given_ranges import QuantizationParams, QuantizerError
from bitwright.compat.quark.tensor_quantizer import QuantizedValue, TensorQuantizer, as_type
from bitwright.compat.vai_q_onnx.options import read_request
from bitwright.decide.layout.static import lay_out
from bitwright.jobs.opening import open_model
from bitwright.recipe import Override

__all__ = [
    "ONNXQuantizer",
    "QuantizationMode",
    "QuantizationParams",
    "QuantizedValue",
    "QuantizerError",
    "VitisONNXQuantizer",
]

Names = Sequence[str] | None


_SELECTION = ("nodes_to_quantize", "nodes_to_exclude", "op_types_to_quantize")
_AS_GIVEN = ("calibrate_method", "per_channel", "reduce_range", *_SELECTION)


class VitisONNXQuantizer(TensorQuantizer):
    """Quantizes a model to integer operators from given ranges, with any calibration method.

    `tensors_range` maps tensors to (lowest, highest), or is the result of a calibrator;
    `quantized_tensor_type` maps single tensors to number types of their own.

    >>> import bitwright
    >>> model = onnx.load(bitwright.load_demo().model_path)
    >>> quantizer = VitisONNXQuantizer(
    ...     model, False, False, QuantizationMode.QLinearOps, True, "QInt8", "QUInt8",
    ...     {"image": (-0.9, 0.9)}, [], [], [], "NonOverflow",
    ... )
    >>> float(quantizer.calculate_quantization_params()["image"].scale)
    0.0078125
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        per_channel: bool,
        reduce_range: bool,
        mode: Any,
        static: bool,
        weight_qType: Any,  # noqa: N803
        activation_qType: Any,  # noqa: N803
        tensors_range: Any,
        nodes_to_quantize: Names,
        nodes_to_exclude: Names,
        op_types_to_quantize: Names,
        calibrate_method: Any,
        quantized_tensor_type: Mapping[str, Any] | None = None,
        extra_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._start(locals())

    def _start(self, given: Mapping[str, Any]) -> None:
        """Take the arguments of a class of this kind."""
        tensor_types = dict(given["quantized_tensor_type"] or {})
        self.extra_options = dict(given["extra_options"] or {})
        overrides = {
            name: [{"quant_type": as_type(kind, f"type of {name!r}")}]
            for name, kind in tensor_types.items()
        } | self.extra_options.get("TensorQuantOverrides", {})
        options = {**self.extra_options, "TensorQuantOverrides": overrides or None}
        arguments = {name: given[name] for name in _AS_GIVEN} | {
            "quant_format": QuantFormat.QOperator,
            "activation_type": as_type(given["activation_qType"], "activation type"),
            "weight_type": as_type(given["weight_qType"], "weight type"),
            "optimize_model": False,
        }
        model, ranges = given["model"], given["tensors_range"]
        asked = read_request(arguments, options)
        super().__init__(model, given["mode"], given["static"], ranges, asked)
        self._original = model
        self.mode, self.static = QuantizationMode.QLinearOps, True
        self.weight_qType = self.recipe.weight.onnx_type
        self.activation_qType = self.recipe.activation.onnx_type
        self.use_unsigned_relu = self.recipe.emulate.unsigned_relu
        self.quantized_tensor_type = tensor_types
        # Its types are the runtime's: those of the vendor have members of their own above.
        runtime = peer("onnx_quantizer")
        self._inherited = runtime.ONNXQuantizer(
            self.model,
            given["per_channel"],
            given["reduce_range"],
            peer("quant_utils").QuantizationMode.QLinearOps,
            True,
            QuantType.QInt8,
            QuantType.QUInt8,
            None,  # its ranges are answered above
            *(given[name] for name in _SELECTION),
            {k: v for k, v in options.items() if k != "TensorQuantOverrides"},
        )
        self._inherited.quantization_params = {
            name: runtime.QuantizationParams(
                scale=np.asarray(known.scale),
                zero_point=np.asarray(known.zero_point),
                quant_type=known.quant_type.onnx_type,
            )
            for name, known in (self.quantization_params or {}).items()
        }

    def __getattr__(self, name: str) -> Any:
        """Return what the runtime's base class has: attributes, and questions about the model."""
        if name.startswith("_") or name == "recipe":
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return getattr(self._inherited, name)

    def quantize_model(self) -> onnx.ModelProto:
        """Return the model in integer operators, with the parameters of the given ranges."""
        layout = lay_out(open_model(self._original, self.recipe).model, self.recipe)
        overrides = dict(self.recipe.overrides)
        for name in layout.observed:
            params = self.known_params(name, repr(name))
            overrides[name] = Override(
                qtype=params.quant_type,
                scale=float(params.scale),
                zero_point=int(params.zero_point),
            )
        recipe = self.recipe.replace(overrides=overrides)
        return quantize(self._original, recipe=recipe).to_proto()


class ONNXQuantizer(VitisONNXQuantizer):
    """The same with float scales from the whole of each range."""

    def __init__(
        self,
        model: onnx.ModelProto,
        per_channel: bool,
        reduce_range: bool,
        mode: Any,
        static: bool,
        weight_qType: Any,  # noqa: N803
        activation_qType: Any,  # noqa: N803
        tensors_range: Any,
        nodes_to_quantize: Names,
        nodes_to_exclude: Names,
        op_types_to_quantize: Names,
        extra_options: Mapping[str, Any] | None = None,
    ) -> None:
        own = {"calibrate_method": CalibrationMethod.MinMax, "quantized_tensor_type": None}
        self._start({**locals(), **own})
