"""The integers of weights and biases, against ONNX Runtime's own QuantizeLinear."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto
from support.models import build, info, node, normal, run

from bitwright.numerics.types import INT4, INT8, INT16, INT32, UINT8
from bitwright.plan import Parameters
from bitwright.rounding.planned import RoundOnce, round_as_planned, round_to_nearest


@pytest.mark.parametrize(
    ("qtype", "onnx_type"),
    [(INT8, TensorProto.INT8), (UINT8, TensorProto.UINT8), (INT16, TensorProto.INT16)],
    ids=str,
)
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_weights_are_rounded_as_the_runtime_rounds(qtype, onnx_type, axis):
    array = normal(6, 5, seed=1)
    if axis is None:
        scale, zero = np.float32(0.02), np.array(3 if not qtype.signed else 0)
    else:
        scale = np.abs(normal(array.shape[axis], seed=2)).astype(np.float32) / 60 + 0.01
        zero = np.zeros(scale.shape, np.int64)
    found = round_to_nearest(array, Parameters(qtype, scale.astype(np.float64), zero, axis))
    attributes = {} if axis is None else {"axis": axis}
    model = build(
        [node("QuantizeLinear", ["x", "s", "z"], ["y"], **attributes)],
        {"x": [6, 5]},
        [info("y", [6, 5], onnx_type)],
        {"s": scale, "z": zero.astype(qtype.dtype)},
        opset=21,
        ir_version=10,
    )
    np.testing.assert_array_equal(found, run(model, {"x": array})[0])


def test_halves_go_to_the_even_level():
    parameters = Parameters(INT8, np.float64(1.0), np.int64(0))
    found = round_to_nearest(np.float32([0.5, 1.5, 2.5, -0.5, -1.5]), parameters)
    assert found.tolist() == [0, 2, 2, 0, -2]


def test_what_lies_outside_is_cut_to_the_type():
    found = round_to_nearest(
        np.float32([1e9, -1e9]), Parameters(INT4, np.float64(1.0), np.int64(0))
    )
    assert found.tolist() == [7, -8]


def test_a_bias_is_divided_in_float64():
    # In float32 the quotient would be off by many levels.
    scale = 1e-9
    bias = np.float32([1.2345678, -0.7654321])
    found = round_to_nearest(bias, Parameters(INT32, np.float64(scale), np.int64(0)))
    assert found.tolist() == np.rint(bias.astype(np.float64) / scale).astype(np.int64).tolist()


def test_blocks_have_their_own_scales():
    array = np.float32([[1, 2], [3, 4], [50, 60], [70, 80]])
    scale = np.float64([[1, 1], [10, 10]])
    parameters = Parameters(INT8, scale, np.zeros_like(scale, np.int64), axis=0, block_size=2)
    assert round_to_nearest(array, parameters).tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]


def test_a_weight_is_rounded_by_squant_once_for_each_scale():
    weights, rounding = normal(8, 4, 3, 3, seed=3), RoundOnce()
    coarse, fine = (
        Parameters(INT8, np.float64(scale), np.int64(0), rounding="squant")
        for scale in (0.04, 0.02)
    )
    first = rounding(weights, coarse)
    first[:] = 99  # what was given is the caller's own
    for parameters in (coarse, fine):
        np.testing.assert_array_equal(
            rounding(weights, parameters), round_as_planned(weights, parameters)
        )
    assert len(rounding._known) == 2
