"""Quark's configurations, old and new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from bitwright.compat.onnxruntime.enums import CalibrationMethod, QuantFormat, QuantType
from bitwright.compat.quark.specs import QLayerConfig
from bitwright.errors import RecipeError, did_you_mean

__all__ = [
    "AlgoConfig",
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
    """Even out the channels of consecutive weights.

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
        if self.cle_balance_method != "max":
            raise RecipeError(
                f"cle_balance_method is 'max', the only one, not {self.cle_balance_method!r}."
            )
        return {
            "CLESteps": self.cle_steps,
            "CLEWeightThreshold": self.cle_weight_threshold,
            "CLEScaleAppendBias": self.cle_scale_append_bias,
            "CLEScaleUseThreshold": self.cle_scale_use_threshold,
            "CLETotalLayerDiffThreshold": self.cle_total_layer_diff_threshold,
        }


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
    >>> get_default_config("A8W8_ADAROUND")
    Traceback (most recent call last):
    bitwright.errors.RecipeError: there is no preset 'A8W8_ADAROUND': there is no fine-tuning of \
rounding yet.
    """
    from bitwright.compat.quark.presets import PRESET_ARGUMENTS
    from bitwright.recipe.presets import why_no_preset

    arguments = PRESET_ARGUMENTS.get(name.upper())
    if arguments is None:
        reason = why_no_preset(name.lower().replace("_", "-"))
        if reason is not None:
            raise RecipeError(f"there is no preset {name!r}: {reason}.")
        raise RecipeError(f"unknown preset {name!r}.{did_you_mean(name, PRESET_ARGUMENTS)}")
    options = dict(arguments.get("extra_options", {}))
    return QuantizationConfig(**{**arguments, "extra_options": options})
