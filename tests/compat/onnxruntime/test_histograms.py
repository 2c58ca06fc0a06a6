"""Counts in bins of equal width are numpy's, whatever the data was cut into."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bitwright.compat.onnxruntime.histograms import (
    EqualBins,
    MagnitudeBins,
    Magnitudes,
    least_divergence,
    smooth_counts,
)
from bitwright.errors import DataError
from bitwright.observe import TensorSketch, fill_sketches

arrays = hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(-100, 100, width=32))
few_bins = st.sampled_from([4, 7, 128, 255])


@given(arrays, few_bins)
def test_counts_and_edges_are_numpys(values, bins):
    reach = np.abs(values).max()
    sketch = EqualBins(bins, float(reach))
    for value in np.array_split(values, 3):
        sketch.update(value)
    wanted, edges = np.histogram(values, bins, range=(-reach, reach))
    np.testing.assert_array_equal(sketch.hist, wanted)
    np.testing.assert_array_equal(sketch.edges, edges)


@given(arrays, few_bins)
def test_counts_and_edges_of_magnitudes_are_numpys(values, bins):
    sizes = np.abs(values)
    sketch = MagnitudeBins(bins, float(sizes.min()), float(sizes.max()))
    sketch.update(values[:7])
    sketch.update(values[7:])
    wanted, edges = np.histogram(sizes, bins)
    np.testing.assert_array_equal(sketch.hist, wanted)
    np.testing.assert_array_equal(sketch.edges, edges)
    assert (sketch.low, sketch.high) == (values.min(), values.max())


@given(st.floats(2.0**-10, 1, width=32), st.floats(1, 2.0**20, width=32), few_bins)
def test_wider_bins_keep_what_was_counted_and_stay_few(first, second, bins):
    for sketch in (EqualBins(bins, first), MagnitudeBins(bins, 0.0, first)):
        sketch.update(np.array([-first, 0.0, first], np.float32))
        sketch.widen(second)
        sketch.update(np.array([-second, second], np.float32))
        assert sketch.hist.sum() == 5 and sketch.hist.size <= 2**15 + 2
        widths = np.diff(sketch.edges.astype(float))
        assert sketch.edges[-1] >= second * (1 - 1e-5)
        np.testing.assert_allclose(widths, widths.mean(), atol=1e-6 * second)
        # What lies around zero still does: it is in the middle, or at the first edge.
        near = sketch.edges[np.searchsorted(np.cumsum(sketch.hist), 2)]
        assert abs(near) <= first + widths[0]


def test_zeros_stay_in_the_middle_when_more_comes():
    sketch = EqualBins(4, 0.0)
    sketch.update(np.zeros(3, np.float32))
    sketch.widen(2.0)
    sketch.update(np.ones(1, np.float32))
    assert sketch.hist.tolist() == [0, 0, 3, 1]


def test_values_that_are_not_finite_are_counted_apart():
    values = np.array([1.0, np.nan, np.inf], np.float32)
    for sketch in (EqualBins(4, 1.0), MagnitudeBins(4, 0.0, 1.0)):
        sketch.update(values)
        assert (sketch.nan, sketch.inf, sketch.hist.sum()) == (1, 1, 1)


def test_they_do_not_merge():
    for sketch in (EqualBins(4, 1.0), MagnitudeBins(4, 0.0, 1.0)):
        with pytest.raises(DataError, match="do not merge"):
            sketch | TensorSketch.of([1.0])


def test_a_pass_fills_the_sketches_it_is_given():
    class Doubler:
        def groups(self, feeds):
            return [("y",)]

        def run(self, group, feeds):
            return {"y": -2 * feeds["x"]}

    samples = [{"x": np.arange(1.0, 4.0, dtype=np.float32)}] * 2
    sizes = Magnitudes(histogram=False)
    seen = fill_sketches(Doubler(), {"y": sizes}, samples)
    assert seen.sketches["y"] is sizes and (sizes.low, sizes.high) == (2.0, 6.0)
    bins = EqualBins(2, sizes.high)
    fill_sketches(Doubler(), {"y": bins}, samples)
    assert bins.hist.tolist() == [6, 0]


peer = pytest.importorskip("onnxruntime.quantization.calibrate")


def peers_range(histogram, edges, levels):
    collector = peer.HistogramCollector("entropy", False, histogram.size, levels, 99.0, "same")
    with contextlib.redirect_stdout(io.StringIO()):
        return collector.get_entropy_threshold(
            (histogram, edges, edges[0], edges[-1], edges[-1]), levels
        )


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([(16, 4), (33, 8), (128, 128), (256, 128), (256, 255), (300, 127)]),
    st.integers(0, 2**32 - 1),
    st.floats(0.05, 3),
    st.floats(0, 0.9),
)
def test_of_any_counts_the_same_edges_are_chosen(sizes, seed, spread, empty):
    bins, levels = sizes
    rng = np.random.default_rng(seed)
    counts = (1000 * rng.lognormal(0, spread, bins)).astype(np.int64)
    counts[rng.random(bins) < empty] = 0
    counts[0] = 1
    edges = np.linspace(-1, 1, bins + 1, dtype=np.float32)
    start, end = least_divergence(counts, levels)
    assert (edges[start], edges[end]) == peers_range(counts, edges, levels)


def test_more_levels_than_bins_clip_nothing():
    assert least_divergence(np.arange(8), 16) == (0, 8)
    assert least_divergence(np.arange(128), 255) == (0, 128)


def test_smoothing_moves_a_little_to_the_empty_bins():
    counts = np.array([0, 4, 0, 6])
    smoothed = smooth_counts(counts)
    assert smoothed.min() > 0 and smoothed.sum() == pytest.approx(10)
    assert smooth_counts(np.zeros(3)) is None
    # One value among twenty thousand empty bins has not enough to give.
    assert smooth_counts(np.eye(1, 20_000)[0]) is None
