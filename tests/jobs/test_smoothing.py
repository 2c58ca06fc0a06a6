"""SmoothQuant as a step of a job: the prepared model stays, a smoothed copy goes on."""

import numpy as np
from support.models import build, make_samples, make_transformer, node, normal

from bitwright.jobs.calibration import Calibration
from bitwright.jobs.opening import open_model
from bitwright.jobs.smoothing import apply_factors, smooth_activations
from bitwright.recipe import Recipe, SmoothQuant
from bitwright.run import open_session, run_session


def test_the_smoothed_copy_computes_the_same_and_the_given_model_is_left():
    model = make_transformer(opset=21, ir_version=10)
    samples = make_samples(model, 4)
    prepared = open_model(model, Recipe(smooth=SmoothQuant()))
    smoothed, factors = smooth_activations(prepared, Calibration(data=samples))
    assert factors and smoothed.model is not prepared.model
    assert smoothed.notes[-1].startswith(f"smoothed {len(factors)} tensor")
    sessions = [open_session(one.model) for one in (prepared, smoothed)]
    for sample in samples:
        one, other = (run_session(session, sample) for session in sessions)
        for name, array in one.items():
            np.testing.assert_allclose(other[name], array, rtol=2e-3, atol=2e-4)
    again = apply_factors(prepared, factors)
    assert again.content_fingerprint == smoothed.content_fingerprint


def test_a_recipe_without_smoothing_changes_nothing():
    prepared = open_model(make_transformer(), Recipe())
    assert smooth_activations(prepared, Calibration()) == (prepared, {})
    assert apply_factors(prepared, {}) is prepared


def test_nothing_to_smooth_is_noted():
    nodes = [node("Conv", ["x", "w"], ["y"], "conv")]
    model = build(nodes, {"x": [1, 2, 4, 4]}, {"y": [1, 2, 4, 4]}, {"w": normal(2, 2, 1, 1)})
    prepared = open_model(model, Recipe(smooth=SmoothQuant()))
    smoothed, factors = smooth_activations(prepared, Calibration())
    assert not factors and "found nothing to smooth" in smoothed.notes[-1]
