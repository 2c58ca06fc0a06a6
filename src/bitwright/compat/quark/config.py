"""Quark's configurations: `QuantizationConfig`, `QConfig`, their algorithms and presets."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

from bitwright.compat.onnxruntime.enums import CalibrationMethod, QuantFormat, QuantType
from bitwright.compat.onnxruntime.errors import InvalidSettingError
from bitwright.compat.options import find_name
from bitwright.compat.quark import algorithms
from bitwright.compat.quark.algorithms import AlgoConfig
from bitwright.compat.quark.specs import QLayerConfig, Spec
from bitwright.compat.vai_q_onnx.enums import VitisQuantFormat, read_method
from bitwright.errors import RecipeError, did_you_mean
from bitwright.numerics.shared_exponent import SHARED_EXPONENT_FORMATS, BlockFloat
from bitwright.numerics.types import BFLOAT16, FLOAT16, QTYPES, QType
from bitwright.recipe.named import why_no_preset


@dataclass(kw_only=True)
class QuantizationConfig:
    """The arguments of one quantization, with Quark's defaults."""

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
    """A preset that can be imported, and is an error when a model is quantized with it."""

    why: str

    def arguments(self) -> dict[str, Any]:
        """Say why there is no such preset."""
        raise InvalidSettingError(f"{self.why}.")


@dataclass
class Config:
    """The old outer configuration: one set of arguments for the whole model."""

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
        """Return the configuration in plain dicts, lists, names and numbers, as JSON takes them."""
        found: dict[str, Any] = {}
        for name in (one.name for one in fields(self)):
            value = getattr(self, name)
            if name in _BY_LAYER:  # a dict with layers as keys becomes a list of pairs
                value = [[layer, list(names)] for layer, names in value.items()]
            found[name] = _plain(value)
        return found

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> QConfig:
        """Return the configuration that `to_dict` gave.

        >>> from bitwright.compat.quark import XInt8Spec, QLayerConfig
        >>> layer = QLayerConfig(input_tensors=XInt8Spec(), weight=XInt8Spec())
        >>> config = QConfig(global_config=layer)
        >>> QConfig.from_dict(config.to_dict()) == config
        True
        """
        found = dict(given)
        if "global_config" not in found:
            raise RecipeError("a QConfig has a global_config; it is missing in the dict.")
        found["global_config"] = _layer(found["global_config"])
        for key in _BY_LAYER:
            found[key] = {_layer(layer): names for layer, names in found.get(key) or ()}
        found["algo_config"] = [_step(step) for step in found.get("algo_config") or ()]
        return cls(**found)


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


# Presets -------------------------------------------------------------------------------------

_LEARNING = {"DataSize": 1000, "BatchSize": 2, "NumIterations": 1000, "EarlyStop": True}
_INTEGERS = ("XINT8", "A8W8", "A16W8", "S8S8_AAWS", "U8S8_AAWS", "S16S8_ASWS", "U16S8_AAWS")
_FLOATS = {"FP16": FLOAT16, "BF16": BFLOAT16} | {
    name.upper(): qtype for name, qtype in QTYPES.items() if qtype.shares_exponent
}


def _read_presets() -> dict[str, dict[str, Any]]:
    """Return the arguments of each preset, those of the same with fine-tuning among them."""
    found = tomllib.loads(Path(__file__).with_name("presets.toml").read_text(encoding="utf-8"))
    for name, given in found.items():
        for key in ("activation_type", "weight_type"):
            if key in given:
                given[key] = QuantType[given[key]]
        if "calibrate_method" in given:
            given["calibrate_method"] = read_method(given["calibrate_method"])
        if "include_fast_ft" in given:
            found[name] = _fine_tuned(given, "adaround")
    tuned = {
        f"{name}_{method.upper()}": _fine_tuned(found[name], method)
        for name in _INTEGERS
        for method in ("adaround", "adaquant")
    }
    return found | {name: _floats(qtype) for name, qtype in _FLOATS.items()} | tuned


def _floats(qtype: QType) -> dict[str, Any]:
    options = {}
    if qtype.shares_exponent:
        is_float = isinstance(SHARED_EXPONENT_FORMATS[qtype.name], BlockFloat)
        options["BFPAttributes" if is_float else "MXAttributes"] = {"rounding_mode": 2}
    return {
        "quant_format": VitisQuantFormat.QDQ,
        "activation_type": qtype,
        "weight_type": qtype,
        "include_cle": False,
        "extra_options": options,
    }


def _fine_tuned(arguments: dict[str, Any], method: str) -> dict[str, Any]:
    learning = {"FastFinetune": {"OptimAlgorithm": method, **_LEARNING}}
    options = {**arguments["extra_options"], **learning}
    return {**arguments, "include_fast_ft": True, "extra_options": options}


PRESET_ARGUMENTS = _read_presets()


# Files of configurations -----------------------------------------------------------------------


_BY_LAYER = ("specific_layer_config", "layer_type_config")
_STEPS = {name: getattr(algorithms, name) for name in algorithms.__all__}


def _plain(value: Any) -> Any:
    if isinstance(value, Spec | AlgoConfig):
        kind = "spec" if isinstance(value, Spec) else "name"
        return {kind: type(value).__name__} | _fields(value)
    if isinstance(value, QLayerConfig):
        return _fields(value)
    if isinstance(value, Enum | QType):
        return value.name
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}


def _layer(given: Any) -> QLayerConfig | None:
    return None if given is None else QLayerConfig.from_dict(given)


def _step(given: Any) -> AlgoConfig:
    settings = dict(given)
    kind = find_name(settings.pop("name", None), _STEPS, "step")
    # JSON has made lists of the tuples.
    made: AlgoConfig = kind(
        **{key: tuple(each) if isinstance(each, list) else each for key, each in settings.items()}
    )
    return made
