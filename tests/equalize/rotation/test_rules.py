"""What is rotated along with a tensor: values between products, however attention is written."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import as_proto, build, info, node, normal, run, weight

from bitwright.equalize.rotation import rotate_model
from bitwright.equalize.rotation.operands import Refused, head_of_attention
from bitwright.equalize.rotation.rules import trace
from bitwright.graph import infer_shapes, load_model

WIDTH, HEADS, GROUPS, HEAD = 24, 4, 2, 8
INNER, SHARED = HEADS * HEAD, GROUPS * HEAD
RUNTIME = {"domain": "com.microsoft"}
GROUPED = {"num_heads": HEADS, "kv_num_heads": GROUPS, **RUNTIME}
LENGTHS = ["", "", "lengths", "longest"]

PACKED = [
    node("MatMul", ["x", "w_qkv"], ["qkv_product"], "qkv"),
    node("Add", ["qkv_product", "b_qkv"], ["qkv"], "qkv_bias"),
]
ATTENTIONS = {
    "grouped, packed": [
        *PACKED,
        node("GroupQueryAttention", ["qkv", "", "", *LENGTHS], ["mixed"], "attention", **GROUPED),
    ],
    "grouped, split": [
        *PACKED,
        node("Split", ["qkv", "sizes"], ["q", "k", "v"], "split", axis=-1),
        node("GroupQueryAttention", ["q", "k", "v", *LENGTHS], ["mixed"], "attention", **GROUPED),
    ],
    "of many heads": [
        node("MatMul", ["x", "w_q"], ["q"], "q"),
        node("MatMul", ["x", "w_wide"], ["wide"], "wide"),
        node("Slice", ["wide", "zero", "inner", "last"], ["k"], "k"),
        node("Slice", ["wide", "inner", "end", "last"], ["v"], "v"),
        node("MultiHeadAttention", ["q", "k", "v", "b_heads"], ["mixed"], "attention",
             num_heads=HEADS, **RUNTIME),
    ],
    "of ONNX": [
        node("MatMul", ["x", "w_q"], ["q"], "q"),
        node("MatMul", ["x", "w_k"], ["k"], "k"),
        node("MatMul", ["x", "w_vt"], ["v"], "v"),
        node("Attention", ["q", "k", "v"], ["mixed"], "attention", q_num_heads=HEADS,
             kv_num_heads=GROUPS),
    ],
}  # fmt: skip


def make(attention):
    constants = {
        "w_qkv": weight(WIDTH, INNER + 2 * SHARED, seed=1),
        "b_qkv": normal(INNER + 2 * SHARED, seed=2),
        "w_q": weight(WIDTH, INNER, seed=3),
        "w_k": weight(WIDTH, SHARED, seed=4),
        "w_vt": weight(WIDTH, SHARED, seed=5),
        "w_wide": weight(WIDTH, 2 * INNER, seed=6),
        "b_heads": normal(3 * INNER, seed=7),
        "w_o": weight(INNER, WIDTH, seed=8),
        "sizes": np.array([INNER, SHARED, SHARED]),
        "zero": np.array([0]),
        "inner": np.array([INNER]),
        "end": np.array([2 * INNER]),
        "last": np.array([-1]),
        "lengths": np.array([5], np.int32),
        "longest": np.array(6, np.int32),
    }
    nodes = [*attention, node("MatMul", ["mixed", "w_o"], ["y"], "o")]
    read = {name for each in nodes for name in each.input}
    given = {name: array for name, array in constants.items() if name in read}
    domains = ["com.microsoft"]
    shapes = {"x": [1, 6, WIDTH]}
    return build(nodes, shapes, [info("y")], given, opset=23, ir_version=11, domains=domains)


def opened(model):
    changed = load_model(model)
    infer_shapes(changed)
    return changed


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_values_are_rotated_between_the_products(kind):
    model = make(ATTENTIONS[kind])
    changed = opened(model)
    assert rotate_model(changed).rotation.attentions == 1
    x = normal(1, 6, WIDTH, seed=9)
    expected, found = run(model, {"x": x})[0], run(as_proto(changed), {"x": x})[0]
    np.testing.assert_allclose(found, expected, atol=2e-6 * np.abs(expected).max())
    before, after = opened(model).graph.initializers, changed.graph.initializers
    same = {n for n in after if np.array_equal(after[n].const_value, before[n].const_value)}
    assert "w_o" not in same and {"w_q", "w_k"} & set(after) <= same
    if "w_qkv" in after:  # queries and keys stay as they are
        start = INNER + SHARED
        for name in ("w_qkv", "b_qkv"):
            old, new = (side[name].const_value.numpy() for side in (before, after))
            np.testing.assert_array_equal(old[..., :start], new[..., :start])
            assert not np.allclose(old[..., start:], new[..., start:])


def test_a_head_has_the_size_that_its_operator_says():
    changed = opened(make(ATTENTIONS["grouped, packed"]))
    assert [head_of_attention(one) for one in changed.graph] == [None, None, HEAD, None]


@pytest.mark.parametrize(
    ("behind", "reason"),
    [
        ([node("Relu", ["mixed"], ["y"], "relu")], "Relu 'relu' reads it"),
        ([node("Mul", ["mixed", "mixed"], ["y"], "square")], "squares its elements"),
        ([node("ReduceMean", ["mixed", "zero"], ["y"], "mean")], "sums over other axes"),
        ([node("Softmax", ["mixed"], ["y"], "softmax")], "Softmax 'softmax' reads it"),
        ([node("Cast", ["mixed"], ["y"], "cast", to=7)], "makes no floats"),
        ([node("Identity", ["mixed"], ["y"], "same")], "'y' is an output of the model"),
        (
            [node("Transpose", ["mixed"], ["y"], "transpose", perm=[0, 2, 1])],
            "Transpose 'transpose' changes the last axis",
        ),
        (
            [node("Slice", ["mixed", "zero", "lengths64", "last"], ["y"], "slice")],
            "cuts what is rotated into pieces",
        ),
        ([node("Concat", ["mixed", "mixed"], ["y"], "join", axis=-1)], "joins along the last axis"),
        ([node("Div", ["x24", "mixed"], ["y"], "div")], "Div 'div' reads it at place 1"),
        ([node("Pow", ["mixed", "three"], ["y"], "cube")], "Pow 'cube' is no square"),
        (
            [node("MatMul", ["mixed", "columns"], ["y"], "scores")],
            "reads it at place 0",
        ),
    ],
)
def test_what_a_rotation_would_change_is_refused_with_a_reason(behind, reason):
    constants = {
        "zero": np.array([0]),
        "last": np.array([-1]),
        "lengths64": np.array([5]),
        "three": np.float32(3),
        "w": weight(INNER, INNER),
    }
    model = build(
        [node("MatMul", ["x", "w"], ["mixed"], "product"), *behind],
        [info("x", [1, 6, INNER]), info("x24", [1, 6, INNER]), info("columns", [1, INNER, 3])],
        [info("y", dtype=7 if "floats" in reason else 1)],
        constants,
        opset=18,
    )
    changed = opened(model)
    value = changed.graph[0].outputs[0]
    with pytest.raises(Refused, match=reason):
        trace(value, INNER)


@pytest.mark.parametrize(
    "movement",
    [
        node("Reshape", ["mixed", "shape"], ["y"], "reshape"),
        node("Slice", ["mixed", "zero", "two", "middle"], ["y"], "slice"),
        node("Div", ["mixed", "number"], ["y"], "div"),
    ],
    ids=lambda each: each.op_type,
)
def test_a_tensor_of_unknown_width_is_refused(movement):
    model = build(
        [node("MatMul", ["x", "w"], ["mixed"], "product"), movement],
        [info("x", [1, 6, WIDTH]), info("shape", [2], 7), info("number", [1])],
        [info("y")],
        {
            "w": weight(WIDTH, INNER),
            "zero": np.array([0]),
            "two": np.array([2]),
            "middle": np.array([1]),
        },
    )
    changed = opened(model)
    changed.graph[1].outputs[0].shape = None
    with pytest.raises(Refused, match="width"):
        trace(changed.graph[0].outputs[0], INNER)


def test_values_of_the_caller_are_no_cache_though_results_leave_the_model():
    """An input and an output of the model, of which the one is not what the other becomes."""
    model = build(
        [
            node("MatMul", ["shares", "values"], ["mixed"], "attention"),
            node("MatMul", ["mixed", "w"], ["y"], "product"),
        ],
        {"shares": [1, 6, 6], "values": [1, 6, HEAD]},
        {"y": [1, 6, WIDTH], "mixed": [1, 6, HEAD]},
        {"w": weight(HEAD, WIDTH)},
    )
    value = opened(model).graph[0].outputs[0]
    with pytest.raises(Refused, match=r"is an (in|out)put of the model"):
        trace(value, HEAD, caches=True)


def test_constants_that_are_split_or_joined_are_rotated_themselves():
    nodes = [
        node("Split", ["table", "halves"], ["first", "second"], "split", axis=0),
        node("Concat", ["first", "x"], ["joined"], "join", axis=0),
        node("MatMul", ["joined", "w"], ["y"], "product"),
        node("MatMul", ["second", "w"], ["z"], "other"),
    ]
    model = build(
        [node("MatMul", ["given", "v"], ["x"], "first_product"), *nodes],
        {"given": [2, WIDTH]},
        {"y": [5, WIDTH], "z": [3, WIDTH]},
        {
            "table": normal(6, HEAD),
            "halves": np.array([3, 3]),
            "w": weight(HEAD, WIDTH),
            "v": weight(WIDTH, HEAD),
        },
    )
    changed = opened(model)
    found = trace(changed.graph[0].outputs[0], HEAD)
    edited = {(one.name, index) for one, index in found.edits}
    assert edited == {("split", 0), ("first_product", 1), ("product", 1), ("other", 1)}


def test_a_tensor_that_a_body_reads_is_refused():
    body = build([node("Identity", ["mixed"], ["inside"])], [], [info("inside")]).graph
    other = build([node("Neg", ["mixed"], ["outside"])], [], [info("outside")]).graph
    model = build(
        [
            node("MatMul", ["x", "w"], ["mixed"], "product"),
            node("If", ["flag"], ["y"], "choice", then_branch=body, else_branch=other),
        ],
        [info("x", [1, 6, WIDTH]), info("flag", [], 9)],
        [info("y")],
        {"w": weight(WIDTH, INNER)},
    )
    value = opened(model).graph[0].outputs[0]
    with pytest.raises(Refused, match="inside a body"):
        trace(value, INNER)
