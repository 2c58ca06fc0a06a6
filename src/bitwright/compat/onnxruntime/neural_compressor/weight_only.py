"""Weight-only functions, where `onnxruntime.quantization.neural_compressor` has them."""

from __future__ import annotations

from typing import Any, NoReturn

from bitwright.compat.model_wrapper import ONNXModel
from bitwright.compat.neural_compressor.weight_only import (
    get_weight_scale,
    gptq,
    gptq_quantize,
    make_matmul_weight_only_node,
    pad_tensor,
    prepare_inputs,
    qdq_tensor,
    quant_tensor,
)
from bitwright.compat.onnxruntime.errors import NoOperatorQuantizersError
from bitwright.compat.onnxruntime.matmul_nbits_quantizer import rtn_quantize
from bitwright.compat.onnxruntime.neural_compressor.util import simple_progress_bar

__all__ = [
    "ONNXModel",
    "get_weight_scale",
    "gptq",
    "gptq_quantize",
    "make_matmul_weight_only_node",
    "pad_tensor",
    "prepare_inputs",
    "qdq_tensor",
    "quant_tensor",
    "quant_tensor_k_quant_cpu",
    "quant_tensor_k_quant_cuda",
    "rtn_quantize",
    "simple_progress_bar",
]


def quant_tensor_k_quant_cpu(data: Any, num_bits: int = 4, group_size: int = 32) -> NoReturn:
    """Round one array to k-quants: an error that says what to use instead."""
    _refuse("quant_tensor_k_quant_cpu")


def quant_tensor_k_quant_cuda(data: Any, num_bits: int = 4, group_size: int = 32) -> NoReturn:
    """Round one array to k-quants: an error that says what to use instead."""
    _refuse("quant_tensor_k_quant_cuda")


def _refuse(name: str) -> NoReturn:
    raise NoOperatorQuantizersError(
        f"{name} rounds one array; give KQuantWeightOnlyQuantConfig to MatMulNBitsQuantizer, which "
        "quantizes a model, or round an array with quant_tensor."
    )
