"""`ONNXQuantizer` and `VitisONNXQuantizer`: integer operators from given ranges, on ONNX Runtime's.

Their methods quantize tensor by tensor, as inherited, with Bitwright's scales and integers;
`quantize_model` makes the whole model at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from bitwright.api import quantize
from bitwright.compat.onnxruntime.enums import (
    CalibrationMethod,
    QuantFormat,
    QuantizationMode,
    QuantType,
    as_member,
)
from bitwright.compat.onnxruntime.peer import peer
from bitwright.compat.options import RecipeParts
from bitwright.compat.quark.given_ranges import (
    QuantizationParams,
    QuantizerError,
    as_type,
    parameters_of_ranges,
)
from bitwright.compat.vai_q_onnx.enums import read_method
from bitwright.compat.vai_q_onnx.options import read_request
from bitwright.compat.vai_q_onnx.translate import choose_ranges, to_recipe
from bitwright.decide.layout.static import lay_out
from bitwright.decide.ranges.methods import weight_range
from bitwright.jobs.opening import open_model
from bitwright.numerics import quantize as numerics
from bitwright.numerics.scales import affine_parameters
from bitwright.numerics.types import QType
from bitwright.recipe import Override, Recipe
from bitwright.support.array_types import Array

QuantizedValue = peer("quant_utils").QuantizedValue

Names = Sequence[str] | None

_SELECTION = ("nodes_to_quantize", "nodes_to_exclude", "op_types_to_quantize")
_AS_GIVEN = ("calibrate_method", "per_channel", "reduce_range", *_SELECTION)


class VitisONNXQuantizer(peer("onnx_quantizer").ONNXQuantizer):  # type: ignore[misc]
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
        wanted = QuantizationMode.QLinearOps
        if as_member(QuantizationMode, given["mode"], "quantization mode") is not wanted:
            raise QuantizerError("mode is QuantizationMode.QLinearOps; see quantize_dynamic.")
        if not given["static"]:
            raise QuantizerError("static is True; see quantize_dynamic for the other kind.")
        self.quantized_tensor_type = dict(given["quantized_tensor_type"] or {})
        options = dict(given["extra_options"] or {})
        asked = self._read(given, options)
        self.recipe: Recipe = to_recipe(asked, "quark")
        self.calibrate_method: Enum = read_method(asked.asked["method"])
        self._original, model = given["model"], onnx.ModelProto()
        model.CopyFrom(self._original)
        # Ranges, types and overrides may be the vendor's own: they are taken below.
        super().__init__(
            model,
            given["per_channel"],
            given["reduce_range"],
            peer("quant_utils").QuantizationMode.QLinearOps,
            True,
            QuantType.QInt8,
            QuantType.QUInt8,
            None,
            *(given[name] for name in _SELECTION),
            {k: v for k, v in options.items() if k != "TensorQuantOverrides"},
        )
        self.extra_options = options
        self.weight_qType = self.recipe.weight.onnx_type
        self.activation_qType = self.recipe.activation.onnx_type
        self.use_unsigned_relu = self.recipe.emulate.unsigned_relu
        self.used_scale_zp_map: dict[str, tuple[Any, Any]] = {}
        self.tensors_range = given["tensors_range"]
        self.quantization_params = self.calculate_quantization_params()

    def _read(self, given: Mapping[str, Any], options: Mapping[str, Any]) -> RecipeParts:
        overrides = {
            name: [{"quant_type": as_type(kind, f"type of {name!r}")}]
            for name, kind in self.quantized_tensor_type.items()
        } | options.get("TensorQuantOverrides", {})
        arguments = {name: given[name] for name in _AS_GIVEN} | {
            "quant_format": QuantFormat.QOperator,
            "activation_type": as_type(given["activation_qType"], "activation type"),
            "weight_type": as_type(given["weight_qType"], "weight type"),
            "optimize_model": False,
        }
        return read_request(arguments, {**options, "TensorQuantOverrides": overrides or None})

    def quantize_model(self) -> onnx.ModelProto:
        """Return the model in integer operators, with the parameters of the given ranges."""
        layout = lay_out(open_model(self._original, self.recipe).model, self.recipe)
        overrides, known = dict(self.recipe.overrides), self.quantization_params or {}
        for name in layout.observed:
            if name not in known:
                raise QuantizerError(f"there is no range of {name!r} in tensors_range.")
            overrides[name] = Override(
                qtype=as_type(known[name].quant_type, "type"),
                scale=float(known[name].scale),
                zero_point=int(known[name].zero_point),
            )
        recipe = self.recipe.replace(overrides=overrides)
        return quantize(self._original, recipe=recipe).to_proto()

    # What is inherited calls these ----------------------------------------------------------

    def calculate_quantization_params(self) -> dict[str, QuantizationParams] | None:
        """Return the parameters of each tensor that has a range; None without ranges."""
        if self.tensors_range is None:
            return None
        return parameters_of_ranges(self.model.graph(), self.tensors_range, self.recipe)

    def find_quant_scale_zp(self, input_name: str) -> tuple[Any, Any]:
        """Return the scale and zero point in use for a constant, also of an outer graph."""
        if input_name in self.used_scale_zp_map:
            return self.used_scale_zp_map[input_name]
        return (None, None) if self.parent is None else self.parent.find_quant_scale_zp(input_name)

    def quantize_initializer(
        self,
        weight: onnx.TensorProto,
        qType: Any,  # noqa: N803
        method: Any = None,
        reduce_range: bool = False,
        keep_float_weight: bool = False,
    ) -> tuple[str, str, str]:
        """Quantize a constant with one scale; return the names of integers, zero point, scale."""
        return self._quantize_constant(weight, qType, None, method, reduce_range, keep_float_weight)

    def quantize_weight_per_channel(
        self,
        weight_name: str,
        weight_qType: Any,  # noqa: N803
        channel_axis: int,
        method: Any = None,
        reduce_range: bool = True,
        keep_float_weight: bool = False,
    ) -> tuple[str, str, str]:
        """Quantize a constant with one scale a channel; return names as the above does."""
        weight = self.model.get_initializer(weight_name)
        if weight is None:
            raise QuantizerError(
                f"{weight_name!r} is not an initializer, and only constants have channels."
            )
        axis = channel_axis + len(weight.dims) if channel_axis < 0 else channel_axis
        if not 0 <= axis < len(weight.dims):
            raise QuantizerError(
                f"{weight_name!r} of shape {list(weight.dims)} has no axis {axis}."
            )
        return self._quantize_constant(
            weight, weight_qType, axis, method, reduce_range, keep_float_weight
        )

    def _quantize_constant(
        self,
        weight: onnx.TensorProto,
        kind: Any,
        axis: int | None,
        method: Any,
        reduced: bool,
        keep_float: bool,
    ) -> tuple[str, str, str]:
        if isinstance(method, bool):  # the runtime's own callers have no method between
            method, reduced = None, method
        known = self.find_quantized_value(weight.name)
        if known is not None:
            return known.q_name, known.zp_name, known.scale_name
        array, qtype = numpy_helper.to_array(weight), as_type(kind, "weight type")
        scale, zero_point = self._weight_params(array, qtype, method, axis, reduced)
        stored = zero_point.astype(qtype.dtype)
        name, kinds = weight.name, peer("quant_utils").QuantizedValueType
        found = QuantizedValue(
            name,
            f"{name}_quantized",
            f"{name}_scale",
            f"{name}_zero_point",
            kinds.Initializer,
            axis,
        )
        added = {found.scale_name: scale.astype(array.dtype), found.zp_name: stored}
        if not keep_float:
            added[found.q_name] = numerics.quantize(array, scale, zero_point, qtype, axis=axis)
        for each, values in added.items():
            self.model.add_initializer(ir.to_proto(ir.tensor(np.asarray(values), name=each)))
        self.quantized_value_map[name] = found
        self.used_scale_zp_map[name] = scale, stored
        return found.q_name, found.zp_name, found.scale_name

    def _weight_params(
        self, array: Array, qtype: QType, method: Any, axis: int | None, reduced: bool
    ) -> tuple[Array, Array]:
        if not qtype.needs_range:
            return np.asarray(1.0), np.asarray(0)
        chosen = self.calibrate_method if method is None else read_method(method)
        fields = choose_ranges(chosen, RecipeParts())
        symmetric = self.recipe.weight_symmetric
        if symmetric is None or (axis is not None and qtype.signed):
            symmetric = qtype.signed
        low, high = weight_range(
            array, fields["weight_ranges"], qtype, symmetric, axis=axis, reduced=reduced
        )
        kind: Any = "int16" if self.recipe.scales == "int16" else fields["scales"]
        return affine_parameters(low, high, qtype, symmetric=symmetric, reduced=reduced, kind=kind)

    def quantize_bias_static(
        self, bias_name: str, input_name: str, weight_name: str, beta: float = 1.0
    ) -> str:
        """Quantize a bias to int32 at input scale x weight scale x beta; return its name."""
        weight = self.find_quantized_value(weight_name)
        if weight is None:
            raise QuantizerError(f"weight {weight_name!r} is not quantized yet; begin with it.")
        zero_point = self.model.get_initializer(weight.zp_name)
        if zero_point is not None and not as_type(zero_point.data_type, "weight type").is_integer:
            raise QuantizerError(
                f"the bias {bias_name!r} needs a weight in integers, and {weight_name!r} is not."
            )
        if self.model.get_initializer(bias_name) is None:
            raise QuantizerError(f"the bias {bias_name!r} is not an initializer.")
        known = {**(self.quantization_params or {}), **self.quantized_value_map}
        if input_name not in known:
            raise QuantizerError(f"there is no range of input {input_name!r} in tensors_range.")
        return str(super().quantize_bias_static(bias_name, input_name, weight_name, beta))

    def _adjust_weight_scale_for_int32_bias(self, *given: Any) -> tuple[bool, None]:
        return False, None  # other than the runtime's class, Quark's leaves scales alone


ExtendedONNXQuantizer = VitisONNXQuantizer
"""Its name in newer releases."""


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
