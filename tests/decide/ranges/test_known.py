"""Ranges by definition: fitted to what is observed, for those who do not ask for another."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.models import build, node, normal, quality, weight

import bitwright
from bitwright.decide.ops import OPERATORS
from bitwright.decide.ranges.known import fit_known_range, known_range
from bitwright.graph import load_model
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
