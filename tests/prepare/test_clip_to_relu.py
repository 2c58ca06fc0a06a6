"""A Clip from 0 becomes a Relu; nothing else does."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import build, node, run
from support.rewriting import assert_same, checked, op_types, rewrite

from bitwright.prepare import clip6_to_relu, clip_to_relu


def model_of(low, high, *, opset=17):
    if opset < 11:
        limits = {k: v for k, v in (("min", low), ("max", high)) if v is not None}
        return build([node("Clip", ["x"], ["y"], name="clip", **limits)], {"x": [64]},
                     {"y": None}, opset=opset)  # fmt: skip
    constants = {k: np.float32(v) for k, v in (("low", low), ("high", high)) if v is not None}
    inputs = ["x", "low" if low is not None else "", "high" if high is not None else ""]
    while not inputs[-1]:
        inputs.pop()
    clip = node("Clip", inputs, ["y"], name="clip")
    return build([clip], {"x": [64]}, {"y": None}, constants, opset=opset)


def becomes_relu(proto, change):
    model, count, _ = rewrite(proto, change)
    assert op_types(model) == ({"Relu": 1} if count else {"Clip": 1})
    assert next(iter(model.graph)).name == "clip"
    if count:
        x = np.linspace(-9, 9, 64, dtype=np.float32)
        np.testing.assert_array_equal(run(checked(model), {"x": x})[0], np.maximum(x, 0))
    return bool(count)


@pytest.mark.parametrize("opset", [9, 11, 13, 21])
def test_only_a_lower_end_of_0_counts(opset):
    assert becomes_relu(model_of(0.0, 6.0, opset=opset), clip_to_relu)
    assert becomes_relu(model_of(0.0, 1.0, opset=opset), clip_to_relu)
    assert not becomes_relu(model_of(1.0, 2.0, opset=opset), clip_to_relu)
    assert not becomes_relu(model_of(-1.0, 6.0, opset=opset), clip_to_relu)
    assert not becomes_relu(model_of(None, 6.0, opset=opset), clip_to_relu)


@pytest.mark.parametrize("opset", [9, 11, 13, 21])
def test_only_0_to_6_counts_for_the_other(opset):
    assert becomes_relu(model_of(0.0, 6.0, opset=opset), clip6_to_relu)
    assert not becomes_relu(model_of(0.0, 5.0, opset=opset), clip6_to_relu)
    assert not becomes_relu(model_of(0.0, None, opset=opset), clip6_to_relu)
    assert not becomes_relu(model_of(0.5, 6.0, opset=opset), clip6_to_relu)


def test_without_an_upper_end_it_computes_the_same():
    proto = model_of(0.0, None)
    model, count, _ = rewrite(proto, clip_to_relu)
    assert count == 1
    assert_same(proto, model)


def test_limits_that_are_computed_stay():
    proto = build([node("Clip", ["x", "low"], ["y"])], {"x": [4], "low": []}, {"y": None})
    assert rewrite(proto, clip_to_relu)[1] == 0
