"""Quark's configurations: `QuantizationConfig`, `QConfig`, their algorithms and presets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import Any

from bitwright.compat.onnxruntime.enums import CalibrationMethod, QuantFormat, QuantType
from bitwright.compat.onnxruntime.errors import InvalidSettingError
from bitwright.compat.quark.algorithms import AlgoConfig
from bitwright.compat.quark.serialization import config_from_dict, config_to_dict
from bitwright.compat.quark.specs import QLayerConfig
from bitwright.compat.vai_q_onnx.enums import PowerOfTwoMethod, VitisQuantFormat
from bitwright.errors import did_you_mean
from bitwright.numerics.shared_exponent import SHARED_EXPONENT_FORMATS, BlockFloat
from bitwright.numerics.types import QTYPES
from bitwright.recipe.named import why_no_preset

__all__ = [
    "PRESET_ARGUMENTS",
    "Config",
    "QConfig",
    "QuantizationConfig",
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
    enable_dpu: bool = False
    specific_tensor_precision: bool = False
    convert_fp16_to_fp32: bool = False
    convert_nchw_to_nhwc: bool = False
    include_cle: bool = True
    include_sq: bool = False
    include_rotation: bool = False
    include_fast_ft: bool = False
    include_auto_mp: bool = False
    print_summary: bool = True
    debug_mode: bool = False
    crypto_mode: bool = False
    ignore_warnings: bool = False
    """No warnings while models are quantized. There it is True, and hides what went wrong."""
    extra_options: dict[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `quantize_static` that these are."""
        others = ("use_dynamic_quant", "ignore_warnings")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in others}


@dataclass(kw_only=True)
class RefusedPreset(QuantizationConfig):
    """A preset that can be imported, and is an error when a model is quantized with it.

    >>> RefusedPreset(why="there is no preset 'VINT8'").arguments()
    Traceback (most recent call last):
    bitwright.compat.onnxruntime.errors.InvalidSettingError: there is no preset 'VINT8'.
    """

    why: str

    def arguments(self) -> dict[str, Any]:
        """Say why there is no such preset."""
        raise InvalidSettingError(f"{self.why}.")


@dataclass
class Config:
    """The old outer configuration: one set of arguments for the whole model.

    >>> Config(global_quant_config=QuantizationConfig(per_channel=True)).global_quant_config
    ... # doctest: +ELLIPSIS
    QuantizationConfig(...per_channel=True...)
    """

    global_quant_config: QuantizationConfig


