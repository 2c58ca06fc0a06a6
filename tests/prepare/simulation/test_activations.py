"""Activations with the NPU's constants."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import build, node, run
from support.rewriting import checked, op_types, rewrite

from bitwright.prepare.simulation.activations import (
    HARD_SIGMOID_FACTOR,
    harden_sigmoids,
    round_clip_bounds,
    round_leaky_slopes,
    scale_hard_sigmoids,
)

X = np.linspace(-200, 200, 4001, dtype=np.float32)


def after(proto, change):
    model, count, notes = rewrite(proto, change)
    return model, count, notes, run(checked(model), {"x": X})[0]


def model_of(op, inputs=("x",), constants=None, opset=17, **attributes):
    n = node(op, list(inputs), ["y"], name="it", **attributes)
    return build([n], {"x": ["n"]}, {"y": None}, constants, opset=opset)


@pytest.mark.parametrize(
    ("alpha", "expected"), [(0.1, 26 / 256), (None, 3 / 256), (0.25, 0.25), (0.001, 0.0)]
)
def test_slopes_become_multiples_of_1_256(alpha, expected):
    proto = model_of("LeakyRelu", **({} if alpha is None else {"alpha": alpha}))
    model, count, _, y = after(proto, round_leaky_slopes)
    assert count == 1
    assert next(iter(model.graph)).attributes["alpha"].as_float() == np.float32(expected)
    np.testing.assert_allclose(y, np.where(X > 0, X, X * expected), rtol=1e-6)


def test_a_sigmoid_becomes_the_hard_one():
    model, count, _, y = after(model_of("Sigmoid"), harden_sigmoids)
    assert (count, op_types(model)) == (1, {"HardSigmoid": 1})
    assert next(iter(model.graph)).name == "it"
    np.testing.assert_allclose(y, np.clip(X / 6 + 0.5, 0, 1), atol=1e-6)


def test_the_hard_sigmoid_of_the_npu_is_scaled():
    assert round(HARD_SIGMOID_FACTOR, 10) == 1.0001220703
    proto = model_of("HardSigmoid", alpha=1 / 6)
    model, count, _, y = after(proto, scale_hard_sigmoids)
    assert (count, op_types(model)) == (1, {"HardSigmoid": 1, "Mul": 1})
    sigmoid, scale = model.graph
    assert scale.metadata_props["bitwright.role"] == "simulation"
    assert sigmoid.name == "it"
    np.testing.assert_allclose(y, np.clip(X / 6 + 0.5, 0, 1) * HARD_SIGMOID_FACTOR, atol=1e-6)


def test_other_hard_sigmoids_stay():
    assert rewrite(model_of("HardSigmoid"), scale_hard_sigmoids)[1] == 0
    assert rewrite(model_of("HardSigmoid", alpha=1 / 6, beta=0.4), scale_hard_sigmoids)[1] == 0


@pytest.mark.parametrize(
    ("limits", "expected"),
    [((-0.4, 5.6), (0, 6)), ((-300.0, 300.0), (-128, 127)), ((2.5, None), (2, 127)),
     ((None, None), (-128, 127))],
)  # fmt: skip
@pytest.mark.parametrize("opset", [9, 13])
def test_bounds_become_integers_of_8_bits(limits, expected, opset):
    given = {k: v for k, v in zip(("low", "high"), limits, strict=True) if v is not None}
    if opset < 11:
        renamed = {"low": "min", "high": "max"}
        proto = model_of("Clip", opset=opset, **{renamed[k]: v for k, v in given.items()})
    else:
        constants = {k: np.float32(v) for k, v in given.items()}
        proto = model_of("Clip", ["x", *given], constants, opset=opset)
    _, count, notes, y = after(proto, round_clip_bounds)
    assert (count, notes) == (1, [])
    np.testing.assert_array_equal(y, np.clip(X, *expected))


def test_a_bound_that_others_read_stays_for_them():
    nodes = [node("Clip", ["x", "low"], ["y"]), node("Add", ["x", "low"], ["z"])]
    proto = build(nodes, {"x": ["n"]}, {"y": None, "z": None}, {"low": np.float32(0.6)})
    model, count, _ = rewrite(proto, round_clip_bounds)
    clipped, added = run(checked(model), {"x": X})
    assert count == 1
    np.testing.assert_array_equal(clipped, np.clip(X, 1, 127))
    np.testing.assert_array_equal(added, X + np.float32(0.6))


def test_bounds_that_are_computed_are_named():
    proto = build([node("Clip", ["x", "low"], ["y"], name="it")], {"x": ["n"], "low": []},
                  {"y": None})  # fmt: skip
    _, count, notes = rewrite(proto, round_clip_bounds)
    assert count == 0
    assert "'it'" in notes[0]
