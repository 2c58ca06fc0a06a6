"""`QDQQuantizer` and `ONNXQuantizer`: the classes behind the functions, from given ranges.

They are built as there and `quantize_model` gives the quantized model; what happens in between is
Bitwright's plan, which stays in `plan`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bitwright.compat.onnxruntime.base_quantizer import BaseQuantizer, refused
from bitwright.compat.onnxruntime.dynamic import dynamic_op_types, dynamic_recipe
from bitwright.compat.onnxruntime.enums import (
    QuantFormat,
    QuantizationMode,
    QuantizedValueType,
    QuantType,
    as_member,
    as_quant_type,
)
from bitwright.compat.onnxruntime.errors import InvalidSettingError, raises_builtins
from bitwright.compat.onnxruntime.onnx_model import ONNXModel
from bitwright.compat.onnxruntime.options import read_channel_axes, translate_options
from bitwright.compat.onnxruntime.quant_records import (
    QDQTensorQuantParams,
    QuantizationParams,
    QuantizedValue,
)
from bitwright.compat.onnxruntime.quant_utils import (
    DEQUANT_OP_NAME,
    FLOAT8_TYPES,
    QUANT_OP_NAME,
    TENSOR_NAME_QUANT_SUFFIX,
    add_infer_metadata,
    attribute_to_kwarg,
    compute_scale_zp,
    compute_scale_zp_float8,
    find_by_name,
    get_qmin_qmax_for_qType,
    get_qrange_for_qType,
    load_model_with_shape_infer,
    model_has_infer_metadata,
    ms_domain,
    normalize_axis,
    quantize_data,
    quantize_nparray,
    quantize_onnx_initializer,
    save_and_reload_model_with_shape_infer,
    snap_zero_point_to_uint8,
    tensor_proto_to_array,
)
from bitwright.compat.onnxruntime.ranges import as_sketches
from bitwright.compat.onnxruntime.registry import CreateOpQuantizer
from bitwright.compat.onnxruntime.static import static_recipe
from bitwright.compat.onnxruntime.storage import store_parameters
from bitwright.compat.onnxruntime.tensors_data import TensorData
from bitwright.compat.options import RecipeParts
from bitwright.errors import NothingQuantizedError, RecipeError
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.compute import ON_CPU
from bitwright.jobs.modes import mode_of
from bitwright.plan import QuantPlan, TensorPlan
from bitwright.recipe import Recipe
from bitwright.support.notices import warn_user

__all__ = [
    "TENSOR_NAME_QUANT_SUFFIX",
    "BaseQuantizer",
    "CreateOpQuantizer",
    "ONNXModel",
    "ONNXQuantizer",
    "QDQQuantizer",
    "QuantType",
    "QuantizationMode",
    "QuantizationParams",
    "QuantizedValue",
    "QuantizedValueType",
    "TensorData",
    "add_infer_metadata",
    "attribute_to_kwarg",
    "compute_scale_zp",
    "compute_scale_zp_float8",
    "find_by_name",
    "get_qmin_qmax_for_qType",
    "get_qrange_for_qType",
    "load_model_with_shape_infer",
    "model_has_infer_metadata",
    "ms_domain",
    "quantize_data",
    "quantize_nparray",
    "quantize_onnx_initializer",
    "save_and_reload_model_with_shape_infer",
    "snap_zero_point_to_uint8",
    "tensor_proto_to_array",
]

Names = Sequence[str] | None
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)


class _Quantizer(BaseQuantizer):
    """A quantizer that plans the whole model from the given ranges."""

    recipe: Recipe
    plan: QuantPlan | None = None

    @raises_builtins()
    def quantize_model(self) -> onnx.ModelProto:
        """Return the quantized model, which is in `model` from then on; `plan` says why."""
        if not self.op_types_to_quantize:
            warn_user("the model stays as it is: op_types_to_quantize is empty.")
            return self.model.model
        ranges = Calibration(sketches=as_sketches(self.tensors_range))
        run = mode_of(self.recipe).quantize
        try:
            result = run(self.model.model, self.recipe, ranges, None, ON_CPU)
        except NothingQuantizedError as error:
            warn_user(f"the model stays as it is: {error}")
            return self.model.model
        store_parameters(result.model, result.plan)
        self.plan, self.model = result.plan, ONNXModel(result.to_proto())
        return self.model.model

    def _planned(self, tensor_name: str) -> TensorPlan | None:
        """Return what was planned for a tensor, or None, as before the model is quantized."""
        tensors = self.plan.tensors.values() if self.plan is not None else ()
        return next((plan for plan in tensors if plan.tensor == tensor_name), None)


class QDQQuantizer(_Quantizer):
    """Q/DQ pairs around the ops of a model, from ranges such as a calibrator gives.

    >>> import bitwright
    >>> from bitwright.compat.onnxruntime import QuantType, create_calibrator
    >>> demo = bitwright.load_demo()
    >>> calibrator = create_calibrator(demo.model_path)
    >>> calibrator.collect_data(demo.calibration[:8])
    >>> types = QuantType.QInt8, QuantType.QUInt8
    >>> quantizer = QDQQuantizer(demo.model_path, True, False, *types, calibrator.compute_data())
    >>> bitwright.inspect(quantizer.quantize_model()).is_quantized
    True
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
        parts = _parts(extra_options, per_channel, reduce_range)
        parts.choose_nodes(op_types_to_quantize, nodes_to_quantize, nodes_to_exclude)
        types = activation_qType, weight_qType
        self.recipe = static_recipe(parts, QuantFormat.QDQ, *types)
        super().__init__(
            model,
            per_channel,
            reduce_range,
            weight_qType,
            activation_qType,
            tensors_range,
            nodes_to_quantize,
            nodes_to_exclude,
            op_types_to_quantize,
            extra_options,
        )

    def is_tensor_quantized(self, tensor_name: str) -> bool:
        """Return whether a tensor has a pair, after `quantize_model`."""
        return self._planned(tensor_name) is not None

    def is_tensor_per_channel(
        self, tensor_name: str, default_axis: int, op_type: str | None = None
    ) -> tuple[bool, int | None]:
        """Return whether a weight has a scale for each channel, and along which axis."""
        weight, overrides = self.initializers.get(tensor_name), self.tensor_quant_overrides
        if weight is None or overrides.has_per_tensor_overrides(tensor_name):
            return False, None
        axes = read_channel_axes("", self.extra_options.get("QDQOpTypePerChannelSupportToAxis", {}))
        axis = axes.get(op_type or "", default_axis)
        if overrides.has_per_channel_overrides(tensor_name):
            axis = overrides[tensor_name][0]["axis"]
        elif not self.per_channel:
            return False, None
        valid, normal = normalize_axis(axis, len(weight.dims))
        return (True, normal) if valid else (False, None)

    def calc_quant_params(
        self, tensor_data: TensorData, quant_overrides: Mapping[str, Any]
    ) -> QuantizationParams:
        """Return the parameters of an activation with a range."""
        given = quant_overrides.get("quant_type", self.activation_qType)
        kind = as_quant_type(given, "quantization type").tensor_type
        symmetric = quant_overrides.get("symmetric", self.is_activation_symmetric)
        if {"scale", "zero_point"} <= quant_overrides.keys():
            zero, scale = quant_overrides["zero_point"], quant_overrides["scale"]
        elif kind in FLOAT8_TYPES:
            zero, scale = compute_scale_zp_float8(kind, tensor_data.avg_std[1])
        else:
            low, high = tensor_data.range_value
            low, high = quant_overrides.get("rmin", low), quant_overrides.get("rmax", high)
            reduce_range = quant_overrides.get("reduce_range", False)
            qmin, qmax = get_qmin_qmax_for_qType(kind, reduce_range, symmetric)
            restricted = self.extra_options.get("ActivationRestrictedAsymmetric", False)
            if restricted and kind == onnx.TensorProto.UINT8 and not symmetric:
                zero, scale = snap_zero_point_to_uint8(
                    low, high, int(qmin), int(qmax), min_real_range=self.min_real_range
                )
            else:
                zero, scale = compute_scale_zp(
                    low, high, qmin, qmax, symmetric, self.min_real_range
                )
        zero, scale = np.asarray(zero).squeeze(), np.asarray(scale).squeeze()
        return QuantizationParams(zero_point=zero, scale=scale, quant_type=kind)

    def calc_graph_quant_params(self) -> dict[str, QDQTensorQuantParams]:
        """Return the parameters of all activations with a range."""
        self.adjust_tensor_ranges()
        found = {}
        for name, data in (self.tensors_range or {}).items():
            entry = self.tensor_quant_overrides.get_per_tensor_overrides(name, {}) or {}
            converted = entry.get("convert")
            found[name] = QDQTensorQuantParams(
                self.calc_quant_params(data, entry),
                self.calc_quant_params(data, converted) if converted else None,
                converted.get("recv_nodes") if converted else None,
            )
        return found

    quantize_activation_tensor = refused("quantize_activation_tensor")
    quantize_bias_static = refused("quantize_bias_static")
    quantize_bias_tensor = refused("quantize_bias_tensor")
    quantize_output_same_as_input = refused("quantize_output_same_as_input")
    quantize_weight_tensor = refused("quantize_weight_tensor")
    quantize_weight_tensor_per_channel = refused("quantize_weight_tensor_per_channel")
    remove_node = refused("remove_node")
    remove_nodes = refused("remove_nodes")
    try_replacing_upstream_output = refused("try_replacing_upstream_output")


