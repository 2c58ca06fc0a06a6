"""Each output of a Split becomes a Slice that computes the same."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import build, node
from support.rewriting import assert_same, op_types, rewrite

from bitwright.prepare import split_to_slice


def model_of(sizes, outputs, *, opset=17, shape=(2, 6, 5), kept=None, **attributes):
    names = [f"y{i}" for i in range(outputs)]
    constants = {}
    inputs = ["x"]
    if sizes is not None and opset < 13:
        attributes["split"] = sizes
    elif sizes is not None:
        constants["sizes"] = np.array(sizes, np.int64)
        inputs.append("sizes")
    split = node("Split", inputs, names, name="split", **attributes)
    uses = [node("Relu", [name], [f"r{name}"]) for name in names]
    kept = names if kept is None else kept
    returned = dict.fromkeys(kept) | {f"r{name}": None for name in kept}
    return build([split, *uses], {"x": shape}, returned, constants, opset=opset)


@pytest.mark.parametrize("opset", [11, 13, 18, 21])
@pytest.mark.parametrize("axis", [1, -2])
def test_sizes_that_are_given(opset, axis):
    proto = model_of([1, 3, 2], 3, opset=opset, axis=axis)
    model, count, notes = rewrite(proto, split_to_slice)
    assert (count, notes, op_types(model)) == (1, [], {"Slice": 3, "Relu": 3})
    assert_same(proto, model)


@pytest.mark.parametrize("opset", [11, 13])
def test_equal_parts_along_the_default_axis(opset):
    proto = model_of(None, 2, opset=opset, shape=(6, 3))
    model, count, _ = rewrite(proto, split_to_slice)
    assert (count, op_types(model)["Slice"]) == (1, 2)
    assert_same(proto, model)


def test_a_number_of_parts_that_does_not_come_out_even():
    proto = model_of(None, 3, opset=18, num_outputs=3, axis=2)  # 2, 2 and 1 of 5
    model, count, _ = rewrite(proto, split_to_slice)
    assert count == 1
    assert_same(proto, model)


def test_other_dimensions_may_be_open():
    proto = model_of([2, 4], 2, shape=("n", 6, "w"), axis=1)
    model, count, _ = rewrite(proto, split_to_slice)
    assert count == 1
    assert_same(proto, model)


def test_sizes_are_enough_where_the_axis_itself_is_open():
    proto = model_of([2, 2], 2, shape=("n", 3), axis=0)
    model, count, _ = rewrite(proto, split_to_slice)
    assert count == 1
    assert_same(proto, model)


def test_an_output_that_nobody_reads_gets_no_slice():
    split = node("Split", ["x", "sizes"], ["a", "b", "c"], name="split", axis=1)
    proto = build([split], {"x": [2, 6]}, {"a": None, "c": None}, {"sizes": np.array([1, 3, 2])})
    model, count, _ = rewrite(proto, split_to_slice)
    assert (count, op_types(model)) == (1, {"Slice": 2})
    assert_same(proto, model)


@pytest.mark.parametrize("case", ["open axis", "computed"])
def test_it_says_why_a_split_stays(case):
    proto = model_of(None, 2, shape=("n", 3))
    if case == "computed":
        split = node("Split", ["x", "sizes"], ["a", "b"], name="split")
        inputs = build([], {"x": [4, 2]}, {}).graph.input
        sizes = build([], {"sizes": [2]}, {}).graph.input
        sizes[0].type.tensor_type.elem_type = 7
        proto = build([split], [*inputs, *sizes], {"a": None, "b": None})
    model, count, notes = rewrite(proto, split_to_slice)
    assert (count, op_types(model)["Split"]) == (0, 1)
    assert "'split'" in notes[0]


def test_a_split_inside_a_body_is_replaced_there():
    body = build(
        [node("Split", ["x"], ["a", "b"], name="inner"), node("Sub", ["a", "b"], ["out"])],
        {},
        {"out": None},
    ).graph
    choice = node("If", ["yes"], ["y"], name="choice", then_branch=body, else_branch=body)
    proto = build([choice], {"x": [4, 3]}, {"y": None}, {"yes": np.array(True)})
    model, count, _ = rewrite(proto, split_to_slice)
    assert (count, op_types(model)["Slice"]) == (2, 4)
    assert_same(proto, model)
