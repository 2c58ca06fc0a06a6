"""The names of Intel Neural Compressor for quantizing ONNX models.

Modules have the paths that they have there, and in ONNX Neural Compressor, below this package;
`tuning` has `fit` of 2.x and `autotune` of 3.x in one place.
"""

from bitwright.compat.model_wrapper import ONNXModel
from bitwright.compat.neural_compressor.config import (
    BenchmarkConfig,
    MixedPrecisionConfig,
    PostTrainingQuantConfig,
)
from bitwright.compat.neural_compressor.constant import logger
from bitwright.compat.neural_compressor.metric import Metric
from bitwright.compat.paths import add_paths
from bitwright.support.wording import warn_user

__all__ = [
    "BenchmarkConfig",
    "Metric",
    "MixedPrecisionConfig",
    "ONNXModel",
    "PostTrainingQuantConfig",
    "logger",
    "set_random_seed",
    "set_workspace",
]

__version__ = "2.6"
"""The release whose names these are; tools such as Olive ask for it."""

_QUANTIZATION = "neural_compressor.quantization"
_CONFIGS = (f"{_QUANTIZATION}.weight_only_configs", f"{_QUANTIZATION}.post_training")

add_paths(
    __name__,
    {
        "adaptor.ox_utils.weight_only": ("neural_compressor.weight_only",),
        "data_reader": ("onnxruntime.readers",),
        "model": ("model_wrapper",),
        "model.onnx_model": ("model_wrapper",),
        "onnx_model": ("model_wrapper",),
        "quantization.algorithm_entry": (f"{_QUANTIZATION}.post_training",),
        "quantization.matmul_4bits_quantizer": (f"{_QUANTIZATION}.matmul_nbits_quantizer",),
        "quantization.quant_utils": ("onnxruntime.enums",),
        "quantization.config": _CONFIGS,
        "tuning": (
            "neural_compressor.config",
            f"{_QUANTIZATION}.fitting",
            f"{_QUANTIZATION}.tuning",
            *_CONFIGS,
        ),
        "utils": ("neural_compressor.constant",),
        "utils.constant": ("neural_compressor.constant",),
    },
    *("neural_compressor", "onnx_neural_compressor"),
)


def set_workspace(workspace: str) -> None:
    """Say where files of a run would be kept, of which there are none."""
    warn_user(f"the workspace {workspace!r} stays empty: nothing is written beside the model.")


def set_random_seed(seed: int) -> None:
    """Say what chance would start from, which has no part in results."""
    warn_user(f"the seed {seed} is ignored: the same input gives the same model.")
