"""A sketch with equal bins is a monoid, too, and finer than the tools that count so."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bitwright.decide.statistics import percentile_cut, uniform_histogram
from bitwright.errors import DataError
from bitwright.observe import TensorSketch, observe
from bitwright.observe.linear import LinearSketch

arrays = hnp.arrays(
    np.float32,
    st.integers(0, 40),
    elements=st.floats(-(2.0**100), 2.0**100, width=32) | st.sampled_from([0.0, -0.0, 1.0, 6.0]),
)


def same(one, other):
    assert (one.low, one.high, one.count) == (other.low, other.high, other.count)
    np.testing.assert_array_equal(one.values(), other.values())
    np.testing.assert_array_equal(one.counts(), other.counts())


@given(arrays, arrays, arrays)
def test_how_the_data_is_cut_makes_no_difference(a, b, c):
    whole = LinearSketch.of(np.concatenate([a, b, c]))
    one, two, three = (LinearSketch.of(part) for part in (a, b, c))
    for merged in ((one | two) | three, one | (two | three), three | one | two):
        same(merged, whole)
    same(LinearSketch.of(a, b, c), whole)
    same(LinearSketch.empty() | whole, whole)


@given(arrays)
def test_every_finite_value_is_counted_once(a):
    assert LinearSketch.of(a).counts().sum() == a.size


@given(hnp.arrays(np.float32, 200, elements=st.floats(-100, 100, width=32)))
def test_a_percentile_is_within_an_eight_thousandth_of_the_largest_value(a):
    low, high = percentile_cut(LinearSketch.of(a), 90.0, symmetric=False)
    step = float(np.abs(a).max()) / 8192
    assert high == pytest.approx(np.quantile(a, 0.95, method="inverted_cdf"), abs=step)
    assert low == pytest.approx(-np.quantile(-a, 0.95, method="inverted_cdf"), abs=step)


def test_values_that_are_not_finite_are_counted_apart():
    sketch = LinearSketch.of(np.array([1.0, np.nan, np.inf], np.float32))
    assert (sketch.nan, sketch.inf, sketch.counts().sum()) == (1, 1, 1)


@pytest.mark.parametrize("bins", [128, 2048])
def test_the_histogram_is_nearly_that_of_numpy(bins):
    values = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    hist, edges = uniform_histogram(LinearSketch.of(values), bins)
    most = np.abs(values).max()
    wanted, wanted_edges = np.histogram(values, bins, range=(-most, most))
    np.testing.assert_allclose(edges, wanted_edges, atol=1e-6)
    assert np.abs(np.cumsum(hist) - np.cumsum(wanted)).max() < 0.005 * values.size


def test_it_stays_in_its_process_and_among_its_kind():
    with pytest.raises(DataError, match="stay in their process"):
        pickle.dumps(LinearSketch.of([1.0]))
    with pytest.raises(DataError, match="different kinds"):
        LinearSketch.of([1.0]) | TensorSketch.of([1.0])


def test_observe_makes_them_when_asked():
    class Doubler:
        def groups(self, feeds):
            return [("y",)]

        def run(self, group, feeds):
            return {"y": 2 * feeds["x"]}

    samples = [{"x": np.ones(3, np.float32)}] * 2
    seen = observe(Doubler(), ["y"], samples, detail="linear")
    assert isinstance(seen.sketches["y"], LinearSketch)
    assert (seen | seen).sketches["y"].counts().sum() == 12
