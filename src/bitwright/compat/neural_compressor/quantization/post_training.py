"""Static, dynamic and smoothed models by configurations of ONNX Neural Compressor."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import onnx

from bitwright.api import preprocess
from bitwright.compat.model_wrapper import ONNXModel
from bitwright.compat.neural_compressor.inputs import Loader, count_inputs, source_of
from bitwright.compat.neural_compressor.products import product_types
from bitwright.compat.neural_compressor.quantization.weight_only_configs import BaseConfig
from bitwright.compat.neural_compressor.quantization.within_loss import TUNED_FOR_CPU
from bitwright.compat.onnxruntime.dynamic import quantize_dynamic
from bitwright.compat.onnxruntime.enums import CalibrationMethod, QuantFormat, QuantType
from bitwright.compat.onnxruntime.registries import default_op_types
from bitwright.compat.onnxruntime.static import quantize_static
from bitwright.errors import RecipeError
from bitwright.support.wording import warn_user

# Of the operators that ONNX Runtime's tool quantizes by default, those that stay float there.
_FLOAT = "BatchNormalization ConvTranspose CumSum InstanceNormalization LayerNormalization Softmax"
_FLOAT_STATIC = {*_FLOAT.split(), "TopK", "Where"}
_FLOAT_IN_PAIRS = _FLOAT_STATIC | {"Add", "ArgMax", "Mul"}


@dataclass(kw_only=True)
class _PostTrainingConfig(BaseConfig):
    """What both have that quantize activations."""

    expanded: ClassVar[Sequence[str]] = (
        "weight_type",
        "activation_type",
        "calibrate_method",
        "per_channel",
        "reduce_range",
        "quant_last_matmul",
        "alpha",
    )
    op_types_to_quantize: Any = None
    nodes_to_quantize: Any = None
    nodes_to_exclude: Any = None
    per_channel: Any = False
    reduce_range: Any = False
    use_external_data_format: Any = False
    extra_options: Any = None
    quant_last_matmul: Any = True
    execution_provider: Any = None
    white_list: Any = "*"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.op_types_to_quantize is None:
            self.op_types_to_quantize = self._usual_types()

    def _usual_types(self) -> list[str]:
        return [op_type for op_type in default_op_types(None) if op_type != "Transpose"]

    def set_local(self, operator_name: str, config: Any) -> Any:
        """Refuse what has no form in ONNX Runtime's tool either."""
        raise RecipeError(
            f"settings of {operator_name!r} alone have no form here; give bitwright.quantize a "
            "recipe with overrides."
        )

    def quantize(self, model: Any, data: Any = None, samples: int = -1) -> ONNXModel:
        """Return a model quantized by it."""
        with tempfile.TemporaryDirectory() as folder:
            self.write(model, Path(folder, "model.onnx"), data)
            return ONNXModel(onnx.load(Path(folder, "model.onnx")))

    def write(
        self, model: Any, output: str | Path, data: Any = None, *, clean: bool = True
    ) -> None:
        """Quantize a model, with batch norms folded first, and write it."""
        with tempfile.TemporaryDirectory() as folder:
            source = source_of(model)
            if clean:
                source = Path(folder, "clean.onnx")
                preprocess(source_of(model), source)
            self._run(source, output, self._arguments(source), data)

    def _run(self, model: Any, output: str | Path, given: dict[str, Any], data: Any) -> None:
        quantize_dynamic(model, output, **given)

    def _arguments(self, model: Any) -> dict[str, Any]:
        """Return the arguments of ONNX Runtime's function of the same purpose."""
        given = self.get_init_args()
        provider = given.pop("execution_provider")
        if provider not in (None, "CPUExecutionProvider"):
            warn_user(f"execution_provider {provider!r} is ignored: {TUNED_FOR_CPU}.")
        if not given.pop("quant_last_matmul") and (products := product_types(model)):
            given["nodes_to_exclude"] = [*(given["nodes_to_exclude"] or ()), [*products][-1]]
        return given


@dataclass
class DynamicQuantConfig(_PostTrainingConfig):
    """Quantized weights, and activations that are quantized at run time.

    >>> "MatMul" in DynamicQuantConfig().op_types_to_quantize
    True
    """

    name: ClassVar[str] = "dynamic_quant"
    weight_type: Any = QuantType.QInt8


