"""Ranges are chosen by what they do behind the products that read a tensor."""

import numpy as np
import pytest
from support.models import build, node

import bitwright
from bitwright import Percentile, load_recipe
from bitwright.jobs.improve.proposals.ranges import better_methods
from bitwright.jobs.opening import open_model


def samples_with_outliers(count=8):
    """The first channel is a hundred times as large as the others."""
    rng = np.random.default_rng(0)
    size = np.where(np.arange(16) == 0, 100.0, 1.0)
    return [{"x": (rng.normal(size=(4, 16)) * size).astype(np.float32)} for _ in range(count)]


def plans_for(first_row):
    """A product whose weight for the large channel is given, planned without and with clipping."""
    weight = np.random.default_rng(1).normal(size=(16, 8)).astype(np.float32)
    weight[0] = first_row
    steps = [
        node("MatMul", ["x", "w"], ["h"], name="product"),
        node("Relu", ["h"], ["r"], name="relu"),
        node("MatMul", ["r", "v"], ["y"], name="second"),
    ]
    other = np.random.default_rng(2).normal(size=(8, 3)).astype(np.float32)
    model = build(steps, {"x": [4, 16]}, {"y": [4, 3]}, {"w": weight, "v": other})
    recipe = load_recipe("int8")
    plans = [
        bitwright.make_plan(
            model,
            data=samples_with_outliers(),
            recipe=recipe.replace(ranges=ranges),
            progress=False,
        )
        for ranges in (recipe.ranges, Percentile(percentile=90))
    ]
    return open_model(model, recipe), plans


@pytest.mark.parametrize(("first_row", "chosen"), [(0.0, {"x": 1}), (1.0, {})])
def test_outliers_are_clipped_where_no_reader_looks_at_them(first_row, chosen):
    prepared, plans = plans_for(first_row)
    found = better_methods(prepared, plans, samples_with_outliers())
    assert {name: index for name, index in found.items() if name == "x"} == chosen


def test_the_plan_that_is_better_may_be_the_first():
    prepared, plans = plans_for(0.0)
    found = better_methods(prepared, plans[::-1], samples_with_outliers())
    assert "x" not in found
