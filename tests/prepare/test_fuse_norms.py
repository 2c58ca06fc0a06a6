"""The pieces of an instance norm, in any order, become one operator that computes the same."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import build, node, normal
from support.rewriting import assert_same, op_types, rewrite

from bitwright.prepare import fuse_instance_norm, fuse_layer_norm
from bitwright.prepare.fuse_norms import fuse_rms_norm

CONSTANTS = {
    "gamma": 1 + normal(1, 3, 1, 1, seed=1, size=0.3),
    "beta": normal(3, 1, 1, seed=2),
    "eps": np.float32(1e-3),
    "two": np.float32(2),
    "one": np.float32(1),
    "axes": np.array([-1, 2]),
}


class Pieces:
    """Writes nodes; `swap` exchanges the operands wherever their order does not matter."""

    def __init__(self, *, swap=False, pool=False, opset=17, power=False):
        self.swap, self.pool, self.opset, self.power = swap, pool, opset, power
        self.nodes = []

    def add(self, op, *inputs, to):
        if self.swap and op in ("Add", "Mul"):
            inputs = inputs[::-1]
        self.nodes.append(node(op, list(inputs), [to], name=f"{op}_{to}"))
        return to

    def mean(self, x, to):
        if self.pool:
            return self.add("GlobalAveragePool", x, to=to)
        if self.opset >= 18:
            return self.add("ReduceMean", x, "axes", to=to)
        self.nodes.append(node("ReduceMean", [x], [to], axes=[2, 3]))
        return to

    def root(self):
        self.mean("x", "mean")
        self.add("Sub", "x", "mean", to="d")
        if self.power:
            self.add("Pow", "d", "two", to="dd")
        else:
            self.add("Mul", "d", "d", to="dd")
        self.mean("dd", "var")
        self.add("Add", "var", "eps", to="ve")
        return self.add("Sqrt", "ve", to="std")

    def model(self, outputs=("y",), shape=("n", 3, 5, 6)):
        used = {name for n in self.nodes for name in n.input}
        constants = {k: v for k, v in CONSTANTS.items() if k in used}
        returned = dict.fromkeys(outputs)
        return build(self.nodes, {"x": shape}, returned, constants, opset=self.opset)


def assert_fuses(proto):
    model, count, _ = rewrite(proto, fuse_instance_norm)
    assert (count, op_types(model)) == (1, {"InstanceNormalization": 1})
    assert_same(proto, model, rtol=1e-4, atol=1e-5)


def factored(**options):
    """The vendor's pattern: x s + (beta - mean s) with s = gamma / sqrt(var + eps)."""
    pieces = Pieces(**options)
    pieces.root()
    pieces.add("Reciprocal", "std", to="r")
    pieces.add("Mul", "r", "gamma", to="s")
    pieces.add("Mul", "x", "s", to="xs")
    pieces.add("Mul", "mean", "s", to="ms")
    pieces.add("Sub", "beta", "ms", to="shift")
    pieces.add("Add", "xs", "shift", to="y")
    return pieces


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("opset", [11, 17, 18])
def test_the_factored_form(swap, pool, opset):
    assert_fuses(factored(swap=swap, pool=pool, opset=opset).model())


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("inverse", ["Div", "Reciprocal", "one over"])
def test_the_plain_form(swap, power, inverse):
    pieces = Pieces(swap=swap, power=power)
    pieces.root()
    if inverse == "Div":
        pieces.add("Div", "d", "std", to="n")
    else:
        given = ("Reciprocal", "std") if inverse == "Reciprocal" else ("Div", "one", "std")
        pieces.add(*given, to="r")
        pieces.add("Mul", "d", "r", to="n")
    pieces.add("Mul", "n", "gamma", to="ng")
    pieces.add("Add", "ng", "beta", to="y")
    assert_fuses(pieces.model())


@pytest.mark.parametrize("last", ["Mul", "Add", None])
def test_scale_and_shift_may_be_missing(last):
    pieces = Pieces()
    pieces.root()
    pieces.add("Div", "d", "std", to="n" if last else "y")
    if last:
        pieces.add(last, "n", "gamma" if last == "Mul" else "beta", to="y")
    assert_fuses(pieces.model())


@pytest.mark.parametrize("case", ["read elsewhere", "returned", "other mean", "other beta"])
def test_it_refuses_what_is_something_else(case):
    pieces, outputs = factored(), ("y",)
    match case:
        case "read elsewhere":
            pieces.add("Neg", "var", to="z")
            outputs = ("y", "z")
        case "returned":
            outputs = ("y", "std")
        case "other mean":
            pieces.nodes[0] = node("ReduceMean", ["x"], ["mean"], axes=[1, 2, 3])
        case "other beta":
            pieces.nodes[-2] = node("Sub", ["x", "ms"], ["shift"])
    before = pieces.model(outputs)
    model, count, _ = rewrite(before, fuse_instance_norm)
    assert count == 0
    assert_same(before, model)


def test_channels_of_unknown_number_stay():
    proto = factored().model(shape=("n", "c", 5, 6))
    assert rewrite(proto, fuse_instance_norm)[1] == 0