@dataclass
class StaticQuantConfig(_PostTrainingConfig):
    """Quantized weights and activations, with the arguments of ONNX Runtime's class of this name.

    >>> [one.per_channel for one in StaticQuantConfig(per_channel=[True, False]).expand()]
    [True, False]
    """

    name: ClassVar[str] = "static_quant"
    calibration_data_reader: Any = None
    calibrate_method: Any = CalibrationMethod.MinMax
    quant_format: Any = QuantFormat.QOperator
    activation_type: Any = QuantType.QUInt8
    weight_type: Any = QuantType.QInt8
    calibration_sampling_size: Any = field(default=100, kw_only=True)

    def _usual_types(self) -> list[str]:
        pairs = self.quant_format == QuantFormat.QDQ
        known = default_op_types(QuantFormat.QDQ if pairs else QuantFormat.QOperator)
        left_out = _FLOAT_IN_PAIRS if pairs else _FLOAT_STATIC
        return [op_type for op_type in known if op_type not in left_out]

    def _run(self, model: Any, output: str | Path, given: dict[str, Any], data: Any) -> None:
        reader = data if data is not None else given["calibration_data_reader"]
        most = given.pop("calibration_sampling_size")
        if reader is not None:
            given["calibration_data_reader"] = Loader(reader, most, count_inputs(model))
        quantize_static(model, output, **given)


@dataclass
class SmoothQuantConfig(StaticQuantConfig):
    """A static model whose activations were smoothed before.

    >>> SmoothQuantConfig(alpha=0.6).extra_options
    {'SmoothQuant': True, 'SmoothQuantAlpha': 0.6, 'SmoothQuantFolding': True}
    """

    name: ClassVar[str] = "smooth_quant"
    alpha: Any = field(default=0.5, kw_only=True)
    folding: Any = field(default=True, kw_only=True)
    op_types: Any = field(default=None, kw_only=True)
    calib_iter: Any = field(default=None, kw_only=True)
    scales_per_op: Any = field(default=None, kw_only=True)
    auto_alpha_args: Any = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("op_types", "calib_iter", "scales_per_op", "auto_alpha_args"):
            if getattr(self, name) is not None:
                warn_user(f"{name} of SmoothQuantConfig is ignored: all products are smoothed.")
        smooth = {"SmoothQuantAlpha": self.alpha, "SmoothQuantFolding": self.folding}
        self.extra_options = {**(self.extra_options or {}), "SmoothQuant": True, **smooth}

    def _arguments(self, model: Any) -> dict[str, Any]:
        known = {one.name for one in fields(StaticQuantConfig)}
        return {name: one for name, one in super()._arguments(model).items() if name in known}


def quantize(
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    quant_config: BaseConfig,
    optimization_level: Any = None,
) -> None:
    """Quantize a model as a configuration says, and write it.

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     config = StaticQuantConfig([{"image": one[None]} for one in demo.calibration[:8]])
    ...     quantize(demo.model_path, f"{folder}/q.onnx", config)
    ...     bitwright.inspect(f"{folder}/q.onnx").is_quantized
    True
    """
    if not isinstance(quant_config, _PostTrainingConfig):
        raise TypeError(
            "Invalid quantization config type, it must be either StaticQuantConfig or "
            "DynamicQuantConfig. Weights alone are quantized by matmul_nbits_quantizer."
        )
    level = getattr(optimization_level, "name", "ORT_ENABLE_BASIC")
    if level not in ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC"):
        warn_user(f"optimization_level {level} is taken as ORT_ENABLE_BASIC: {TUNED_FOR_CPU}.")
    quant_config.write(model_input, model_output, clean=level != "ORT_DISABLE_ALL")


def rtn_quantize_entry(
    model: Any, quant_config: BaseConfig, calibration_data_reader: Any = None, **options: Any
) -> onnx.ModelProto:
    """Return a model quantized as any configuration says, and write it to `model_output`."""
    made = quant_config.quantize(model, calibration_data_reader)
    if options.get("model_output") is not None:
        made.save(options["model_output"])
    return made.model


awq_quantize_entry = gptq_quantize_entry = rtn_quantize_entry
static_quantize_entry = smooth_quant_entry = dynamic_quantize_entry = rtn_quantize_entry
