"""The search by divergence gives ONNX Runtime's own answer, from its own histogram."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwright.compat.onnxruntime.kl_search import least_divergence, smooth_counts

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
