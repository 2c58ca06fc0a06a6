"""The pieces of a layer norm over the last axis become LayerNormalization, from opset 17 on."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import build, node, normal
from support.rewriting import assert_same, op_types, rewrite

from bitwright.prepare import fuse_layer_norm

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
