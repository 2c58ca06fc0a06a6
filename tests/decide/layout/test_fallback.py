"""Which sums before a Softmax are taken for attention masks, and stay float."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import build, node, normal

import bitwright
from bitwright.recipe import Placement, Recipe, Selection

RECIPE = Recipe(
    select=Selection(op_types=("MatMul", "Add", "Softmax")), place=Placement(isolated=True)
)


def attention():
    nodes = [
        node("MatMul", ["x", "w"], ["scores"], "product"),
        node("Add", ["scores", "mask"], ["masked"], "sum"),
        node("Softmax", ["masked"], ["shares"], "softmax", axis=-1),
        node("MatMul", ["shares", "v"], ["y"], "values"),
    ]
    inputs = {"x": [4, 8], "mask": [4, 8]}
    return build(nodes, inputs, {"y": None}, {"w": normal(8, 8), "v": normal(8, 8, seed=1)})


@pytest.mark.parametrize(
    ("value", "size", "is_mask"),
    [
        (-10000.0, 1.0, True),
        (-1100.0, 1.0, True),
        (-900.0, 1.0, False),  # scores may reach so far
        (-60.0, 0.1, False),
        (-2000.0, 100.0, False),  # not so far beyond the largest score
    ],
)
def test_a_mask_lies_far_below_zero_and_far_beyond_the_scores(value, size, is_mask):
    mask = np.where(np.arange(32).reshape(4, 8) % 3, 0, value).astype(np.float32)
    samples = [{"x": normal(4, 8, seed=seed) * size, "mask": mask} for seed in range(4)]
    plan = bitwright.make_plan(attention(), data=samples, recipe=RECIPE)
    found = plan.nodes["sum"]
    assert found.quantized != is_mask
    assert ("attention mask" in (found.reason or "")) == is_mask
    assert plan.nodes["values"].quantized
