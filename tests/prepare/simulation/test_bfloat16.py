"""Softmax and instance norm in bfloat16: every step against bfloat16 arithmetic of ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from support.models import build, node, normal, run
from support.rewriting import checked, op_types, rewrite

from bitwright.prepare.simulation import simulation_steps
from bitwright.prepare.simulation.bfloat16 import simulate_instance_norm, simulate_softmax

BF16 = ml_dtypes.bfloat16


def softmax_of_the_npu(x, axis):
    """The published steps, in bfloat16 arithmetic throughout."""
    x = np.clip(x, -87, 87).astype(BF16)
    whole = np.floor((x.astype(np.float32) * np.float32(np.log2(np.e))).astype(BF16))
    taken = (whole.astype(np.float32) * np.float32(np.log(2))).astype(BF16)
    t = x - taken
    p = ((BF16(0.21875) * t + BF16(0.486328125)) * t + BF16(1)) * t + BF16(1)
    e = (2.0 ** whole.astype(np.float32)).astype(BF16) * p
    total = e.astype(np.float32).sum(axis=axis, keepdims=True).astype(BF16)
    return (e / total).astype(np.float32)


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("opset", [13, 17, 21])
def test_softmax_follows_the_steps_to_the_bit(axis, opset):
    attributes = {} if axis == -1 else {"axis": axis}
    softmax = node("Softmax", ["x"], ["y"], name="it", **attributes)
    proto = build([softmax], {"x": ["n", 5, 7]}, {"y": None}, opset=opset)
    model, count, notes = rewrite(proto, simulate_softmax)
    assert (count, notes) == (1, [])
    x = normal(200, 5, 7, size=6)
    y = run(checked(model), {"x": x})[0]
    np.testing.assert_array_equal(y, softmax_of_the_npu(x, axis))
    np.testing.assert_allclose(y, run(proto, {"x": x})[0], atol=0.05)
    assert set(simulation_steps(model)) == {n.name for n in model.graph}


def test_masked_and_huge_scores_give_no_nan():
    softmax = node("Softmax", ["x"], ["y"])
    proto = build([softmax], {"x": [2, 4]}, {"y": None})
    model, _, _ = rewrite(proto, simulate_softmax)
    lowest = float(np.finfo(np.float32).min)
    x = np.float32([[1, -np.inf, lowest, 1], [50, 20, -90, lowest]])
    y = run(checked(model), {"x": x})[0]
    np.testing.assert_allclose(y, [[0.5, 0, 0, 0.5], [1, 0, 0, 0]], atol=1e-2)


def test_old_softmax_stays():
    proto = build([node("Softmax", ["x"], ["y"], name="it")], {"x": [2, 4]}, {"y": None}, opset=11)
    model, count, notes = rewrite(proto, simulate_softmax)
    assert (count, op_types(model)) == (0, {"Softmax": 1})
    assert "opset 11" in notes[0]


def instance_norm_of_the_npu(x, gamma, beta, epsilon):
    axes = tuple(range(2, x.ndim))
    ones = (1,) * (x.ndim - 2)
    x = x.astype(BF16)
    wide = x.astype(np.float64)
    mean = wide.mean(axis=axes, keepdims=True)
    variance = (wide**2).mean(axis=axes, keepdims=True) - mean**2
    inverse = (1 / np.sqrt(variance + epsilon)).astype(BF16)
    unit = (wide - mean).astype(BF16) * inverse
    gamma, beta = (a.astype(BF16).reshape(-1, *ones) for a in (gamma, beta))
    return (unit * gamma + beta).astype(np.float32)


@pytest.mark.parametrize("space", [(9,), (5, 6)])
@pytest.mark.parametrize("opset", [13, 18])
def test_instance_norm_follows_the_steps(space, opset):
    constants = {"gamma": 1 + normal(3, size=0.2), "beta": normal(3, seed=1)}
    norm = node("InstanceNormalization", ["x", "gamma", "beta"], ["y"], name="it", epsilon=1e-3)
    proto = build([norm], {"x": [2, 3, *space]}, {"y": None}, constants, opset=opset)
    model, count, notes = rewrite(proto, simulate_instance_norm)
    assert (count, notes) == (1, [])
    x = normal(2, 3, *space, seed=3, size=4)
    y = run(checked(model), {"x": x})[0]
    expected = instance_norm_of_the_npu(x, constants["gamma"], constants["beta"], 1e-3)
    # A sum in float32 or float64 may round to neighbours; one step of bfloat16 is 2^-8.
    np.testing.assert_allclose(y, expected, rtol=2**-7, atol=2**-7)
    assert np.mean(y == expected) > 0.95
    np.testing.assert_allclose(y, run(proto, {"x": x})[0], atol=0.05)


def test_an_instance_norm_with_computed_parameters_stays():
    norm = node("InstanceNormalization", ["x", "gamma", "beta"], ["y"], name="it")
    inputs = {"x": [2, 3, 4], "gamma": [3], "beta": [3]}
    _, count, notes = rewrite(build([norm], inputs, {"y": None}), simulate_instance_norm)
    assert count == 0
    assert "'it'" in notes[0]
