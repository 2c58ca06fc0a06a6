"""Configurations, and `quantize` that takes one, as in `onnxruntime.quantization.quantize`.

The package has a function of this module's name, as ONNX Runtime's has:
`from bitwright.compat.onnxruntime import quantize` is the function, and
`from bitwright.compat.onnxruntime.quantize import ...` finds the module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from bitwright.compat.onnxruntime.dynamic import quantize_dynamic
from bitwright.compat.onnxruntime.enums import (
    CalibrationMethod,
    QuantFormat,
    QuantType,
    as_member,
    as_quant_type,
)
from bitwright.compat.onnxruntime.errors import raises_builtins
from bitwright.compat.onnxruntime.matmul_nbits_quantizer import MatMulNBitsQuantizer
from bitwright.compat.onnxruntime.nbits_configs import WeightOnlyQuantConfig
from bitwright.compat.onnxruntime.peer import hand_on, peer
from bitwright.compat.onnxruntime.static import quantize_static
from bitwright.compat.onnxruntime.static_recipe import check_types
from bitwright.compat.options import ignore_unknown
from bitwright.graph import file_size

__getattr__, __dir__ = hand_on(__name__)

Names = Sequence[str] | None
NodeTest = Callable[[onnx.ModelProto, onnx.NodeProto], bool]


@raises_builtins()
def quantize(
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    quant_config: Any,
) -> None:
    """Quantize a model as a configuration says.

    >>> import tempfile, bitwright
    >>> from bitwright.compat import onnxruntime
    >>> demo = bitwright.load_demo()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     config = onnxruntime.StaticQuantConfig(demo.calibration[:8], per_channel=True)
    ...     quantize(demo.model_path, f"{folder}/q.onnx", config)
    ...     bitwright.inspect(f"{folder}/q.onnx").is_quantized
    True
    """
    if isinstance(quant_config, WeightOnlyQuantConfig):
        quantizer = MatMulNBitsQuantizer(model_input, algo_config=quant_config)
        quantizer.process()
        quantizer.model.save_model_to_file(model_output, use_external_data_format=True)
        return
    configs = peer("quantize")
    is_static = isinstance(quant_config, configs.StaticQuantConfig)
    if not is_static and not isinstance(quant_config, configs.DynamicQuantConfig):
        raise TypeError(
            "Invalid quantization config type: a configuration is a StaticQuantConfig, a "
            "DynamicQuantConfig or a WeightOnlyQuantConfig, "
            f"not a {type(quant_config).__name__}."
        )
    arguments = dict(vars(quant_config))
    if is_static:
        quantize_static(model_input, model_output, **arguments)
    else:
        arguments.pop("activation_type", None)  # measured at run time, whatever it was set to
        quantize_dynamic(model_input, model_output, **arguments)


# Names of the calibrator's options -> the same in extra_options.
_CALIBRATION_OPTIONS = {
    "symmetric": "CalibTensorRangeSymmetric",
    "moving_average": "CalibMovingAverage",
    "averaging_constant": "CalibMovingAverageConstant",
    "max_intermediate_outputs": "CalibMaxIntermediateOutputs",
    "percentile": "CalibPercentile",
}
_NOT_COMPUTED = {"Cast", "DequantizeLinear", "QuantizeLinear"}
_FOUR_BIT = {QuantType.QInt4, QuantType.QUInt4}
_SIXTEEN_BIT = {QuantType.QInt16, QuantType.QUInt16}


@raises_builtins()
def get_qdq_config(
    model_input: str | Path | onnx.ModelProto,
    calibration_data_reader: Any,
    calibrate_method: Any = CalibrationMethod.MinMax,
    calibrate_args: Mapping[str, Any] | None = None,
    activation_type: Any = QuantType.QUInt8,
    weight_type: Any = QuantType.QInt8,
    activation_symmetric: bool = False,
    weight_symmetric: bool | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    keep_removable_activations: bool = False,
    min_real_range: float | None = None,
    tensor_quant_overrides: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    calibration_providers: Names = None,
    op_types_to_quantize: Names = None,
    nodes_to_exclude: Sequence[str] | NodeTest | None = None,
    extra_options: Mapping[str, Any] | None = None,
) -> Any:
    """Return a configuration that quantizes every operator of a model, in QDQ format.

    `nodes_to_exclude` is a list of names, or a function of (model, node) that says which.

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> config = get_qdq_config(demo.model_path, demo.calibration[:8])
    >>> config.extra_options["ForceQuantizeNoInputCheck"], "Conv" in config.op_types_to_quantize
    (True, True)
    """
    model = model_input
    if not isinstance(model, onnx.ModelProto):
        model = onnx.load(str(model_input), load_external_data=False)
    names = set() if callable(nodes_to_exclude) else set(nodes_to_exclude or ())
    chosen = op_types_to_quantize
    nodes = [node for node in model.graph.node if not chosen or node.op_type in chosen]
    if callable(nodes_to_exclude):
        names = {node.name for node in nodes if nodes_to_exclude(model, node)}
    found = sorted({node.op_type for node in nodes if node.name not in names} - _NOT_COMPUTED)
    calibration = ignore_unknown(calibrate_args or {}, _CALIBRATION_OPTIONS, " in calibrate_args")
    options: dict[str, Any] = {
        "MinimumRealRange": min_real_range,
        "QDQKeepRemovableActivations": keep_removable_activations,
        "ActivationSymmetric": activation_symmetric,
        "WeightSymmetric": weight_symmetric,
        "ForceQuantizeNoInputCheck": True,
        "TensorQuantOverrides": dict(tensor_quant_overrides or {}),
        **{_CALIBRATION_OPTIONS[name]: value for name, value in calibration.items()},
    }
    types = {
        as_quant_type(named, "quantization type")
        for named in (activation_type, weight_type, *_override_types(options))
    }
    # Below opset 21 only the contrib operators take 4 bits; 16 bits raise the opset anyway.
    if (
        peer("quant_utils").get_opset_version(model) < 21
        and types & _FOUR_BIT
        and not types & _SIXTEEN_BIT
    ):
        options["UseQDQContribOps"] = True
    uses_external = onnx.external_data_helper.uses_external_data
    return peer("quantize").StaticQuantConfig(
        calibration_data_reader,
        calibrate_method=calibrate_method,
        quant_format=QuantFormat.QDQ,
        activation_type=activation_type,
        weight_type=weight_type,
        op_types_to_quantize=op_types_to_quantize or found,
        nodes_to_exclude=sorted(names),
        per_channel=per_channel,
        reduce_range=reduce_range,
        use_external_data_format=any(uses_external(t) for t in model.graph.initializer)
        or file_size(model) >= peer("quant_utils").MODEL_SIZE_THRESHOLD,
        calibration_providers=calibration_providers,
        extra_options={**options, **(extra_options or {})},
    )


@raises_builtins()
def check_static_quant_arguments(quant_format: Any, activation_type: Any, weight_type: Any) -> None:
    """Refuse types that do not go together, or not with the format.

    >>> check_static_quant_arguments(QuantFormat.QDQ, QuantType.QInt8, QuantType.QUInt8)
    Traceback (most recent call last):
    bitwright.compat.onnxruntime.errors.InvalidSettingError: ONNXRuntime quantization doesn't \
support data format:activation_type=QuantType.QInt8, weight_type=QuantType.QUInt8; use int8 \
weights, or uint8 activations.
    """
    written = as_member(QuantFormat, quant_format, "quantization format")
    check_types(written, activation_type, weight_type)


def _override_types(options: Mapping[str, Any]) -> list[Any]:
    entries = [entry for many in options["TensorQuantOverrides"].values() for entry in many]
    entries += [entry["convert"] for entry in entries if entry.get("convert")]
    return [entry["quant_type"] for entry in entries if "quant_type" in entry]
