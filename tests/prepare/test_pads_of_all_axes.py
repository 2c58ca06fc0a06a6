"""A Pad that names its axes gets the pads of all of them."""

import pytest
from support.models import build, node
from support.rewriting import assert_same, rewrite

from bitwright.prepare import pads_of_all_axes


def make(axes, pads):
    pad = node("Pad", ["x", "pads", "", "axes"], ["y"], name="pad")
    constants = {"pads": list(pads), "axes": list(axes)}
    return build([pad], {"x": [1, 2, 4, 5]}, {"y": None}, constants, opset=18)


@pytest.mark.parametrize(("axes", "pads"), [((-1, 2), (1, 2, 3, 0)), ((0,), (2, 1))])
def test_the_pads_are_those_of_the_axes(axes, pads):
    proto = make(axes, pads)
    model, changed, notes = rewrite(proto, pads_of_all_axes)
    assert (changed, notes) == (1, [])
    (pad,) = list(model.graph)
    assert len(pad.inputs) < 4 or pad.inputs[3] is None
    assert len(pad.inputs[1].const_value.numpy()) == 8
    assert_same(proto, model)


def test_a_pad_without_axes_stays():
    pad = node("Pad", ["x", "pads"], ["y"], name="pad")
    proto = build([pad], {"x": [1, 4]}, {"y": None}, {"pads": [0, 1, 0, 1]}, opset=18)
    assert rewrite(proto, pads_of_all_axes)[1:] == (0, [])


def test_computed_pads_are_noted():
    nodes = [
        node("Abs", ["given"], ["pads"], name="abs"),
        node("Pad", ["x", "pads", "", "axes"], ["y"], name="pad"),
    ]
    proto = build(nodes, {"x": [1, 4], "given": [2]}, {"y": None}, {"axes": [1]}, opset=18)
    proto.graph.input[1].type.tensor_type.elem_type = 7
    _, changed, notes = rewrite(proto, pads_of_all_axes)
    assert changed == 0 and "are not known" in notes[0]
