"""Zeros around negative numbers are the largest that a max pool sees, however it is optimized."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from support.models import build, node
from support.rewriting import assert_same, op_types, rewrite

import bitwright
from bitwright.prepare import keep_zero_pads, prepare_exactly

LAST, FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


def model_of(before="Neg", *, opset=18, behind="Identity"):
    nodes = [
        node("Transpose", ["x"], ["t"], perm=LAST),
        node(before, ["t"], ["n"]),
        node("Pad", ["n", "pads"], ["p"], name="pad"),
        node("Transpose", ["p"], ["c"], perm=FIRST),
        node("MaxPool", ["c"], ["m"], kernel_shape=[3, 3], strides=[2, 2]),
        node(behind, ["m"], ["y"]),
    ]
    pads = np.array([0, 1, 1, 0, 0, 1, 1, 0])
    return build(nodes, {"x": [1, 2, 5, 5]}, {"y": None}, {"pads": pads}, opset=opset)


@pytest.mark.parametrize(
    ("before", "opset", "count"), [("Neg", 11, 1), ("Neg", 13, 1), ("Neg", 21, 1), ("Relu", 18, 0)]
)
def test_a_pool_says_that_it_has_no_pads_where_numbers_may_be_negative(before, opset, count):
    # With its pads constant, the runtime fuses this model as it is, too: a Relu hides what is lost.
    proto = model_of(before, opset=opset, behind="Relu")
    model, found, _ = rewrite(proto, keep_zero_pads)
    assert found == count
    assert_same(proto, model)


@pytest.mark.parametrize("opset", [11, 13, 18, 21])
def test_preprocessed_models_compute_the_same_when_optimized(tmp_path, opset):
    """The runtime takes pads of a max pool for lower than any number."""
    proto = model_of(opset=opset)
    bitwright.preprocess(proto, tmp_path / "m.onnx")
    sample = {"x": np.ones((1, 2, 5, 5), np.float32)}
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    (found,) = session.run(None, sample)
    assert found.max() == 0
    assert found.min() == -1


@pytest.mark.parametrize(
    ("pool", "value", "batch", "count"),
    [
        ({}, 0.0, "batch", 1),
        ({}, 0.0, 3, 0),
        ({}, 1.0, "batch", 0),
        ({"ceil_mode": 1}, 0.0, "batch", 0),
        ({"pads": [1, 1, 0, 0]}, 0.0, "batch", 0),
        ({"auto_pad": "SAME_UPPER"}, 0.0, "batch", 0),
    ],
)
def test_pads_that_are_computed_and_fold_later(pool, value, batch, count):
    """Such a pool is not joined with them as exported; it must not be when they are constant."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "place"], ["size"]),
        node("Sub", ["size", "three"], ["one"]),
        node("Concat", [*["none"] * 6, "one", "one"], ["pads"], axis=0),
        node("Neg", ["x"], ["n"]),
        node("Pad", ["n", "pads", "value"], ["p"]),
        node("MaxPool", ["p"], ["y"], kernel_shape=[2, 2], strides=[2, 2], **pool),
    ]
    arrays = {
        "place": np.array([2]), "three": np.array([3]), "none": np.array([0]),
        "value": np.float32(value),
    }  # fmt: skip
    proto = build(nodes, {"x": [batch, 2, 4, 4]}, {"y": None}, arrays)
    _, found, _ = rewrite(proto, keep_zero_pads)
    assert found == count
    if count:
        model, _, _ = rewrite(proto, lambda model: (0, prepare_exactly(model)))
        samples = [{"x": np.ones((3, 2, 4, 4), np.float32)}]
        assert_same(proto, model, samples=samples)
        assert op_types(model) == {"Neg": 1, "Pad": 1, "MaxPool": 1}
