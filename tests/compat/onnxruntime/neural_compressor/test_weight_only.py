"""The functions are those of the Neural Compressor package, where ONNX Runtime has them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.models import make_mlp, ops

from bitwright.compat.onnxruntime.neural_compressor import rtn_quantize
from bitwright.compat.onnxruntime.neural_compressor.onnx_model import ONNXModel
from bitwright.compat.onnxruntime.neural_compressor.util import simple_progress_bar, to_numpy
from bitwright.compat.onnxruntime.neural_compressor.weight_only import (
    quant_tensor_k_quant_cpu,
    quant_tensor_k_quant_cuda,
)
from bitwright.errors import BitwrightError, DataError


def test_weights_are_rounded():
    made = rtn_quantize(ONNXModel(make_mlp(width=64)), num_bits=4, group_size=32)
    assert "MatMulNBits" in ops(made.model)


@pytest.mark.parametrize("function", [quant_tensor_k_quant_cpu, quant_tensor_k_quant_cuda])
def test_k_quants_of_one_array_are_an_error_that_says_what_to_use(function):
    with pytest.raises(BitwrightError, match="KQuantWeightOnlyQuantConfig"):
        function(np.zeros((2, 32), np.float32))


def test_tensors_become_arrays():
    torch = pytest.importorskip("torch")
    np.testing.assert_array_equal(to_numpy(torch.ones(2, dtype=torch.bfloat16)), [1, 1])
    assert to_numpy(onnx.numpy_helper.to_array(make_mlp().graph.initializer[0])).ndim > 0
    with pytest.raises(DataError, match="does not hold numbers"):
        to_numpy(object())


def test_progress_is_the_peers(capsys):
    from onnxruntime.quantization.neural_compressor.util import simple_progress_bar as theirs

    for done in (0, 3, 7):
        simple_progress_bar(7, done)
        mine = capsys.readouterr().out
        theirs(7, done)
        assert mine == capsys.readouterr().out
