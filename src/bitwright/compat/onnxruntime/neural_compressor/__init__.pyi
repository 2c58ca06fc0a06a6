"""The names of `onnxruntime.quantization.neural_compressor` and where each is defined."""

from .weight_only import gptq_quantize as gptq_quantize
from .weight_only import rtn_quantize as rtn_quantize
