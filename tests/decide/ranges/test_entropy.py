"""The divergence of clipped and quantized counts, against its definition bin by bin."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bitwright.decide.ranges.entropy import _MAX_CLIPPED_SHARE, _divergence, entropy_threshold

LEVELS = 8


def divergence(histogram, reach, zero, tails):
    """Return KL(P || Q) of counts from `reach` bins below zero to as many above it."""
    start, end = max(zero - reach, 0), min(zero + reach, histogram.size)
    inside = histogram[start:end]
    if inside.sum() < (histogram.sum() + sum(tails)) * (1 - _MAX_CLIPPED_SHARE):
        return np.inf
    clipped = inside.copy()
    clipped[0] += histogram[:start].sum() + tails[0]
    clipped[-1] += histogram[end:].sum() + tails[1]
    borders = np.rint((end - start) * np.arange(LEVELS + 1) / LEVELS).astype(int)
    merged = np.zeros(inside.size)
    for low, high in itertools.pairwise(borders):
        occupied = clipped[low:high] > 0
        count = max(inside[low:high].sum(), 1e-4)  # where only clipped values fall
        merged[low:high][occupied] = count / max(occupied.sum(), 1)
    p, q = clipped / clipped.sum(), merged / inside.sum()
    return float(np.sum(p[p > 0] * np.log(p[p > 0] / q[p > 0])))


@pytest.mark.parametrize("zero", [0, 9, 20, 31, 40])
@pytest.mark.parametrize("tails", [(0.0, 0.0), (3.0, 0.0), (0.0, 2.0), (1.0, 4.0)])
def test_running_sums_give_the_divergence_of_the_definition(zero, tails):
    random = np.random.default_rng(zero)
    places = np.arange(40) - zero
    histogram = random.poisson(4000 * np.exp(-np.abs(places) / 3.0)).astype(float)
    histogram[random.random(40) < 0.2] = 0
    reach = np.arange(LEVELS, max(zero, 40 - zero) + 1)
    found = _divergence(histogram, reach, zero, LEVELS, tails)
    expected = [divergence(histogram, one, zero, tails) for one in reach]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert np.isfinite(found).any()


def test_nothing_but_zeros_is_clipped_at_zero():
    assert entropy_threshold(np.zeros(1), np.ones(1), 2048, 128, symmetric=False) == 0.0


def test_a_lone_outlier_is_clipped_and_even_values_are_not():
    even = np.linspace(0.001, 1.0, 1000)
    counts = np.full(1000, 100.0)
    assert entropy_threshold(even, counts, 2048, 128, symmetric=False) == pytest.approx(1, rel=0.01)
    values, more = np.append(even, 50.0), np.append(counts, 1.0)
    assert entropy_threshold(values, more, 2048, 128, symmetric=False) < 1.1
