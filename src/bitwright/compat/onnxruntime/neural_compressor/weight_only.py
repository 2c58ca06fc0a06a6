"""Weight-only functions, where `onnxruntime.quantization.neural_compressor` has them.

Its inner functions that Neural Compressor has, too, are those of our package for that.
"""

from bitwright.compat.neural_compressor.weight_only import get_weight_scale as get_weight_scale
from bitwright.compat.neural_compressor.weight_only import gptq as gptq
from bitwright.compat.neural_compressor.weight_only import gptq_quantize as gptq_quantize
from bitwright.compat.neural_compressor.weight_only import (
    make_matmul_weight_only_node as make_matmul_weight_only_node,
)
from bitwright.compat.neural_compressor.weight_only import pad_tensor as pad_tensor
from bitwright.compat.neural_compressor.weight_only import prepare_inputs as prepare_inputs
from bitwright.compat.neural_compressor.weight_only import qdq_tensor as qdq_tensor
from bitwright.compat.neural_compressor.weight_only import quant_tensor as quant_tensor
from bitwright.compat.onnxruntime.matmul_nbits_quantizer import rtn_quantize as rtn_quantize
from bitwright.compat.onnxruntime.peer import hand_on

__getattr__, __dir__ = hand_on(__name__)
