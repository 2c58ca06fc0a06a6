"""The names of Intel Neural Compressor for quantizing ONNX models.

Modules have the paths that they have there, and in ONNX Neural Compressor, below this package;
`tuning` has `fit` of 2.x and `autotune` of 3.x in one place.
"""

from bitwright.compat.model_wrapper import ONNXModel
from bitwright.compat.neural_compressor.config import PostTrainingQuantConfig
from bitwright.compat.neural_compressor.metric import Metric
from bitwright.compat.paths import add_paths

__all__ = ["Metric", "ONNXModel", "PostTrainingQuantConfig"]

_QUANTIZATION = "neural_compressor.quantization"
_CONFIGS = (f"{_QUANTIZATION}.weight_only_configs", f"{_QUANTIZATION}.post_training")

add_paths(
    __name__,
    {
        "adaptor": (),
        "adaptor.ox_utils": (),
        "adaptor.ox_utils.weight_only": ("neural_compressor.weight_only",),
        "data_reader": ("onnxruntime.readers",),
        "model": (),
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
        "utils": (),
        "utils.constant": ("neural_compressor.constant",),
    },
    *("neural_compressor", "onnx_neural_compressor"),
)
