from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from bitwright.graph import infer_shapes, infer_symbolic_shapes, iter_values, load_model


def values(model):
    return dict(iter_values(model))


def test_parts_of_computed_lengths_are_not_taken_to_be_equal(builders):
    nodes = [
        helper.make_node("Shape", ["x"], ["size"], start=1),
        helper.make_node("Sub", ["size", "six"], ["rest"]),
        helper.make_node("Concat", ["six", "rest"], ["lengths"], axis=0),
        helper.make_node("Split", ["x", "lengths"], ["a", "b"], axis=1),
        helper.make_node("Split", ["x", "given"], ["c", "d"], axis=1),
        helper.make_node("Split", ["x"], ["e", "f", "g"], axis=1, num_outputs=3),
    ]
    inputs = [builders.info("x", 1, [2, 8]), builders.info("given", 7, [2])]
    outputs = [builders.info(name, 1, None) for name in "abcdefg"]
    model = load_model(builders.build(nodes, inputs, outputs, {"six": np.array([6])}, opset=21))
    infer_symbolic_shapes(model)
    found = {name: values(model)[name].shape for name in "abcdefg"}
    assert [tuple(found[name]) for name in "abefg"] == [(2, 6), (2, 2), (2, 3), (2, 3), (2, 2)]
    assert all(found[name][0] == 2 and not isinstance(found[name][1], int) for name in "cd")


def test_axes_that_are_an_input_do_not_drop_every_dimension_of_one(builders):
    node = helper.make_node("Squeeze", ["x", "axes"], ["y"])
    inputs = [builders.info("x", 1, [1, 3, 1, 5]), builders.info("axes", 7, [1])]
    model = load_model(builders.build([node], inputs, [builders.info("y", 1, None)], {}))
    infer_symbolic_shapes(model)
    assert len(values(model)["y"].shape) == 3


@pytest.mark.parametrize(("batch", "is_known"), [("batch", False), (3, True)])
def test_no_rank_is_guessed_where_every_dimension_of_one_is_dropped(builders, batch, is_known):
    """As a score behind a Squeeze, which was exported for a batch of 1."""
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op, ["s"], [name])], name, [], [builders.info(name, 1, None)]
        )
        for name, op in (("then", "Sigmoid"), ("else", "Tanh"))
    }
    nodes = [
        helper.make_node("Squeeze", ["x"], ["s"]),
        helper.make_node("If", ["which"], ["chosen"], **branches),
        helper.make_node("Relu", ["chosen"], ["y"]),
        helper.make_node("Relu", ["x"], ["z"]),
    ]
    inputs = [builders.info("x", 1, [batch, 4, 1]), builders.info("which", 9, [])]
    outputs = [builders.info("y", 1, None), builders.info("z", 1, None)]
    model = load_model(builders.build(nodes, inputs, outputs, {}, opset=21))
    infer_symbolic_shapes(model)
    infer_shapes(model)
    assert {str(values(model)[name].shape) for name in ("s", "chosen", "y")} == (
        {"[3,4]"} if is_known else {"None"}
    )
    assert str(values(model)["z"].shape) == f"[{batch},4,1]"