SHAPE = (2, 5, 6)


def model_of(
    *, opset=17, axis=-1, square="Pow", gamma=True, beta=True, swap=False, outputs=("y",), eps=1e-5
):
    constants = {
        "axes": np.array([axis]),
        "two": np.float32(2),
        "eps": np.float32(eps),
        "gamma": normal(6, seed=1),
        "beta": normal(6, seed=2),
    }
    as_input = ["axes"] if opset >= 18 else []
    given = {} if as_input else {"axes": [axis]}
    nodes = [
        node("ReduceMean", ["x", *as_input], ["m"], **given),
        node("Sub", ["x", "m"], ["d"]),
        node(square, ["d", "two" if square == "Pow" else "d"], ["dd"]),
        node("ReduceMean", ["dd", *as_input], ["v"], **given),
        node("Add", ["eps", "v"] if swap else ["v", "eps"], ["e"]),
        node("Sqrt", ["e"], ["s"]),
        node("Div", ["d", "s"], ["n"]),
    ]
    last = "n"
    for wanted, op, constant in ((gamma, "Mul", "gamma"), (beta, "Add", "beta")):
        if wanted:
            pair = [constant, last] if swap else [last, constant]
            nodes.append(node(op, pair, [f"{last}_{constant}"]))
            last = f"{last}_{constant}"
    nodes[-1].output[0] = "y"
    used = {name for one in nodes for name in one.input}
    kept = {name: value for name, value in constants.items() if name in used}
    return build(nodes, {"x": SHAPE}, dict.fromkeys(outputs), kept, opset=opset)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"opset": 18},
        {"axis": 2},
        {"square": "Mul"},
        {"gamma": False},
        {"beta": False},
        {"gamma": False, "beta": False},
        {"swap": True},
    ],
)
def test_all_pieces_become_one(options):
    proto = model_of(**options)
    model, count, notes = rewrite(proto, fuse_layer_norm)
    assert (count, notes, op_types(model)) == (1, [], {"LayerNormalization": 1})
    assert_same(proto, model, samples=[{"x": normal(*SHAPE)}])


@pytest.mark.parametrize("options", [{"opset": 13}, {"axis": 1}])
def test_older_opsets_and_other_axes_stay(options):
    assert rewrite(model_of(**options), fuse_layer_norm)[1] == 0


@pytest.mark.parametrize("between", ["m", "d", "v", "s"])
def test_a_tensor_in_between_that_is_read_elsewhere_stays(between):
    assert rewrite(model_of(outputs=("y", between)), fuse_layer_norm)[1] == 0


def test_what_is_read_before_its_scale_is_normalized_alone():
    proto = model_of(outputs=("y", "n"))
    model, count, _ = rewrite(proto, fuse_layer_norm)
    assert count == 1 and op_types(model) == {"LayerNormalization": 1, "Mul": 1, "Add": 1}
    assert_same(proto, model, samples=[{"x": normal(*SHAPE)}])


def rms_model_of(*, opset=18, inverse="Reciprocal", gamma=True, axis=-1, read=None):
    """A written-out RMS norm, divided by or multiplied by the inverse."""
    inverted = [node("Div", ["one", "s"], ["i"])] if inverse == "Div" else []
    inverted = inverted or [node("Reciprocal", ["s"], ["i"])]
    last = "n" if gamma else "y"
    nodes = [
        node("Mul", ["x", "x"], ["xx"]),
        node("ReduceMean", ["xx", "axes"], ["v"]),
        node("Add", ["v", "eps"], ["e"]),
        node("Sqrt", ["e"], ["s"]),
        *(inverted if inverse else ()),
        node("Mul", ["i", "x"], [last]) if inverse else node("Div", ["x", "s"], [last]),
        *([node("Mul", ["gamma", "n"], ["y"])] if gamma else []),
    ]
    constants = {
        "axes": np.array([axis]),
        "eps": np.float32(1e-6),
        "one": np.float32(1),
        "gamma": normal(6, seed=1),
    }
    used = {name for one in nodes for name in one.input}
    kept = {name: value for name, value in constants.items() if name in used}
    return build(
        nodes, {"x": SHAPE}, dict.fromkeys(["y", *([read] if read else [])]), kept, opset=opset
    )


@pytest.mark.parametrize(
    "options",
    [{}, {"inverse": "Div"}, {"inverse": None}, {"gamma": False}],
)
def test_an_rms_norm_is_half_of_the_layer_norm_of_x_beside_minus_x(options):
    proto = rms_model_of(**options)
    model, changed, _ = rewrite(proto, fuse_rms_norm)
    assert changed == 1
    fused = {"Neg": 1, "Concat": 1, "LayerNormalization": 1, "Slice": 1}
    assert op_types(model) == fused
    assert_same(proto, model)


@pytest.mark.parametrize("options", [{"axis": 1}, {"read": "e"}])
def test_other_axes_and_pieces_that_are_read_elsewhere_stay(options):
    assert rewrite(rms_model_of(**options), fuse_rms_norm)[1] == 0
