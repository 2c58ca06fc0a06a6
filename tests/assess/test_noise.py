"""Noise between arrays, and between the weights of two models."""

from __future__ import annotations

import math

import numpy as np
import pytest
from models_for_tests import constants_of, make_cnn, make_mlp, make_samples

import bitwright
from bitwright.assess import decibels, match_weights, signal_and_noise
from bitwright.graph import load_model


def test_decibels_at_the_ends():
    assert decibels(1.0, 0.0) == math.inf
    assert decibels(0.0, 1.0) == decibels(1.0, math.inf) == -math.inf
    assert decibels(1000.0, 1.0) == pytest.approx(30.0)


def test_energies_add_up_over_arrays_of_any_shape():
    a, b = np.ones((2, 3), np.float32), np.zeros(4, np.float32)
    assert signal_and_noise([a, b], [a, b + 1]) == (6.0, 4.0)
    with pytest.raises(ValueError, match="shorter"):
        signal_and_noise([a], [])


@pytest.mark.parametrize(
    "recipe", ["int8", "int8-per-channel", "a8w4", "a16w8", {"block_size": 4, "weight": "int4"}]
)
def test_weights_are_restored_to_within_half_a_step(recipe):
    blocks = isinstance(recipe, dict)
    model = make_mlp() if blocks else make_cnn()
    result = bitwright.quantize(model, data=make_samples(model), recipe=recipe)
    matched = match_weights(load_model(model), result.model)
    arrays = constants_of(result)
    names = {"w1", "w2"} if blocks else {"w1", "w2", "w3", "b1", "b2", "b3"}
    assert names <= matched.keys()
    for name in names & {"w1", "w2", "w3"}:
        weight, restored = matched[name]
        step = float(np.max(arrays[f"{name}_scale"]))
        assert np.abs(weight - restored).max() <= 0.5001 * step


def test_other_weights_are_left_out():
    model = make_mlp()
    result = bitwright.quantize(model, data=make_samples(model), recipe="int8")
    other = make_mlp(width=8)
    assert match_weights(load_model(other), result.model) == {}
