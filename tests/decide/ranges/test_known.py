"""Ranges by definition: fitted to what is observed, for those who do not ask for another."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.models import build, node, normal, quality, weight

import bitwright
from bitwright.decide.ops import OPERATORS
from bitwright.decide.ranges.known import (
    cut_saturated,
    fit_known_range,
    known_range,
    saturation_points,
)
from bitwright.graph import load_model
from bitwright.numerics.scales import affine_parameters
from bitwright.numerics.types import INT8, UINT8
from bitwright.recipe import PRESETS, Percentile, Recipe

FUNCTIONS = {
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "HardSigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "Tanh": np.tanh,
    "Softmax": lambda x: np.exp(x - x.max()) / np.exp(x - x.max()).sum(),
}


def test_every_known_range_is_that_of_the_function():
    x = np.linspace(-40, 40, 4001)
    known = {name: rule.output_range for name, rule in OPERATORS.items() if rule.output_range}
    assert known.keys() == FUNCTIONS.keys()
    for name, ends in known.items():
        found = FUNCTIONS[name](x if name != "Softmax" else x[[0, -1]])
        assert (found.min(), found.max()) == pytest.approx(ends, abs=1e-12)


def gated(function, *between):
    """A product behind a function, and perhaps behind what moves its values."""
    names = ["x", "h", *(f"m{i}" for i in range(len(between))), "y"]
    middle = [
        node(op, [names[i + 1]], [names[i + 2]], name=names[i + 2]) for i, op in enumerate(between)
    ]
    nodes = [
        node(function, ["x"], ["h"], name="function"),
        *middle,
        node("MatMul", [names[-2], "w"], ["y"], name="product"),
    ]
    return build(nodes, {"x": [16, 16]}, {"y": [16, 8]}, {"w": weight(16, 8)}), names[-2]


@pytest.mark.parametrize("between", [(), ("Transpose",), ("Transpose", "Identity")])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_known_range_is_found_behind_what_moves_values(function, between):
    model, name = gated(function, *between)
    graph = load_model(model).graph
    (value,) = (node.inputs[0] for node in graph if node.op_type == "MatMul")
    assert value is not None and value.name == name
    assert known_range(value) == OPERATORS[function].output_range
    assert known_range(graph.inputs[0]) is None


def test_an_operator_of_the_same_name_elsewhere_has_no_known_range():
    x, y = (ir.val(name, ir.DataType.FLOAT, [4]) for name in "xy")
    ir.node("Tanh", [x], outputs=[y], domain="custom")
    assert known_range(y) is None


ends = st.floats(-1.0, 1.0)


@given(low=ends, high=ends, known=st.sampled_from([(0.0, 1.0), (-1.0, 1.0)]))
def test_a_fitted_range_covers_what_was_seen_and_is_at_most_a_tenth_wider(low, high, known):
    low, high = sorted((max(low, known[0]), max(high, known[0])))
    start, end = fit_known_range(known, low, high)
    assert known[0] <= start <= min(low, 0.0)
    assert known[1] >= end >= max(high, 0.0)
    assert end - start <= 1.1 * (max(high, 0.0) - min(low, 0.0)) + 1e-12


def planned(recipe, size=1.0, function="Sigmoid"):
    model, name = gated(function)
    samples = [{"x": normal(16, 16, seed=seed, size=size)} for seed in range(4)]
    plan = bitwright.make_plan(model, data=samples, recipe=recipe)
    seen = FUNCTIONS[function](np.stack([sample["x"] for sample in samples]))
    return plan.tensors[name], seen


def test_no_method_clips_what_has_a_known_range():
    clipping = Percentile(percentile=90.0)
    entry, seen = planned(Recipe(ranges=clipping))
    assert (entry.method, entry.range) == ("by definition", (0.0, pytest.approx(1.0)))
    entry, _ = planned(Recipe(ranges=clipping, emulate={"known_ranges": False}))
    assert entry.method == "percentile"
    assert entry.range[1] < seen.max()
    entry, _ = planned(Recipe(overrides={"h": {"ranges": clipping}}))
    assert entry.method == "percentile"


def test_few_samples_leave_room_for_more():
    entry, seen = planned("int8", size=0.01)
    assert entry.range == (0.0, pytest.approx(1.1 * seen.max(), rel=1e-6))
    power, _ = planned(Recipe(scales="power-of-two"), size=4.0)
    assert power.scale == 2**-8  # to reach 1 itself would take twice the scale


def test_samples_with_larger_values_are_clipped_less():
    model, _ = gated("Tanh")
    few = [{"x": normal(16, 16, seed=0, size=0.4)}]
    more = [{"x": normal(16, 16, seed=seed, size=0.44)} for seed in range(1, 8)]
    recipes = Recipe(), Recipe(emulate={"known_ranges": False})
    results = [
        bitwright.quantize(model, data=few, recipe=recipe, holdout=False) for recipe in recipes
    ]
    fitted, observed = (quality(model, result.model, more) for result in results)
    assert fitted > observed


def test_presets_of_other_tools_fix_softmax_alone():
    assert not any(recipe.emulate.known_ranges for recipe in PRESETS if recipe.mode == "static")
    entry, _ = planned("cpu-cnn")
    assert entry.method == "minmax"
    softmax, _ = planned("cpu-cnn", function="Softmax")
    assert (softmax.method, softmax.range) == ("by definition", (0.0, 1.0))


SIZE = [1, 4]
CONSTANTS = {
    "three": np.float32(3),
    "zero": np.float32(0),
    "six": np.float32(6),
    "row": np.float32([1, 2, 3, 4]),
}
READERS = {
    "sigmoid": ([("Sigmoid", ["x"], ["y"])], (-8, 8)),
    "relu": ([("Relu", ["x"], ["y"])], (0, math.inf)),
    "clip": ([("Clip", ["x", "zero", "six"], ["y"])], (0, 6)),
    "hard-swish": ([("HardSwish", ["x"], ["y"])], (-3, math.inf)),
    "swish": ([("Sigmoid", ["x"], ["g"]), ("Mul", ["x", "g"], ["y"])], (-8, math.inf)),
    "swish, the gate first": (
        [("Sigmoid", ["x"], ["g"]), ("Mul", ["g", "x"], ["y"])],
        (-8, math.inf),
    ),
    "hard-swish in pieces": (
        [
            ("Add", ["x", "three"], ["a"]),
            ("Clip", ["a", "zero", "six"], ["g"]),
            ("Mul", ["x", "g"], ["y"]),
        ],
        (-3, math.inf),
    ),
    "two": (
        [("HardSwish", ["x"], ["a"]), ("Sigmoid", ["x"], ["b"]), ("Add", ["a", "b"], ["y"])],
        (-8, math.inf),
    ),
    "one that sees all": (
        [("Sigmoid", ["x"], ["g"]), ("Add", ["x", "g"], ["y"])],
        (-math.inf, math.inf),
    ),
    "a gate of another": (
        [("Sigmoid", ["z"], ["g"]), ("Mul", ["x", "g"], ["y"])],
        (-math.inf, math.inf),
    ),
    "a product with itself": ([("Mul", ["x", "x"], ["y"])], (-math.inf, math.inf)),
    "a product with its tanh, which is no gate": (
        [("Tanh", ["x"], ["g"]), ("Mul", ["x", "g"], ["y"])],
        (-math.inf, math.inf),
    ),
    "a difference": (
        [("Sub", ["x", "three"], ["a"]), ("Clip", ["a", "zero", "six"], ["y"])],
        (-math.inf, math.inf),
    ),
    "another shift for each element": (
        [("Add", ["x", "row"], ["a"]), ("Clip", ["a", "zero", "six"], ["y"])],
        (-math.inf, math.inf),
    ),
    "a shift that two read": (
        [
            ("Add", ["x", "three"], ["a"]),
            ("Clip", ["a", "zero", "six"], ["c"]),
            ("Mul", ["a", "c"], ["y"]),
        ],
        (-math.inf, math.inf),
    ),
    "hard-sigmoid": ([("HardSigmoid", ["x"], ["y"])], (-2.5, 2.5)),
    "a gate that is shut at a bound of six": (
        [("Clip", ["x", "zero", "six"], ["g"]), ("Mul", ["x", "g"], ["y"])],
        (0, math.inf),
    ),
    "a gate that is never shut": (
        [("Clip", ["x", "three", "six"], ["g"]), ("Mul", ["x", "g"], ["y"])],
        (-math.inf, math.inf),
    ),
}


def reader_model(nodes):
    made = [node(op, read, written, name=written[0]) for op, read, written in nodes]
    return build(made, {"x": SIZE, "z": SIZE}, {"y": SIZE}, CONSTANTS)


@pytest.mark.parametrize("case", READERS)
def test_what_readers_tell_apart_is_found(case):
    nodes, expected = READERS[case]
    model = load_model(reader_model(nodes))
    value = next(value for value in model.graph.inputs if value.name == "x")
    assert saturation_points(value) == expected


def test_a_tensor_that_leaves_the_model_or_that_nobody_reads_is_not_cut():
    x = ir.val("x", ir.DataType.FLOAT, SIZE)
    assert saturation_points(x) == (-math.inf, math.inf)
    node = ir.node("Relu", [x])
    y = node.outputs[0]
    again = ir.node("Sigmoid", [y])
    ir.Graph([x], [y, again.outputs[0]], nodes=[node, again])
    assert saturation_points(y) == (-math.inf, math.inf)


def test_a_shifted_tensor_that_leaves_the_model_shows_all_of_what_was_shifted():
    nodes = [
        node("Add", ["x", "three"], ["a"], name="shift"),
        node("Clip", ["a", "zero", "six"], ["y"], name="clip"),
    ]
    model = load_model(build(nodes, {"x": SIZE}, {"y": SIZE, "a": SIZE}, CONSTANTS))
    assert saturation_points(model.graph.inputs[0]) == (-math.inf, math.inf)


ENDS = st.floats(0.01, 1e3)


@given(ENDS, ENDS, st.floats(-10, 0), st.floats(0.5, 10), st.sampled_from([UINT8, INT8]))
def test_the_outermost_levels_lie_at_or_beyond_the_points(low, high, below, above, qtype):
    start, end = cut_saturated(-low, high, (below, above), 255)
    assert -low <= start <= 0 <= end <= high
    scale, zero = affine_parameters(start, end, qtype)
    first, last = ((level - zero) * scale for level in (qtype.lowest, qtype.highest))
    tolerance = 1e-5 * (end - start)
    assert first <= max(below, -low + scale / 2) + tolerance
    assert last >= min(above, high - scale / 2) - tolerance


@pytest.mark.parametrize("seed", range(5))
def test_a_hard_swish_of_fewer_levels_comes_closer(seed):
    """By the runtime's formula, on values of which many lie far below -3."""
    x = np.random.default_rng(seed).standard_t(3, 20_000) * 4

    def hard_swish(values):
        return values * np.clip(values / 6 + 0.5, 0, 1)

    def error(ends):
        scale, zero = affine_parameters(*ends, UINT8)
        rounded = (np.clip(np.round(x / scale) + zero, 0, 255) - zero) * scale
        return np.square(hard_swish(rounded) - hard_swish(x)).mean()

    whole = (x.min(), x.max())
    assert error(cut_saturated(*whole, (-3.0, math.inf), 255)) < error(whole)


def test_a_plan_says_that_a_range_was_cut_and_the_model_is_closer():
    rng = np.random.default_rng(0)
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv"),
        node("Sigmoid", ["c"], ["g"], name="gate"),
        node("Mul", ["c", "g"], ["s"], name="swish"),
        node("Conv", ["s", "v"], ["y"], name="last"),
    ]
    shape = [1, 8, 6, 6]
    weights = {name: rng.standard_normal((8, 8, 1, 1)).astype(np.float32) * 4 for name in "wv"}
    model = build(nodes, {"x": shape}, {"y": shape}, weights)
    samples = [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(16)]
    found = {}
    for cut in (False, True):
        recipe = {"base": "int8-per-channel", "emulate": {"cut_saturated": cut}}
        result = bitwright.quantize(model, data=samples[:8], recipe=recipe, holdout=False)
        compared = bitwright.compare(model, result.to_proto(), data=samples[8:])
        found[cut] = result.plan.tensors["c"], compared.outputs[0].sqnr
    assert found[True][0].scale < 0.8 * found[False][0].scale
    assert "cut where its readers saturate" in found[True][0].method
    assert found[True][1] > found[False][1]
