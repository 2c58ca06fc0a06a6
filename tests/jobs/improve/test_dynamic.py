"""Effort on a dynamic recipe: outliers of channels go into the weights where that helps."""

import numpy as np
import pytest
from support.models import build, node, ops, quality

import bitwright
from bitwright.errors import DataError, RecipeError
from bitwright.recipe import SmoothQuant

SAMPLES = [
    {"x": np.random.default_rng(seed).normal(size=(6, 64)).astype(np.float32)} for seed in range(16)
]


def norm_and_product(outlier):
    """Return a norm whose fourth channel is as much larger, and a product that makes up for it."""
    random = np.random.default_rng(0)
    scale, weight = np.ones(64, np.float32), random.normal(size=(64, 96)).astype(np.float32)
    scale[3] *= outlier
    weight[3] /= outlier
    nodes = [
        node("LayerNormalization", ["x", "scale", "bias"], ["n"], "norm"),
        node("MatMul", ["n", "weight"], ["y"], "product"),
    ]
    constants = {"scale": scale, "bias": np.zeros(64, np.float32), "weight": weight}
    return build(nodes, {"x": [None, 64]}, {"y": None}, constants, opset=17)


def quantized(outlier, **options):
    given = {"recipe": "int8-dynamic", "effort": "medium", "data": SAMPLES, **options}
    return bitwright.quantize(norm_and_product(outlier), progress=False, **given)


def effort_notes(plan):
    return [note for note in plan.notes if note.startswith("effort medium")]


def test_outliers_are_smoothed_where_that_comes_closer_to_float():
    result, plain = quantized(60), quantized(60, effort=None, data=None)
    assert result.plan.recipe.smooth == SmoothQuant(alpha=0.5)
    assert result.plan.recipe.name == "int8-dynamic, effort medium"
    [note] = effort_notes(result.plan)
    assert note.endswith("(kept)")
    better, worse = (quality(norm_and_product(60), one.model, SAMPLES) for one in (result, plain))
    assert better > worse + 15


def test_where_nothing_stands_out_the_recipe_stays_as_it_is():
    result, plain = quantized(1), quantized(1, effort=None, data=None)
    [note] = effort_notes(result.plan)
    assert note.endswith("(not kept)") and result.plan.recipe == plain.plan.recipe
    assert ops(result) == ops(plain)


def test_a_plan_is_made_with_effort_too():
    options = {"recipe": "int8-dynamic", "effort": "medium", "data": SAMPLES, "progress": False}
    plan = bitwright.make_plan(norm_and_product(60), **options)
    result = quantized(60)
    assert (plan.smoothing == result.plan.smoothing and plan.notes == result.plan.notes[:-1]) or (
        plan.notes == result.plan.notes
    )


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"effort": "high"}, RecipeError, "can only smooth activations, which is effort 'medium'"),
        ({"data": None}, DataError, "effort 'medium' .* needs data"),
        ({"data": SAMPLES[:7]}, DataError, "8 samples.* there are 7"),
        ({"recipe": {"base": "int8-dynamic", "smooth": {}}}, RecipeError, "does already"),
    ],
)
def test_what_effort_cannot_do_for_a_dynamic_recipe_is_refused(options, error, words):
    with pytest.raises(error, match=words):
        quantized(60, **options)
