"""Zeros around negative numbers are the largest that a max pool sees, however it is optimized."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from support.models import build, node
from support.rewriting import assert_same, rewrite

import bitwright
from bitwright.prepare import keep_zero_pads

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
    ("before", "opset", "count"), [("Neg", 18, 1), ("Neg", 21, 1), ("Neg", 13, 0), ("Relu", 18, 0)]
)
def test_axes_are_named_where_numbers_may_be_negative(before, opset, count):
    # With its pads constant, the runtime fuses this model as it is, too: a Relu hides what is lost.
    proto = model_of(before, opset=opset, behind="Relu")
    model, found, _ = rewrite(proto, keep_zero_pads)
    assert found == count
    assert_same(proto, model)


def test_preprocessed_models_compute_the_same_when_optimized(tmp_path):
    """The runtime takes pads of a max pool for lower than any number."""
    proto = model_of()
    bitwright.preprocess(proto, tmp_path / "m.onnx")
    sample = {"x": np.ones((1, 2, 5, 5), np.float32)}
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    (found,) = session.run(None, sample)
    assert found.max() == 0
    assert found.min() == -1