@dataclass(init=False)
class QConfig:
    """The new configuration: specs for the model, for single layers and for types of layers.

    Options may stand in `extra_options` or, as there, beside the other arguments.

    >>> from bitwright.compat.quark import Int8Spec, QLayerConfig, UInt8Spec
    >>> layer = QLayerConfig(input_tensors=UInt8Spec(), weight=Int8Spec())
    >>> QConfig(layer, exclude=["head"], QuantizeBias=False).extra_options
    {'QuantizeBias': False}
    """

    global_config: QLayerConfig
    specific_layer_config: Mapping[QLayerConfig, Sequence[str]]
    layer_type_config: Mapping[QLayerConfig | None, Sequence[str]]
    exclude: Sequence[Any]
    algo_config: Sequence[AlgoConfig]
    use_external_data_format: bool
    extra_options: dict[str, Any]

    def __init__(
        self,
        global_config: QLayerConfig,
        specific_layer_config: Mapping[QLayerConfig, Sequence[str]] | None = None,
        layer_type_config: Mapping[QLayerConfig | None, Sequence[str]] | None = None,
        exclude: Sequence[Any] | None = None,
        algo_config: Sequence[AlgoConfig] | None = None,
        use_external_data_format: bool = False,
        extra_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.global_config = global_config
        self.specific_layer_config = specific_layer_config or {}
        self.layer_type_config = layer_type_config or {}
        self.exclude = exclude or []
        self.algo_config = algo_config or []
        self.use_external_data_format = use_external_data_format
        self.extra_options = {**(extra_options or {}), **options}

    @staticmethod
    def get_default_config(name: str) -> Config:
        """Return the preset of this name.

        >>> QConfig.get_default_config("XINT8").global_quant_config.enable_npu_cnn
        True
        """
        return Config(global_quant_config=get_default_config(name))

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration in plain dicts, lists, names and numbers, as JSON takes them.

        >>> from bitwright.compat.quark import Int8Spec, QLayerConfig, UInt8Spec
        >>> layer = QLayerConfig(input_tensors=UInt8Spec(), weight=Int8Spec())
        >>> QConfig(global_config=layer).to_dict()["global_config"]["weight"]["spec"]
        'Int8Spec'
        """
        return config_to_dict(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> QConfig:
        """Return the configuration that `to_dict` gave.

        >>> from bitwright.compat.quark import XInt8Spec, QLayerConfig
        >>> layer = QLayerConfig(input_tensors=XInt8Spec(), weight=XInt8Spec())
        >>> config = QConfig(global_config=layer)
        >>> QConfig.from_dict(config.to_dict()) == config
        True
        """
        return cls(**config_from_dict(given))


def get_default_config(name: str) -> QuantizationConfig:
    """Return the arguments of the preset of this name, to change or to use.

    >>> get_default_config("A8W8").extra_options
    {'ActivationSymmetric': True, 'ForceQuantizeNoInputCheck': True}
    >>> get_default_config("BF16_ADAQUANT")
    Traceback (most recent call last):
    bitwright.compat.onnxruntime.errors.InvalidSettingError: there is no preset 'BF16_ADAQUANT': \
only integer weights learn.
    """
    arguments = PRESET_ARGUMENTS.get(name.upper())
    if arguments is None:
        reason = why_no_preset(name.lower().replace("_", "-"))
        if reason is not None:
            raise InvalidSettingError(f"there is no preset {name!r}: {reason}.")
        raise InvalidSettingError(f"unknown preset {name!r}.{did_you_mean(name, PRESET_ARGUMENTS)}")
    options = deepcopy(arguments.get("extra_options", {}))
    return QuantizationConfig(**{**arguments, "extra_options": options})


# The presets as arguments; `bitwright.recipe` has the same as recipes -----------------------------

_FORCED = {"ForceQuantizeNoInputCheck": True}
_SYMMETRIC = {"ActivationSymmetric": True, **_FORCED}
# With 16 bits a Relu or Clip stays there in any case.
_KEPT = {"FoldRelu": False}
_NPU_CNN: dict[str, Any] = {
    "calibrate_method": PowerOfTwoMethod.MinMSE,
    "activation_type": QuantType.QUInt8,
    "enable_npu_cnn": True,
    "extra_options": _SYMMETRIC,
}
_FOUR_BITS = {
    "UseMatMulNBits": True,
    "MatMulNBitsParams": {"GroupSize": 128, "Symmetric": True, "Bits": 4, "AccuracyLevel": 1},
}


def _integers(
    activation: QuantType, weight: QuantType, *, clipped: bool = False, **options: Any
) -> dict[str, Any]:
    """Return a preset of integers with float scales; `clipped`: ranges are percentiles."""
    method = CalibrationMethod.Percentile if clipped else CalibrationMethod.MinMax
    return {
        "calibrate_method": method,
        "activation_type": activation,
        "weight_type": weight,
        "extra_options": options,
    }


def _for_products(activation: QuantType, weight: QuantType, **options: Any) -> dict[str, Any]:
    plain = _integers(activation, weight, CalibMovingAverage=True, **options)
    return {**plain, "enable_npu_transformer": True}


def _floats(qtype: str) -> dict[str, Any]:
    return {
        "quant_format": VitisQuantFormat.QDQ,
        "activation_type": QTYPES[qtype],
        "weight_type": QTYPES[qtype],
        "include_cle": False,
    }


def _blocks(qtype: str) -> dict[str, Any]:
    is_float = isinstance(SHARED_EXPONENT_FORMATS[qtype], BlockFloat)
    option = "BFPAttributes" if is_float else "MXAttributes"
    return {**_floats(qtype), "extra_options": {option: {"rounding_mode": 2}}}


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
    plain = _integers(activation, weight, clipped=True, Percentile=99.9999, **_FORCED)
    return _fine_tuned(plain, "adaround")


_PLAIN: dict[str, dict[str, Any]] = {
    "XINT8": _NPU_CNN,
    "A8W8": _integers(QuantType.QInt8, QuantType.QInt8, **_SYMMETRIC),
    "A16W8": _integers(QuantType.QInt16, QuantType.QInt8, **_SYMMETRIC),
    "S8S8_AAWS": _integers(
        QuantType.QInt8, QuantType.QInt8, clipped=True, Percentile=99.9999, **_FORCED
    ),
    "U8S8_AAWS": _integers(QuantType.QUInt8, QuantType.QInt8, clipped=True, **_FORCED),
    "U8U8_AAWA": _integers(
        QuantType.QUInt8, QuantType.QUInt8, clipped=True, WeightSymmetric=False, **_FORCED
    ),
    "S16S8_ASWS": _integers(QuantType.QInt16, QuantType.QInt8, clipped=True, **_SYMMETRIC),
    "U16S8_AAWS": _integers(QuantType.QUInt16, QuantType.QInt8, clipped=True, **_KEPT, **_FORCED),
    "INT8_CNN_DEFAULT": _integers(QuantType.QUInt8, QuantType.QInt8, **_FORCED),
    "INT16_CNN_DEFAULT": _integers(QuantType.QUInt16, QuantType.QInt16, **_KEPT, **_FORCED),
    "INT8_TRANSFORMER_DEFAULT": _for_products(QuantType.QUInt8, QuantType.QInt8),
    "INT16_TRANSFORMER_DEFAULT": _for_products(QuantType.QUInt16, QuantType.QInt16, **_KEPT),
    "UINT8_DYNAMIC_QUANT": {"use_dynamic_quant": True, "weight_type": QuantType.QUInt8},
    "MATMUL_NBITS": {"extra_options": _FOUR_BITS},
    "FP16": _floats("float16"),
    "BF16": _floats("bfloat16"),
    **{name.upper(): _blocks(name) for name in _BLOCKS},
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
