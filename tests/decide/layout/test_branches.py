"""Branches of transformers are found whichever way they are written."""

import onnx_ir as ir
import pytest
from support.models import build, node, weight

from bitwright.decide.layout.branches import find_branches


def dense(name, x, y):
    return node("MatMul", [x, f"{name}_w"], [y], name)


def make(nodes, **inputs):
    read = [name for item in nodes for name in item.input if name.endswith("_w")]
    shapes = {"x": ["n", 8], **inputs}
    model = build(nodes, shapes, {"y": ["n", 8]}, {name: weight(8, 8) for name in read})
    return ir.serde.deserialize_model(model)


def attention(mix):
    """x + o(mix(q, k, v)) with q, k and v of x; then a feed-forward network."""
    nodes = [
        node("Relu", ["x"], ["h"], "norm"),
        *(dense(name, "h", f"{name}_y") for name in "qkv"),
        *mix,
        dense("o", "mixed", "o_y"),
        node("Add", ["x", "o_y"], ["s"], "first_sum"),
        dense("up", "s", "up_y"),
        dense("down", "up_y", "down_y"),
        node("Add", ["down_y", "s"], ["y"], "second_sum"),
    ]
    return make(nodes)


WRITTEN_OUT = [
    node("Transpose", ["k_y"], ["k_t"], "flip"),
    node("MatMul", ["q_y", "k_t"], ["scores"], "scores"),
    node("Softmax", ["scores"], ["shares"], "shares"),
    node("MatMul", ["shares", "v_y"], ["mixed"], "mix"),
]
FUSED = [
    node(
        "MultiHeadAttention",
        ["q_y", "k_y", "v_y"],
        ["mixed"],
        "mix",
        domain="com.microsoft",
        num_heads=1,
    )
]


@pytest.mark.parametrize("mix", [WRITTEN_OUT, FUSED], ids=["written-out", "fused"])
def test_attention_and_feed_forward_are_two_branches(mix):
    model = attention(mix)
    first, second = find_branches(model, ["q", "k", "v", "o", "up", "down"])
    assert (first.join, first.products) == ("first_sum", ("q", "k", "v", "o"))
    assert first.is_attention and first.values == ("v",)
    assert (second.join, second.products) == ("second_sum", ("up", "down"))
    assert not second.is_attention and second.last == "down"


def test_a_mask_and_a_bias_are_no_joins():
    nodes = [
        dense("q", "x", "q_y"),
        node("Sqrt", ["mask"], ["m"], "mask"),
        node("Add", ["q_y", "m"], ["masked"], "add_mask"),
        node("Add", ["masked", "bias_w"], ["biased"], "add_bias"),
        node("Add", ["biased", "x"], ["y"], "join"),
    ]
    (branch,) = find_branches(make(nodes, mask=["n", 8]), ["q"])
    assert branch.join == "join"


def test_a_head_is_in_no_branch():
    assert find_branches(make([dense("head", "x", "y")]), ["head"]) == []


def test_parallel_branches_are_one():
    nodes = [
        dense("a", "x", "a_y"),
        dense("b", "x", "b_y"),
        node("Add", ["a_y", "b_y"], ["both"], "inner"),
        node("Add", ["both", "x"], ["y"], "join"),
    ]
    (branch,) = find_branches(make(nodes), ["a", "b"])
    assert (branch.join, branch.products) == ("join", ("a", "b"))
