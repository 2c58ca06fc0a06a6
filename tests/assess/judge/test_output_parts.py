"""Parts of outputs, read from graphs."""

from __future__ import annotations

import numpy as np
from onnx.helper import make_node
from support.models import build, info

from bitwright.assess.judge.output_parts import cut_output, find_heads
from bitwright.graph import infer_shapes, load_model


def opened(nodes, inputs, shape, constants=None):
    model = load_model(build(nodes, inputs, [info("y", shape)], constants))
    infer_shapes(model)
    return model


BOXES, SCORES = info("b", [1, 4, 50]), info("s", [1, 20, 50])
SCORING = make_node("Sigmoid", ["s"], ["score"])


def spans(model, shape):
    parts = cut_output("y", np.ones(shape), [], find_heads(model)["y"])
    return [(part.axis, part.span, part.kind) for part in parts]


def test_heads_that_are_concatenated_are_pieces():
    nodes = [SCORING, make_node("Concat", ["b", "score"], ["y"], axis=1)]
    model = opened(nodes, [BOXES, SCORES], [1, 24, 50])
    assert spans(model, (1, 24, 50)) == [(1, (0, 4), "sqnr"), (1, (4, 24), "sigmoid")]


def test_a_transpose_behind_the_concat_moves_the_axis():
    nodes = [
        SCORING,
        make_node("Concat", ["b", "score"], ["both"], axis=-2),
        make_node("Transpose", ["both"], ["y"], perm=[0, 2, 1]),
    ]
    model = opened(nodes, [BOXES, SCORES], [1, 50, 24])
    assert spans(model, (1, 50, 24)) == [(2, (0, 4), "sqnr"), (2, (4, 24), "sigmoid")]


def test_levels_one_behind_the_other_have_the_heads_of_each():
    nodes, ends = [], []
    for level, size in enumerate((32, 8)):
        nodes += [
            make_node("Sigmoid", [f"x{level}"], [f"p{level}"]),
            make_node("Split", [f"p{level}", "parts"], [f"b{level}", f"s{level}"], axis=3),
            make_node("Mul", [f"b{level}", "stride"], [f"c{level}"]),
            make_node("Concat", [f"c{level}", f"s{level}"], [f"d{level}"], axis=3),
            make_node("Reshape", [f"d{level}", "shape"], [f"e{level}"]),
        ]
        ends.append(info(f"x{level}", [1, 3, size, 9]))
    nodes.append(make_node("Concat", ["e0", "e1"], ["y"], axis=1))
    constants = {
        "parts": np.array([4, 5]),
        "stride": np.float32([8.0]),
        "shape": np.array([1, -1, 9]),
    }
    model = opened(nodes, ends, [1, 120, 9], constants)
    assert spans(model, (1, 120, 9)) == [(2, (0, 4), "sqnr"), (2, (4, 9), "sigmoid")]


def test_levels_without_heads_are_one_piece():
    nodes = [make_node("Concat", ["b", "c"], ["y"], axis=2)]
    model = opened(nodes, [BOXES, info("c", [1, 4, 20])], [1, 4, 70])
    assert spans(model, (1, 4, 70)) == [(1, None, "sqnr")]


def test_heads_of_unknown_size_are_one_piece():
    nodes = [SCORING, make_node("Concat", ["b", "score"], ["y"], axis=1)]
    model = opened(nodes, [info("b", [1, "n", 50]), SCORES], [1, None, 50])
    assert spans(model, (1, 24, 50)) == [(1, None, "sqnr")]


def test_a_piece_takes_its_part():
    nodes = [SCORING, make_node("Concat", ["b", "score"], ["y"], axis=1)]
    model = opened(nodes, [BOXES, SCORES], [1, 24, 50])
    values = np.arange(24 * 50).reshape(1, 24, 50)
    taken = [p.take(values) for p in cut_output("y", values, [], find_heads(model)["y"])]
    assert np.array_equal(np.concatenate(taken, axis=1), values)
