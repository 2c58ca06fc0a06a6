"""HardSwish and Swish become products that compute the same."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import build, make_samples, node, ops, weight
from support.rewriting import assert_same, op_types, rewrite

import bitwright
from bitwright.prepare import swish_to_mul


@pytest.mark.parametrize(
    ("op_type", "opset", "attributes", "expected"),
    [
        ("HardSwish", 14, {}, {"HardSigmoid": 1, "Mul": 1}),
        ("HardSwish", 21, {}, {"HardSigmoid": 1, "Mul": 1}),
        ("Swish", 24, {}, {"Sigmoid": 1, "Mul": 1}),
        ("Swish", 24, {"alpha": 1.5}, {"Sigmoid": 1, "Mul": 2}),
    ],
)
def test_the_product_computes_the_same_and_keeps_the_names(op_type, opset, attributes, expected):
    swish = node(op_type, ["x"], ["y"], name="act", **attributes)
    proto = build([swish], {"x": [2, 3, 8]}, {"y": None}, opset=opset)
    model, count, _ = rewrite(proto, swish_to_mul)
    assert (count, op_types(model)) == (1, expected)
    assert list(model.graph)[-1].name == "act"
    assert_same(proto, model)


def test_nothing_of_a_hard_swish_is_left_float_for_the_npu():
    nodes = [
        node("Conv", ["x", "w1"], ["c"], name="conv1"),
        node("HardSwish", ["c"], ["h"], name="act"),
        node("Conv", ["h", "w2"], ["y"], name="conv2"),
    ]
    constants = {"w1": weight(8, 3, 3, 3), "w2": weight(4, 8, 1, 1, seed=1) * np.float32(3)}
    model = build(nodes, {"x": [1, 3, 8, 8]}, {"y": None}, constants)
    result = bitwright.quantize(model, data=make_samples(model), target="npu-cnn")
    assert not ops(result)["HardSwish"] and ops(result)["HardSigmoid"] == 1
    assert all(planned.action == "quantize" for planned in result.plan.nodes.values())
    assert bitwright.verify(result.model, "npu-cnn").ok
    assert result.outputs[0].sqnr > 25
