"""SmoothQuant as a step of a job: the prepared model stays, a smoothed copy goes on."""

import numpy as np
import pytest
from support.models import build, make_cnn, make_samples, make_transformer, node, normal

from bitwright.decide.layout.static import lay_out
from bitwright.jobs import smoothing, static
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.opening import open_model
from bitwright.jobs.smoothing import apply_factors, smooth_activations
from bitwright.jobs.static import plan_static
from bitwright.recipe import CrossLayerEqualization, Recipe, SmoothQuant
from bitwright.run import Session


def test_the_smoothed_copy_computes_the_same_and_the_given_model_is_left():
    model = make_transformer(opset=21, ir_version=10)
    samples = make_samples(model, 4)
    prepared = open_model(model, Recipe(smooth=SmoothQuant()))
    given = lay_out(prepared.model, prepared.recipe)
    smoothed, layout, factors = smooth_activations(prepared, given, Calibration(data=samples))
    assert (
        layout.nodes
        == lay_out(smoothed.model, smoothed.recipe, keep_float=smoothed.keep_float).nodes
    )
    assert factors and smoothed.model is not prepared.model
    assert smoothed.notes[-1].startswith(f"smoothed {len(factors)} tensor")
    sessions = [Session(one.model) for one in (prepared, smoothed)]
    for sample in samples:
        one, other = (session.run(sample) for session in sessions)
        for name, array in one.items():
            np.testing.assert_allclose(other[name], array, rtol=2e-3, atol=2e-4)
    again = apply_factors(prepared, factors)
    assert again.content_fingerprint == smoothed.content_fingerprint


def test_a_recipe_without_smoothing_changes_nothing():
    prepared = open_model(make_transformer(), Recipe())
    layout = lay_out(prepared.model, prepared.recipe)
    assert smooth_activations(prepared, layout, Calibration()) == (prepared, layout, {})
    assert apply_factors(prepared, {}) is prepared


def test_nothing_to_smooth_is_noted():
    nodes = [node("Conv", ["x", "w"], ["y"], "conv")]
    model = build(nodes, {"x": [1, 2, 4, 4]}, {"y": [1, 2, 4, 4]}, {"w": normal(2, 2, 1, 1)})
    prepared = open_model(model, Recipe(smooth=SmoothQuant()))
    given = lay_out(prepared.model, prepared.recipe)
    smoothed, layout, factors = smooth_activations(prepared, given, Calibration())
    assert layout is given
    assert not factors and "found nothing to smooth" in smoothed.notes[-1]


@pytest.mark.parametrize(
    ("make", "fields", "count"),
    [
        (make_cnn, {}, 1),
        (make_cnn, {"equalize": CrossLayerEqualization(absorb_biases=True)}, 1),
        (make_transformer, {"smooth": SmoothQuant()}, 2),
    ],
    ids=["plain", "nothing to absorb", "smoothed"],
)
def test_each_model_of_a_job_is_laid_out_once(monkeypatch, make, fields, count):
    models = []

    def counted(model, recipe, **options):
        models.append(model)
        return lay_out(model, recipe, **options)

    for module in (static, smoothing):
        monkeypatch.setattr(module, "lay_out", counted)
    prepared = open_model(make(), Recipe(**fields))
    plan_static(prepared, Calibration(data=make_samples(make(), 4)))
    assert len(models) == len({id(model) for model in models}) == count
