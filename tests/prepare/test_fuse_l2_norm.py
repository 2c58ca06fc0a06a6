"""The pieces of an L2 norm become LpNormalization, where the guard against zero hardly matters."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import build, node, normal
from support.rewriting import assert_same, op_types, rewrite

from bitwright.prepare import fuse_l2_norm

X = normal(4, 6, 5)
X[0] = 0  # zeros stay zeros


def reduce_(op, x, to, *, opset, axis=1, keepdims=1):
    as_input = opset >= (13 if op == "ReduceSum" else 18)
    if as_input:
        return node(op, [x, "axes"], [to], keepdims=keepdims)
    return node(op, [x], [to], keepdims=keepdims, axes=[axis])


def model_of(nodes, *, opset=17, eps=1e-12, outputs=("y",), axis=1, shape=(4, 6, 5)):
    constants = {
        "eps": np.float32(eps),
        "axes": np.array([axis]),
        "two": np.float32(2),
        "shape": np.array([4, 6, 5]),
    }
    used = {name for n in nodes for name in n.input}
    constants = {k: v for k, v in constants.items() if k in used}
    return build(nodes, {"x": shape}, dict.fromkeys(outputs), constants, opset=opset)


def root(*, opset=17, guard="Max", square="Mul", axis=1, swap=False):
    squared = ["x", "x"] if square == "Mul" else ["x", "two"]
    pair = ["eps", "s"] if swap else ["s", "eps"]
    nodes = [node(square, squared, ["xx"]), reduce_("ReduceSum", "xx", "s", opset=opset, axis=axis)]
    if guard is None:
        return [*nodes, node("Sqrt", ["s"], ["l"])]
    return [*nodes, node(guard, pair, ["g"]), node("Sqrt", ["g"], ["l"])]


def assert_fuses(proto):
    model, count, notes = rewrite(proto, fuse_l2_norm)
    assert (count, notes, op_types(model)) == (1, [], {"LpNormalization": 1})
    assert_same(proto, model, samples=[{"x": X}])


@pytest.mark.parametrize("opset", [11, 13, 18, 21])
@pytest.mark.parametrize("swap", [False, True])
def test_the_pattern_of_the_vendor(opset, swap):
    product = ["r", "x"] if swap else ["x", "r"]
    nodes = [
        *root(opset=opset, swap=swap),
        node("Reciprocal", ["l"], ["r"]),
        node("Mul", product, ["y"]),
    ]
    assert_fuses(model_of(nodes, opset=opset))


@pytest.mark.parametrize("guard", ["Max", "Add", "Clip"])
@pytest.mark.parametrize("square", ["Mul", "Pow"])
@pytest.mark.parametrize("axis", [1, -1])
def test_a_division_by_the_root(guard, square, axis):
    nodes = [*root(guard=guard, square=square, axis=axis), node("Div", ["x", "l"], ["y"])]
    assert_fuses(model_of(nodes, axis=axis))


@pytest.mark.parametrize("opset", [17, 18])
@pytest.mark.parametrize("widened", [None, "Shape", "constant"])
def test_the_pattern_of_torch(opset, widened):
    nodes = [
        reduce_("ReduceL2", "x", "l", opset=opset),
        node("Clip", ["l", "eps"], ["c"]),
        node("Div", ["x", "c"], ["y"]),
    ]
    if widened:
        nodes[2:] = [node("Expand", ["c", "shape"], ["e"]), node("Div", ["x", "e"], ["y"])]
    if widened == "Shape":
        nodes.insert(0, node("Shape", ["x"], ["shape"]))
    proto = model_of(nodes, opset=opset)
    if widened == "Shape":
        del proto.graph.initializer[[i.name for i in proto.graph.initializer].index("shape")]
    assert_fuses(proto)


def test_a_large_guard_stays_and_is_said():
    proto = model_of([*root(), node("Div", ["x", "l"], ["y"], name="last")], eps=1e-2)
    model, count, notes = rewrite(proto, fuse_l2_norm)
    assert count == 0
    assert "'last'" in notes[0]
    assert_same(proto, model, samples=[{"x": X}])


@pytest.mark.parametrize("case", ["read elsewhere", "no keepdims", "other x", "two axes"])
def test_it_refuses_what_is_something_else(case):
    nodes, outputs = [*root(), node("Div", ["x", "l"], ["y"])], ("y",)
    proto = None
    match case:
        case "read elsewhere":
            outputs = ("y", "l")
        case "no keepdims":
            nodes[1] = reduce_("ReduceSum", "xx", "s", opset=17, keepdims=0)
            proto = model_of(nodes, shape=(6, 6, 6))
        case "other x":
            nodes[-1] = node("Div", ["xx", "l"], ["y"])
        case "two axes":
            proto = model_of(nodes)
            at = [i.name for i in proto.graph.initializer].index("axes")
            proto.graph.initializer[at].CopyFrom(
                build([], {}, {}, {"axes": np.array([1, 2])}).graph.initializer[0]
            )
    model, count, _ = rewrite(proto or model_of(nodes, outputs=outputs), fuse_l2_norm)
    assert count == 0
    assert op_types(model)["Div"] == 1
