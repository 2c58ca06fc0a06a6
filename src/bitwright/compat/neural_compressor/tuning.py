"""Neural Compressor's tuning for ONNX models: `fit` of 2.x and `autotune` of 3.x, in one place."""

from __future__ import annotations

from bitwright.compat.neural_compressor.config import (
    AccuracyCriterion,
    PostTrainingQuantConfig,
    TuningCriterion,
)
from bitwright.compat.neural_compressor.quantization.config import (
    AWQConfig,
    GPTQConfig,
    RTNConfig,
    get_woq_tuning_config,
)
from bitwright.compat.neural_compressor.quantization.fitting import fit
from bitwright.compat.neural_compressor.quantization.tuning import TuningConfig, autotune

__all__ = [
    "AWQConfig",
    "AccuracyCriterion",
    "GPTQConfig",
    "PostTrainingQuantConfig",
    "RTNConfig",
    "TuningConfig",
    "TuningCriterion",
    "autotune",
    "fit",
    "get_woq_tuning_config",
]
