"""Intervals over samples, held against all resamples and against the truth."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.assess.judge import mean_interval
from bitwright.assess.judge import sequential as bootstrap

LOSSES = st.lists(st.floats(0, 1), min_size=8, max_size=20)


def test_the_interval_is_that_of_all_resamples(monkeypatch):
    # Of six values there are 6^6 resamples: few enough to look at each.
    monkeypatch.setattr(bootstrap, "MIN_SAMPLES", 6)
    monkeypatch.setattr(bootstrap, "_RESAMPLES", 100_000)
    values = np.array([0.113, 0.407, 0.222, 0.891, 0.319, 0.358])
    means = np.array([np.mean(draw) for draw in product(values, repeat=6)])
    means = values.mean() + (means - values.mean()) * np.sqrt(6 / 5)
    found = mean_interval(values)
    assert found is not None
    # Means of few values have gaps between them, so shares are compared, not the ends.
    below, above = np.mean(means < found.low), np.mean(means > found.high)
    assert (below, above) == pytest.approx((0.05, 0.05), abs=0.005)


@pytest.mark.parametrize("draw", ["normal", "exponential"])
def test_the_interval_covers_the_true_mean_at_about_its_nominal_rate(draw):
    generator = np.random.default_rng(3)
    covered = 0
    for _ in range(400):
        change = getattr(generator, draw)(size=24)
        change += 0.5 - {"normal": 0.0, "exponential": 1.0}[draw]
        found = mean_interval(change)
        assert found is not None
        covered += found.low <= 0.5 <= found.high
    assert 0.84 < covered / 400 < 0.95


@given(LOSSES, st.randoms())
def test_the_order_of_samples_does_not_matter(losses, random):
    shuffled = list(losses)
    random.shuffle(shuffled)
    one, other = mean_interval(losses), mean_interval(shuffled)
    assert one is not None
    assert other is not None
    assert (one.low, one.high) == pytest.approx((other.low, other.high))


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_few_samples_have_no_interval_and_say_so(count):
    assert str(count) in (bootstrap.too_few(count) or "")
    assert mean_interval(np.ones(count)) is None


def test_the_interval_of_a_share_is_that_of_all_resamples(monkeypatch):
    monkeypatch.setattr(bootstrap, "MIN_SAMPLES", 5)
    monkeypatch.setattr(bootstrap, "_RESAMPLES", 100_000)
    before = np.array([0.4, 0.9, 0.7, 0.5, 0.8])
    after = np.array([0.1, 0.6, 0.2, 0.3, 0.1])
    draws = np.array(list(product(range(5), repeat=5)))
    shares = 1 - after[draws].sum(axis=1) / before[draws].sum(axis=1)
    found = bootstrap.share_interval(before, after)
    assert (found.low, found.high) == pytest.approx(np.percentile(shares, [5, 95]), abs=0.005)


def test_a_share_of_nothing_or_of_few_samples_has_no_interval():
    assert bootstrap.share_interval([0.0] * 8, [0.0] * 8) is None
    assert bootstrap.share_interval([1.0] * 7, [0.5] * 7) is None
    assert bootstrap.share_interval((), (0.5,) * 8) is None
