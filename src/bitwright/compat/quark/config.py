"""Quark's configurations: `QuantizationConfig`, `QConfig`, their algorithms and presets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import Any

from bitwright.compat.onnxruntime.enums import CalibrationMethod, QuantFormat, QuantType
from bitwright.compat.quark.specs import QLayerConfig
from bitwright.compat.vai_q_onnx.enums import PowerOfTwoMethod, VitisQuantFormat
from bitwright.errors import RecipeError, did_you_mean
from bitwright.numerics.types import QTYPES
from bitwright.recipe.finetuning import LEARNING_OPS
from bitwright.recipe.named import why_no_preset

__all__ = [
    "PRESET_ARGUMENTS",
    "AdaQuantConfig",
    "AdaRoundConfig",
    "AlgoConfig",
    "BiasCorrectionConfig",
    "CLEConfig",
    "Config",
    "QConfig",
    "QuantizationConfig",
    "SmoothQuantConfig",
    "get_default_config",
]


@dataclass(kw_only=True)
class QuantizationConfig:
    """The arguments of one quantization, with Quark's defaults.

    >>> QuantizationConfig().include_cle
    True
    """

    calibrate_method: Any = CalibrationMethod.MinMax
    quant_format: Any = QuantFormat.QDQ
    activation_type: Any = QuantType.QInt8
    weight_type: Any = QuantType.QInt8
    input_nodes: Sequence[str] = ()
    output_nodes: Sequence[str] = ()
    op_types_to_quantize: Sequence[str] = ()
    extra_op_types_to_quantize: Sequence[str] = ()
    nodes_to_quantize: Sequence[str] = ()
    nodes_to_exclude: Sequence[str] = ()
    subgraphs_to_exclude: Sequence[Sequence[Sequence[str]]] = ()
    per_channel: bool = False
    reduce_range: bool = False
    optimize_model: bool = True
    use_dynamic_quant: bool = False
    use_external_data_format: bool = False
    execution_providers: Sequence[str] = ("CPUExecutionProvider",)
    enable_npu_cnn: bool = False
    enable_npu_transformer: bool = False
    convert_fp16_to_fp32: bool = False
    convert_nchw_to_nhwc: bool = False
    include_cle: bool = True
    include_sq: bool = False
    include_rotation: bool = False
    include_fast_ft: bool = False
    include_auto_mp: bool = False
    print_summary: bool = True
    extra_options: dict[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `quantize_static` that these are."""
        named = (f.name for f in fields(self) if f.name != "use_dynamic_quant")
        return {name: getattr(self, name) for name in named}


@dataclass
class Config:
    """The old outer configuration: one set of arguments for the whole model.

    >>> Config(global_quant_config=QuantizationConfig(per_channel=True)).global_quant_config
    ... # doctest: +ELLIPSIS
    QuantizationConfig(...per_channel=True...)
    """

    global_quant_config: QuantizationConfig


@dataclass(frozen=True, kw_only=True)
class AlgoConfig:
    """A step that makes a model easier to quantize."""


@dataclass(frozen=True, kw_only=True)
class CLEConfig(AlgoConfig):
    """Equalize the channels of consecutive weights.

    >>> CLEConfig(cle_steps=2).options()["CLESteps"]
    2
    """

    cle_balance_method: str = "max"
    cle_steps: int = 1
    cle_weight_threshold: float = 0.5
    cle_scale_append_bias: bool = True
    cle_scale_use_threshold: bool = True
    cle_total_layer_diff_threshold: float = 1.9e-7

    def options(self) -> dict[str, Any]:
        """Return the same as `extra_options`."""
        return {_as_key(f.name): getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, kw_only=True)
class BiasCorrectionConfig(AlgoConfig):
    """Shift biases by the mean error of their layers' outputs.

    >>> BiasCorrectionConfig().options()
    {'BiasCorrection': True}
    """

    def options(self) -> dict[str, Any]:
        """Return the same as `extra_options`."""
        return {"BiasCorrection": True}


@dataclass(frozen=True, kw_only=True)
class SmoothQuantConfig(AlgoConfig):
    """Move outliers of activations into the weights that multiply them.

    >>> SmoothQuantConfig(alpha=0.7).options()
    {'SmoothAlpha': 0.7}
    """

    alpha: float = 0.5

    def options(self) -> dict[str, Any]:
        """Return the same as `extra_options`."""
        return {"SmoothAlpha": self.alpha}


