"""A `QConfig` as the arguments of one quantization: its specs, steps and single layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import onnx

from bitwright.compat.onnxruntime.enums import CalibrationMethod, QuantFormat
from bitwright.compat.quark.algorithms import (
    AdaQuantConfig,
    AdaRoundConfig,
    AlgoConfig,
    AutoMixprecisionConfig,
    CLEConfig,
    GPTQConfig,
    SmoothQuantConfig,
    option_of,
)
from bitwright.compat.quark.config import QConfig, QuantizationConfig
from bitwright.compat.quark.specs import (
    CalibMethod,
    QLayerConfig,
    QuantGranularity,
    ScaleType,
    Spec,
)
from bitwright.compat.vai_q_onnx.enums import (
    ExtendedCalibrationMethod,
    LayerWiseMethod,
    PowerOfTwoMethod,
    VitisQuantFormat,
)
from bitwright.errors import RecipeError, did_you_mean
from bitwright.numerics.shared_exponent import SHARED_EXPONENT_FORMATS, Microscaling
from bitwright.numerics.types import INT8, INT16, INT32, UINT8
from bitwright.support.wording import warn_user

# Calibration with a float scale.
_METHODS = {
    **{CalibMethod[method.name]: method for method in CalibrationMethod},
    CalibMethod.LayerwisePercentile: LayerWiseMethod.LayerWisePercentile,
    CalibMethod.MinMSE: ExtendedCalibrationMethod.MinMSE,
}
_POWER_OF_TWO = {
    CalibMethod.MinMax: PowerOfTwoMethod.NonOverflow,
    CalibMethod.MinMSE: PowerOfTwoMethod.MinMSE,
}
LEARNING = AdaRoundConfig | AdaQuantConfig
_BIAS = {INT32: {"Int32Bias": True}, INT16: {"Int16Bias": True}, INT8: {}}


# Arguments of older configurations that are options of a `QConfig`.
_ARGUMENTS = {
    option_of(name): name
    for name in (
        *("input_nodes", "output_nodes", "nodes_to_quantize", "specific_tensor_precision"),
        *("op_types_to_quantize", "extra_op_types_to_quantize", "execution_providers"),
        *("optimize_model", "convert_fp16_to_fp32", "convert_nchw_to_nhwc", "enable_npu_cnn"),
        *("debug_mode", "crypto_mode", "print_summary"),
    )
}


def flatten(config: QConfig, model: onnx.ModelProto) -> QuantizationConfig:
    """Return the arguments that a configuration stands for, for the nodes of this model."""
    plain = copy(config)
    plain.extra_options = dict(config.extra_options)
    given = {
        name: plain.extra_options.pop(option)
        for option, name in _ARGUMENTS.items()
        if option in config.extra_options
    }
    return replace(_flatten(plain, model), **given)


def _flatten(config: QConfig, model: onnx.ModelProto) -> QuantizationConfig:
    activation, weight = _both(config.global_config, "global_config")
    if config.global_config.output_tensors not in (None, activation):
        warn_user(
            "output_tensors of global_config is ignored: what a layer writes has the type in which "
            "the next one reads it; give it to single layers."
        )
    in_powers = ScaleType.PowerOf2 in (activation.scale_type, weight.scale_type)
    if in_powers and activation.scale_type is not weight.scale_type:
        raise RecipeError(
            "power-of-two scales go with power-of-two scales: give input_tensors and weight the "
            "same scale_type."
        )
    fits_npu = activation.data_type in (INT8, UINT8) and weight.data_type is INT8
    known = activation.data_type.min_opset and weight.data_type.min_opset
    steps = {type(step): step for step in config.algo_config}
    if config.extra_options.get("UseMatMulNBits"):
        return _only_weights(config, model)
    gptq = steps.get(GPTQConfig)
    learning = [step for step in config.algo_config if isinstance(step, LEARNING)]
    if len(learning) > 1:
        raise RecipeError("algo_config has two steps that fine-tune; choose one of them.")
    return QuantizationConfig(
        calibrate_method=_method(activation),
        quant_format=QuantFormat.QDQ if known else VitisQuantFormat.QDQ,
        activation_type=activation.data_type,
        weight_type=weight.data_type,
        per_channel=_is_per_channel(weight) or (isinstance(gptq, GPTQConfig) and gptq.per_channel),
        enable_npu_cnn=in_powers and fits_npu,
        include_cle=CLEConfig in steps,
        include_sq=SmoothQuantConfig in steps,
        include_fast_ft=bool(learning),
        nodes_to_exclude=_excluded(config, model),
        subgraphs_to_exclude=[item for item in config.exclude if not isinstance(item, str)],
        use_external_data_format=config.use_external_data_format,
        extra_options={
            "ActivationSymmetric": activation.symmetric,
            "WeightSymmetric": weight.symmetric,
            **_scales(activation, weight),
            **_bias(config.global_config.bias, weight),
            **step_options(config.algo_config),
            **_overrides(config, model),
            **config.extra_options,
        },
    )


def _only_weights(config: QConfig, model: onnx.ModelProto) -> QuantizationConfig:
    """Return the arguments of a configuration with `UseMatMulNBits`: activations stay float."""
    options: dict[str, Any] = {}
    for step in config.algo_config:
        options |= step.weight_only_options() if isinstance(step, GPTQConfig) else step.options()
    for key, asked in config.extra_options.items():
        merged = isinstance(asked, Mapping) and key in options
        options[key] = {**options[key], **asked} if merged else asked
    return QuantizationConfig(
        include_cle=False,
        nodes_to_exclude=_excluded(config, model),
        subgraphs_to_exclude=[item for item in config.exclude if not isinstance(item, str)],
        use_external_data_format=config.use_external_data_format,
        extra_options=options,
    )


def _both(layer: QLayerConfig, where: str) -> tuple[Spec, Spec]:
    if layer.reads is None or layer.weight is None:
        raise RecipeError(f"{where} needs both input_tensors and weight.")
    if layer.reads.quant_granularity is not QuantGranularity.Tensor:
        raise RecipeError(f"{where}: activations have one scale a tensor.")
    return layer.reads, layer.weight


def _method(spec: Spec) -> Any:
    if spec.scale_type is not ScaleType.PowerOf2:
        return _METHODS[spec.calibration_method]
    if spec.calibration_method not in _POWER_OF_TWO:
        raise RecipeError(
            f"power-of-two scales are calibrated with MinMSE or MinMax, not "
            f"{spec.calibration_method.name}."
        )
    return _POWER_OF_TWO[spec.calibration_method]


def _is_per_channel(weight: Spec) -> bool:
    if weight.quant_granularity is QuantGranularity.Group:
        raise RecipeError("weights in groups are not supported here; set block_size in a recipe.")
    return weight.quant_granularity is QuantGranularity.Channel


def _scales(activation: Spec, weight: Spec) -> dict[str, Any]:
    if activation.scale_type is ScaleType.Int16:
        return {"Int16Scale": True}
    if isinstance(SHARED_EXPONENT_FORMATS.get(weight.data_type.name), Microscaling):
        return {"MXAttributes": {"rounding_mode": 2}}
    searched = weight.calibration_method is CalibMethod.MinMSE
    if searched and weight.scale_type is ScaleType.Float32:
        return {"WeightCalibrateMethod": "MinMSE"}
    return {}


def _bias(spec: Spec | None, weight: Spec) -> dict[str, Any]:
    like_weight = spec is not None and spec.data_type is weight.data_type
    if spec is None or (like_weight and not weight.data_type.is_integer):
        return {}  # a bias is stored like a weight of floats or blocks
    if spec.data_type not in _BIAS:
        raise RecipeError(f"a bias is int8, int16 or int32, not {spec.data_type}.")
    return _BIAS[spec.data_type]


def step_options(steps: Iterable[AlgoConfig]) -> dict[str, Any]:
    """Return the options of all steps; those that there are not are refused."""
    options: dict[str, Any] = {}
    for step in steps:
        options |= step.options()
    return options


def _excluded(config: QConfig, model: onnx.ModelProto) -> list[str]:
    names = [item for item in config.exclude if isinstance(item, str)]
    for op_type in config.layer_type_config.get(None, ()):
        names += [node.name for node in model.graph.node if node.op_type == op_type]
    return names


def _overrides(config: QConfig, model: onnx.ModelProto) -> dict[str, Any]:
    """Return overrides of the tensors that layers with specs of their own read."""
    chosen: dict[str, list[dict[str, Any]]] = {}
    for layer, names in _layers(config, model):
        for node in names:
            chosen |= _tensor_overrides(layer, node, model)
    return {"TensorQuantOverrides": chosen} if chosen else {}


def _layers(
    config: QConfig, model: onnx.ModelProto
) -> Iterable[tuple[QLayerConfig, Sequence[onnx.NodeProto]]]:
    """Yield layers with their nodes, those of single nodes last: they count more."""
    for by_type, op_types in config.layer_type_config.items():
        if by_type is not None:
            yield by_type, [node for node in model.graph.node if node.op_type in op_types]
    by_name = {node.name: node for node in model.graph.node}
    for step in config.algo_config:
        if isinstance(step, AutoMixprecisionConfig):
            candidates = {name: node.op_type for name, node in by_name.items()}
            for mixed, chosen in step.layers(candidates).items():
                yield mixed, [by_name[name] for name in chosen]
    for layer, names in config.specific_layer_config.items():
        if layer.bias is not None:
            warn_user("bias of a single layer is ignored: biases have the type of the whole model.")
        chosen = [node for name in names for node in _nodes_called(name, by_name)]
        yield layer, [by_name[name] for name in chosen]


def _nodes_called(name: str, nodes: Mapping[str, onnx.NodeProto]) -> list[str]:
    """Return the node of a name, or those that a pattern, which begins with ^, fits."""
    found = [each for each in nodes if name.startswith("^") and re.match(name, each)]
    if name not in nodes and not found:
        raise RecipeError(
            f"specific_layer_config: no node is called {name!r}.{did_you_mean(name, nodes)}"
        )
    return found or [name]


def _tensor_overrides(
    layer: QLayerConfig, node: onnx.NodeProto, model: onnx.ModelProto
) -> dict[str, list[dict[str, Any]]]:
    ranks = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    found: dict[str, list[dict[str, Any]]] = {}
    for name in filter(None, node.input):
        spec = layer.reads if name not in ranks else layer.weight if ranks[name] > 1 else None
        if spec is not None:
            found[name] = [{"quant_type": spec.data_type, "symmetric": spec.symmetric}]
    if (written := layer.output_tensors) is not None:
        setting = [{"quant_type": written.data_type, "symmetric": written.symmetric}]
        found |= {name: setting for name in node.output if name}
    return found