class ONNXQuantizer(_Quantizer):
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
        parts = _parts(extra_options, per_channel, reduce_range)
        op_types = op_types_to_quantize if static else dynamic_op_types(op_types_to_quantize)
        parts.choose_nodes(op_types, nodes_to_quantize, nodes_to_exclude)
        types = activation_qType, weight_qType
        self.mode, self.static = wanted, static
        if static:
            self.recipe = static_recipe(parts, QuantFormat.QOperator, *types)
        else:
            # Only quantize_dynamic leaves products of two activations float by default.
            parts.select.setdefault("constant_weights_only", False)
            self.recipe = dynamic_recipe(parts, types[1])
        super().__init__(
            model,
            per_channel,
            reduce_range,
            weight_qType,
            activation_qType,
            tensors_range,
            nodes_to_quantize,
            nodes_to_exclude,
            op_types_to_quantize,
            extra_options,
        )

    def has_QDQ_nodes(self) -> bool:  # noqa: N802
        """Return whether the model has quantizers or dequantizers."""
        kinds = {node.op_type for node in self.model.nodes()}
        return not kinds.isdisjoint((QUANT_OP_NAME, DEQUANT_OP_NAME))

    def find_initializer_in_path(self, initializer_name: str) -> bool:
        """Return whether a tensor is a constant of the model."""
        return self.model.get_initializer(initializer_name) is not None

    def contains_tensor(self, tensor_name: str) -> bool:
        """Return whether the model has a tensor of this name that is not a constant."""
        made = (name for node in self.model.nodes() for name in node.output)
        return tensor_name in {*self.value_infos, *made} - self.initializers.keys()

    def get_tensor_type(self, tensor_name: str, mandatory: bool = False) -> int | None:
        """Return the element type of a tensor, or None; `mandatory` makes that an error."""
        weight = self.initializers.get(tensor_name)
        info = self.value_infos.get(tensor_name)
        kind = weight.data_type if weight is not None else 0
        if info is not None:
            kind = kind or info.type.tensor_type.elem_type
        if not kind and mandatory:
            raise InvalidSettingError(
                f"the type of {tensor_name!r} is not known; set DefaultTensorType in extra_options."
            )
        return kind or None

    def is_float_tensor(self, tensor_name: str) -> bool:
        """Return whether a tensor holds floats."""
        return self.get_tensor_type(tensor_name) in _FLOATS

    def find_quantized_value(self, input_name: str) -> QuantizedValue | None:
        """Return the names of a quantized tensor, after `quantize_model`, or None."""
        planned = self._planned(input_name)
        if planned is None:
            return None
        constant = self.is_input_a_initializer(input_name)
        return QuantizedValue(
            input_name,
            f"{input_name}{TENSOR_NAME_QUANT_SUFFIX}",
            f"{input_name}_scale",
            f"{input_name}_zero_point",
            QuantizedValueType.Initializer if constant else QuantizedValueType.Input,
            axis=planned.axis,
        )

    add_new_nodes = refused("add_new_nodes")
    adjust_single_weight_scale_if_needed = refused("adjust_single_weight_scale_if_needed")
    calculate_quantization_params = refused("calculate_quantization_params")
    quantize_activation = refused("quantize_activation")
    quantize_bias_static = refused("quantize_bias_static")
    quantize_initializer = refused("quantize_initializer")
    quantize_node_with_sub_graph = refused("quantize_node_with_sub_graph")
    quantize_subgraph = refused("quantize_subgraph")
    quantize_weight = refused("quantize_weight")
    quantize_weight_per_channel = refused("quantize_weight_per_channel")


def _parts(
    extra_options: Mapping[str, Any] | None, per_channel: bool, reduce_range: bool
) -> RecipeParts:
    parts = translate_options(extra_options)
    for section in ("calibration", "smooth"):
        for name in [*getattr(parts, section)]:
            parts.drop(f"{section}.{name}", "ranges are given here")
    parts.recipe.update(per_channel=per_channel, reduce_range=reduce_range)
    return parts
