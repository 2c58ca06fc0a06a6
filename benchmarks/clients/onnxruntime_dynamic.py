"""ONNX Runtime's dynamic quantization, and weights of 4 bits by its command's class."""

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import (
    DefaultWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
)

quantize_dynamic("text.onnx", "dynamic.onnx", weight_type=QuantType.QUInt8)
quantizer = MatMulNBitsQuantizer(
    onnx.load("text.onnx"),
    algo_config=DefaultWeightOnlyQuantConfig(block_size=32, is_symmetric=True, bits=4),
)
quantizer.process()
quantizer.model.save_model_to_file("nbits.onnx", True)
