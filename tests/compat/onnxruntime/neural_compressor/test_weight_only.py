"""The functions are those of the Neural Compressor package, where ONNX Runtime has them."""

from __future__ import annotations

from support.models import make_mlp, ops

from bitwright.compat.onnxruntime.neural_compressor import rtn_quantize
from bitwright.compat.onnxruntime.neural_compressor.onnx_model import ONNXModel


def test_weights_are_rounded():
    made = rtn_quantize(ONNXModel(make_mlp(width=64)), num_bits=4, group_size=32)
    assert "MatMulNBits" in ops(made.model)
