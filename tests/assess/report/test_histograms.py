import math
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.assess.report.views import MAX_BINS, Histogram, pack
from bitwright.observe import TensorSketch

LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"


def of_sketch(values, **options):
    sketch = TensorSketch.of(np.asarray(values, np.float32))
    return Histogram.of_bfloat16(
        sketch.values(), sketch.counts(), sketch.low, sketch.high, **options
    )


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=50))
def test_packed_numbers_come_back_to_a_percent_and_zeros_stay_zeros(values):
    values = np.array(values)
    peak, text = pack(values)
    letters = np.array([LETTERS.index(letter) for letter in text]).reshape(-1, 2)
    back = np.expm1(letters @ [64, 1] / (64 * 64 - 1) * math.log1p(peak))  # as the page reads it
    np.testing.assert_array_equal(back == 0, values == 0)
    # In units of 1 + value, which is what is stored; 4,096 levels span at most log(1e12).
    np.testing.assert_allclose(1 + back, 1 + values, rtol=0.01)


@pytest.mark.parametrize("shape", ["normal", "relu", "uniform", "far outlier", "negative"])
def test_a_sketch_gives_the_histogram_of_its_values(shape):
    rng = np.random.default_rng(0)
    values = {
        "normal": rng.standard_normal(50_000),
        "relu": np.maximum(rng.standard_normal(50_000), 0),
        "uniform": rng.uniform(3, 5, 50_000),
        "far outlier": np.append(rng.standard_normal(50_000), 300),
        "negative": -np.abs(rng.standard_normal(50_000)),
    }[shape].astype(np.float32)
    found, exact = of_sketch(values), Histogram.of_array(values)
    assert (found.low, found.high, found.finite) == (exact.low, exact.high, exact.finite)
    assert found.counts.sum() == pytest.approx(len(values))
    # No comb: every bin is as full as it is, give or take what one bfloat16 step moves.
    np.testing.assert_allclose(
        np.cumsum(found.counts), np.cumsum(exact.counts), atol=0.012 * len(values)
    )
    full = exact.counts > 500
    np.testing.assert_allclose(found.counts[full], exact.counts[full], rtol=0.35)


def test_zeros_of_a_relu_are_in_the_first_bin():
    counts = of_sketch([0.0] * 90 + [1.0] * 10, bins=4).counts
    np.testing.assert_allclose(counts, [90, 0, 0, 10])


def test_a_constant_is_one_full_bin():
    counts = of_sketch([2.5, 2.5, 2.5]).counts
    assert np.count_nonzero(counts) == 1 and counts.sum() == 3


def test_what_is_not_finite_is_left_out_and_nothing_gives_nothing():
    assert Histogram.of_array(np.array([np.nan, np.inf, 1.0, 2.0])).finite == 2
    assert Histogram.of_array(np.array([np.nan])) is None
    assert of_sketch([np.nan]) is None


def test_a_histogram_is_a_few_hundred_bytes():
    data = Histogram.of_array(np.random.default_rng(0).standard_normal(100_000)).to_dict()
    assert len(data["bins"]) == 2 * MAX_BINS