@dataclass(frozen=True, kw_only=True)
class _FineTuningConfig(AlgoConfig):
    """What both ways of fine-tuning can be told; every argument is passed on, or refused."""

    optim_device: str = "cpu"
    infer_device: str = "cpu"
    fixed_seed: int = 1705472343
    data_size: int = 1000000000
    batch_size: int = 1
    num_batches: int = 1
    num_iterations: int = 1000
    learning_rate: float = 0.1
    early_stop: bool = False
    output_index: int = 0
    lr_adjust: tuple[float, float] | None = None
    target_op_type: Sequence[str] = LEARNING_OPS
    selective_update: bool | None = None
    """None: keep what helps on samples that were not learned from, which costs nothing here."""
    update_bias: bool = False
    output_qdq: bool = False
    drop_ratio: float = 1.0
    mem_opt_level: int = 1
    cache_dir: str | None = None
    log_period: int | None = None
    ref_model_path: str | None = None
    dynamic_batch: bool = False
    parallel: bool = False
    reg_param: float | None = None
    beta_range: tuple[float, float] | None = None
    warm_start: float | None = None
    select_max_mem_layer: bool = False
    num_workers: int = 1
    pin_memory: bool = False
    use_gds: bool = False

    def options(self) -> dict[str, Any]:
        """Return the same as `extra_options`."""
        given = {_as_key(f.name): getattr(self, f.name) for f in fields(self)}
        asked = {key: value for key, value in given.items() if value is not None}
        algorithm = "adaquant" if isinstance(self, AdaQuantConfig) else "adaround"
        return {"FastFinetune": {"OptimAlgorithm": algorithm, **asked}}


def _as_key(name: str) -> str:
    """Return the option that an argument stands for: output_qdq -> OutputQDQ."""
    whole = {"cle": "CLE", "lr": "LR", "qdq": "QDQ", "gds": "GDS"}
    return "".join(whole.get(word, word.capitalize()) for word in name.split("_"))


@dataclass(frozen=True, kw_only=True)
class AdaRoundConfig(_FineTuningConfig):
    """Learn which weights to round up and which down.

    >>> AdaRoundConfig(reg_param=0.02).options()["FastFinetune"]["RegParam"]
    0.02
    """


@dataclass(frozen=True, kw_only=True)
class AdaQuantConfig(_FineTuningConfig):
    """Learn float weights that round well, and biases with `update_bias`.

    >>> AdaQuantConfig().options()["FastFinetune"]["NumIterations"]
    3000
    """

    num_iterations: int = 3000
    learning_rate: float = 1e-5


@dataclass(kw_only=True)
class QConfig:
    """The new configuration: specs for the model, for single layers and for types of layers.

    >>> from bitwright.compat.quark import Int8Spec, QLayerConfig, UInt8Spec
    >>> layer = QLayerConfig(input_tensors=UInt8Spec(), weight=Int8Spec())
    >>> QConfig(global_config=layer, exclude=["head"]).exclude
    ['head']
    """

    global_config: QLayerConfig
    specific_layer_config: Mapping[QLayerConfig, Sequence[str]] = field(default_factory=dict)
    layer_type_config: Mapping[QLayerConfig | None, Sequence[str]] = field(default_factory=dict)
    exclude: Sequence[Any] = ()
    algo_config: Sequence[AlgoConfig] = ()
    use_external_data_format: bool = False
    extra_options: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def get_default_config(name: str) -> Config:
        """Return the preset of this name.

        >>> QConfig.get_default_config("XINT8").global_quant_config.enable_npu_cnn
        True
        """
        return Config(global_quant_config=get_default_config(name))


def get_default_config(name: str) -> QuantizationConfig:
    """Return the arguments of the preset of this name, to change or to use.

    >>> get_default_config("A8W8").extra_options
    {'ActivationSymmetric': True}
    >>> get_default_config("BF16_ADAQUANT")
    Traceback (most recent call last):
    bitwright.errors.RecipeError: there is no preset 'BF16_ADAQUANT': only integer weights learn.
    """
    arguments = PRESET_ARGUMENTS.get(name.upper())
    if arguments is None:
        reason = why_no_preset(name.lower().replace("_", "-"))
        if reason is not None:
            raise RecipeError(f"there is no preset {name!r}: {reason}.")
        raise RecipeError(f"unknown preset {name!r}.{did_you_mean(name, PRESET_ARGUMENTS)}")
    options = deepcopy(arguments.get("extra_options", {}))
    return QuantizationConfig(**{**arguments, "extra_options": options})


# The presets as arguments; `bitwright.recipe` has the same as recipes -----------------------------

