"""`nncf.quantization.advanced_parameters`: further options of quantization and of its search.

What they stand for in a recipe is in `translation.py`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any

from bitwright.compat.nncf.parameters import QuantizationScheme as QuantizationMode
from bitwright.compat.nncf.quantization.range_estimator import RangeEstimatorParameters


class OverflowFix(StrEnum):
    """Which weights have seven bits, for CPUs whose sums of two products end at 16 bits."""

    ENABLE = "enable"
    FIRST_LAYER = "first_layer_only"
    DISABLE = "disable"


class FP8Type(StrEnum):
    """Eight-bit floats."""

    E4M3 = "f8e4m3"
    E5M2 = "f8e5m2"


GroupSizeFallbackMode = StrEnum("GroupSizeFallbackMode", "ERROR IGNORE ADJUST")
GroupSizeFallbackMode.__doc__ = (
    "How weights are treated whose rows are not a multiple of the group size."
)


class QuantizerPropagationRule(StrEnum):
    """Whether the readers of a tensor share its quantizer."""

    DO_NOT_MERGE_BRANCHES = "0"
    MERGE_IF_ALL_BRANCHES_SAME = "1"
    MERGE_WITH_POTENTIAL_REQUANTIZATION = "2"
    MERGE_ALL_IN_ONE = "3"


class RestoreMode(Enum):
    """Whether the weights of an operator that falls back to float do so, too."""

    ACTIVATIONS_AND_WEIGHTS = "activations_and_weights"
    ONLY_ACTIVATIONS = "only_activations"


@dataclass
class QuantizationParameters:
    """How weights, or activations, are quantized; None is as the preset says."""

    num_bits: int | None = None
    mode: QuantizationMode | None = None
    signedness_to_force: bool | None = None
    per_channel: bool | None = None
    narrow_range: bool | None = None


@dataclass
class FP8QuantizationParameters:
    """Weights, or activations, in eight-bit floats."""

    destination_type: FP8Type | None = None


@dataclass
class AdvancedBiasCorrectionParameters:
    """Which biases are corrected, and up to which size."""

    apply_for_all_nodes: bool = False
    threshold: float | None = None


@dataclass
class AdvancedSmoothQuantParameters:
    """The strength of SmoothQuant for each kind of layer; a negative one is none."""

    convolution: float = -1
    matmul: float = 0.95


@dataclass
class AdvancedQuantizationParameters:
    """Further options of quantization."""

    overflow_fix: OverflowFix | None = None
    quantize_outputs: bool = False
    inplace_statistics: bool = True
    disable_channel_alignment: bool = True
    disable_bias_correction: bool = False
    batchwise_statistics: bool | None = None
    activations_quantization_params: QuantizationParameters | FP8QuantizationParameters | None = (
        None
    )
    weights_quantization_params: QuantizationParameters | FP8QuantizationParameters | None = None
    quantizer_propagation_rule: QuantizerPropagationRule = QuantizerPropagationRule.MERGE_ALL_IN_ONE
    activations_range_estimator_params: RangeEstimatorParameters = field(
        default_factory=RangeEstimatorParameters
    )
    weights_range_estimator_params: RangeEstimatorParameters = field(
        default_factory=RangeEstimatorParameters
    )
    bias_correction_params: AdvancedBiasCorrectionParameters = field(
        default_factory=AdvancedBiasCorrectionParameters
    )
    smooth_quant_alphas: AdvancedSmoothQuantParameters = field(
        default_factory=AdvancedSmoothQuantParameters
    )
    smooth_quant_alpha: float | None = None
    """The strength for products; deprecated there."""
    backend_params: dict[str, Any] = field(default_factory=dict)


@dataclass
class AdvancedAccuracyRestorerParameters:
    """Further options of the search for a model within the drop."""

    max_num_iterations: int = sys.maxsize
    tune_hyperparams: bool = False
    ranking_subset_size: int | None = None
    num_ranking_workers: int | None = None
    intermediate_model_dir: str | None = None
    """An existing folder, where `intermediate_model.onnx` is the model that the search starts at:
    everything quantized."""
    restore_mode: RestoreMode = RestoreMode.ACTIVATIONS_AND_WEIGHTS


@dataclass
class AdvancedAWQParameters:
    """The grid of strengths that AWQ searches."""

    subset_size: int = 32
    percent_to_apply: float = 0.002
    alpha_min: float = 0.0
    alpha_max: float = 1.0
    steps: int = 100
    prefer_data_aware_scaling: bool = True


@dataclass
class AdvancedScaleEstimationParameters:
    """How often scales are fitted to what the layers read."""

    subset_size: int = 64
    initial_steps: int = 5
    scale_steps: int = 5
    weight_penalty: float = -1.0


@dataclass
class AdvancedGPTQParameters:
    """The damping of GPTQ, and how many rows it corrects together."""

    damp_percent: float = 0.1
    block_size: int = 128
    subset_size: int = 128


@dataclass
class AdvancedCompressionParameters:
    """Further options of weight compression."""

    statistics_path: str | None = None
    lora_adapter_rank: int = 256
    group_size_fallback_mode: GroupSizeFallbackMode = GroupSizeFallbackMode.ERROR
    min_adjusted_group_size: int = 32
    awq_params: AdvancedAWQParameters = field(default_factory=AdvancedAWQParameters)
    scale_estimation_params: AdvancedScaleEstimationParameters = field(
        default_factory=AdvancedScaleEstimationParameters
    )
    gptq_params: AdvancedGPTQParameters = field(default_factory=AdvancedGPTQParameters)
    backend_params: dict[str, Any] = field(default_factory=dict)
