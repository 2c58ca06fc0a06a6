"""NVFP4 against ONNX's own definition: two DequantizeLinear, computed by its reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper

from bitwright.errors import RecipeError
from bitwright.numerics.nvfp4 import quantize_nvfp4


def reference(weight):
    """Return what ONNX makes of the codes and scales."""

    def stored(name, kind, array):
        return helper.make_tensor(name, kind, array.shape, array.astype(np.float32).reshape(-1))

    constants = [
        stored("q", TensorProto.FLOAT4E2M1, weight.codes),
        stored("b", TensorProto.FLOAT8E4M3FN, weight.scales),
        stored("s", TensorProto.FLOAT, np.asarray(weight.scale)),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["b", "s"], ["scales"]),
        helper.make_node("DequantizeLinear", ["q", "scales"], ["y"], axis=1, block_size=16),
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, list(weight.codes.shape))
    graph = helper.make_graph(nodes, "g", [], [result], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    onnx.checker.check_model(model, full_check=True)
    return onnx.reference.ReferenceEvaluator(model).run(None, {})[0]


@pytest.mark.parametrize("size", [1.0, 1e-20, 1e20])
def test_the_numbers_are_those_that_onnx_reads(size):
    rng = np.random.default_rng(0)
    given = (rng.standard_t(3, (6, 64)) * size).astype(np.float32)
    weight = quantize_nvfp4(given)
    np.testing.assert_allclose(weight.dequantize(), reference(weight), rtol=1e-6)
    # No code of float4 is nearer than the one that was taken, with the scale of its block.
    codes = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    steps = np.repeat(weight.scales.astype(np.float64) * float(weight.scale), 16, axis=1)
    every = np.abs(codes[:, None, None] * steps - given)
    found = np.abs(weight.codes.astype(np.float64) * steps - given)
    assert np.all(found <= every.min(axis=0) * (1 + 1e-5))
    # The largest of all is hit within the rounding of its block's scale.
    assert abs(np.abs(weight.dequantize()).max() / np.abs(given).max() - 1) < 2**-4
    lost = (weight.dequantize() - given).astype(np.float64)
    loss = np.linalg.norm(lost) / np.linalg.norm(given.astype(np.float64))
    assert loss < 0.12


def test_zeros_stay_zeros_beside_large_blocks():
    given = np.zeros((2, 32), np.float32)
    given[0, 0] = 1e6
    given[1, 16:] = 1e-9
    restored = quantize_nvfp4(given).dequantize()
    assert np.isfinite(restored).all() and restored[0, 0] == pytest.approx(1e6, rel=1e-3)
    assert not restored[1].any() and not quantize_nvfp4(np.zeros((2, 16))).dequantize().any()


def test_blocks_have_to_divide_the_inputs():
    with pytest.raises(RecipeError, match="do not divide"):
        quantize_nvfp4(np.zeros((2, 24), np.float32))
