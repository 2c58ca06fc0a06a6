"""Balanced rounding: what it promises for any weight, and what it gains in a convolution."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.models import normal

from bitwright.numerics.types import INT4, INT8, UINT8
from bitwright.plan import Parameters
from bitwright.rounding.planned import round_as_planned, round_to_nearest

WEIGHTS = arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 9)),
    elements=st.floats(-20, 20, width=32),
)


def round_by_squant(weights, parameters):
    return round_as_planned(weights, replace(parameters, rounding="squant"))


def steps(scale=1.0, qtype=INT8, zero=0, axis=None):
    return Parameters(qtype, np.asarray(scale, np.float64), np.asarray(zero), axis)


@given(WEIGHTS)
@settings(max_examples=100)
def test_each_weight_is_rounded_up_or_down(weights):
    found = round_by_squant(weights, steps())
    assert (np.abs(found - weights) < 1).all()


@given(WEIGHTS)
@settings(max_examples=100)
def test_an_output_loses_half_a_step_at_most_and_each_of_its_kernels_one(weights):
    lost = round_by_squant(weights, steps()) - weights.astype(np.float64)
    assert (np.abs(lost.sum(axis=2)) <= 1 + 1e-9).all()
    assert (np.abs(lost.sum(axis=(1, 2))) <= 0.5 + 1e-9).all()


def test_of_all_ways_to_balance_a_kernel_it_takes_the_one_with_the_least_squared_error():
    for seed in range(20):
        kernel = normal(1, 1, 6, seed=seed) * 10
        floors = np.floor(kernel)
        ways = [floors + np.reshape(up, kernel.shape) for up in itertools.product((0, 1), repeat=6)]
        balanced = [way for way in ways if abs((kernel - way).sum(dtype=np.float64)) <= 0.5]
        best = min(balanced, key=lambda way: float(np.square(kernel - way).sum()))
        np.testing.assert_array_equal(round_by_squant(kernel, steps()), best)


def test_clipped_weights_stay_clipped_and_their_neighbours_make_up_for_them():
    kernel = np.array([[[9.0, 1.4, 2.4, -3.4, 0.1]]])
    found = round_by_squant(kernel, steps(qtype=INT4))
    np.testing.assert_array_equal(found, [[[7, 2, 3, -3, 0]]])
    lost = np.abs((kernel - found).sum())
    assert lost < np.abs((kernel - round_to_nearest(kernel, steps(qtype=INT4))).sum())


@pytest.mark.parametrize("rows", [1, 5])
def test_scales_of_channels_zero_points_and_pieces_of_a_weight_give_the_same(monkeypatch, rows):
    weights = normal(7, 3, 3, 3, seed=4)
    scales = np.abs(normal(7, seed=5)).astype(np.float32) / 40 + 0.01
    zeros = np.arange(7) + 120
    whole = round_by_squant(weights, steps(scales, UINT8, zeros, 0))
    monkeypatch.setattr("bitwright.rounding.squant._CHUNK", rows * 27)
    np.testing.assert_array_equal(round_by_squant(weights, steps(scales, UINT8, zeros, 0)), whole)
    for channel, (scale, zero) in enumerate(zip(scales, zeros, strict=True)):
        alone = round_by_squant(weights[channel : channel + 1], steps(scale, UINT8, zero))
        np.testing.assert_array_equal(alone[0], whole[channel])


def test_a_convolution_of_smooth_images_is_far_closer_to_float():
    weights = normal(16, 1, 5, 5, seed=1)
    images = 5 + normal(16, 200, seed=2)[..., None] + 0.2 * normal(16, 200, 25, seed=3)
    kernels = weights.reshape(16, 25).astype(np.float64)

    def error(rounding):
        found = rounding(weights, steps(0.05)).reshape(16, 25) * 0.05
        return np.square(np.einsum("cik,ck->ci", images, found - kernels)).sum()

    assert error(round_by_squant) < error(round_to_nearest) / 10


def test_the_plan_says_how_a_weight_is_rounded():
    weights = np.full((1, 1, 4), 0.4)
    assert round_as_planned(weights, steps()).sum() == 0
    balanced = Parameters(INT8, np.float64(1), np.int64(0), rounding="squant")
    assert round_as_planned(weights, balanced).sum() == 2


def test_biases_and_empty_weights_have_nothing_to_balance():
    np.testing.assert_array_equal(round_by_squant(np.array([0.4, 1.4]), steps()), [0, 1])
    assert round_by_squant(np.zeros((0, 1, 3)), steps()).shape == (0, 1, 3)