_SYMMETRIC = {"ActivationSymmetric": True}
_NPU_CNN: dict[str, Any] = {
    "calibrate_method": PowerOfTwoMethod.MinMSE,
    "activation_type": QuantType.QUInt8,
    "enable_npu_cnn": True,
    "extra_options": _SYMMETRIC,
}
_INT16: dict[str, Any] = {
    "activation_type": QuantType.QInt16,
    "weight_type": QuantType.QInt16,
    "include_cle": False,
    "extra_options": _SYMMETRIC,
}
_FOUR_BITS = {
    "UseMatMulNBits": True,
    "MatMulNBitsParams": {"GroupSize": 128, "Symmetric": True, "Bits": 4, "AccuracyLevel": 1},
}


def _integers(activation: QuantType, weight: QuantType, **options: Any) -> dict[str, Any]:
    return {
        "calibrate_method": CalibrationMethod.MinMax,
        "activation_type": activation,
        "weight_type": weight,
        "extra_options": options,
    }


def _floats(qtype: str) -> dict[str, Any]:
    return {
        "quant_format": VitisQuantFormat.QDQ,
        "activation_type": QTYPES[qtype],
        "weight_type": QTYPES[qtype],
        "include_cle": False,
    }


_BLOCKS = "bfp16 mxint8 mxfp8e5m2 mxfp8e4m3 mxfp6e3m2 mxfp6e2m3 mxfp4e2m1 mx4 mx6 mx9".split()


def _fine_tuned(arguments: dict[str, Any], method: str) -> dict[str, Any]:
    learning = {
        "OptimAlgorithm": method,
        "DataSize": 1000,
        "BatchSize": 2,
        "NumIterations": 1000,
        "EarlyStop": True,
    }
    options = {**arguments.get("extra_options", {}), "FastFinetune": learning}
    return {**arguments, "include_fast_ft": True, "extra_options": options}


def _accurate(activation: QuantType, weight: QuantType) -> dict[str, Any]:
    plain = _integers(activation, weight, Percentile=99.9999)
    plain["calibrate_method"] = CalibrationMethod.Percentile
    return _fine_tuned(plain, "adaround")


_PLAIN: dict[str, dict[str, Any]] = {
    "XINT8": _NPU_CNN,
    "INT8_CNN_DEFAULT": {**_NPU_CNN, "include_cle": False},
    "INT8_TRANSFORMER_DEFAULT": {"include_cle": False},
    "A8W8": _integers(QuantType.QInt8, QuantType.QInt8, ActivationSymmetric=True),
    "A16W8": _integers(QuantType.QInt16, QuantType.QInt8, ActivationSymmetric=True),
    "S8S8_AAWS": _integers(QuantType.QInt8, QuantType.QInt8),
    "U8S8_AAWS": _integers(QuantType.QUInt8, QuantType.QInt8),
    "U8U8_AAWA": _integers(QuantType.QUInt8, QuantType.QUInt8),
    "S16S8_ASWS": _integers(QuantType.QInt16, QuantType.QInt8, ActivationSymmetric=True),
    "U16S8_AAWS": _integers(QuantType.QUInt16, QuantType.QInt8),
    "INT16_CNN_DEFAULT": {**_INT16, "calibrate_method": PowerOfTwoMethod.MinMSE},
    "INT16_TRANSFORMER_DEFAULT": _INT16,
    "UINT8_DYNAMIC_QUANT": {"use_dynamic_quant": True, "weight_type": QuantType.QUInt8},
    "MATMUL_NBITS": {"extra_options": _FOUR_BITS},
    "FP16": _floats("float16"),
    "BF16": _floats("bfloat16"),
    **{name.upper(): _floats(name) for name in _BLOCKS},
}

_INTEGERS = ("XINT8", "A8W8", "A16W8", "S8S8_AAWS", "U8S8_AAWS", "S16S8_ASWS", "U16S8_AAWS")

_ACCURATE = {
    "INT8_CNN_ACCURATE": _accurate(QuantType.QUInt8, QuantType.QInt8),
    "INT16_CNN_ACCURATE": _accurate(QuantType.QUInt16, QuantType.QInt16),
}

PRESET_ARGUMENTS: dict[str, dict[str, Any]] = {
    **_PLAIN,
    **{
        f"{name}_{method.upper()}": _fine_tuned(_PLAIN[name], method)
        for name in _INTEGERS
        for method in ("adaround", "adaquant")
    },
    **_ACCURATE,
    **{
        name.replace("CNN", "TRANSFORMER"): {**arguments, "enable_npu_transformer": True}
        for name, arguments in _ACCURATE.items()
    },
}
