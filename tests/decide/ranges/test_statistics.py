"""What a sketch tells of a tensor: extremes, cuts, moments."""

import numpy as np

from bitwright.decide.ranges.entropy import entropy_threshold
from bitwright.decide.ranges.mse import row_ranges
from bitwright.decide.ranges.power_of_two import exact_min_mse
from bitwright.decide.ranges.statistics import (
    averaged_extremes,
    entropy_cut,
    mean_extremes,
    moments,
    percentile_cut,
)
from bitwright.numerics.positions import PositionGrid
from bitwright.numerics.types import INT8
from bitwright.observe import TensorSketch


def test_extremes_are_averaged_over_batches():
    assert averaged_extremes(TensorSketch.of([0.0, 1.0], [0.0, 3.0]), 0.5) == (0.0, 2.0)
    assert mean_extremes(TensorSketch.of([-1.0, 1.0], [-3.0, 5.0])) == (-2.0, 3.0)


def test_a_percentile_cuts_off_the_largest_values():
    sketch = TensorSketch.of(np.arange(1.0, 101.0), [200.0])
    assert percentile_cut(sketch, 99.0, symmetric=True) == (1.0, 100.0)


def test_a_grid_as_fine_as_the_bins_clips_nothing():
    assert entropy_cut(TensorSketch.of([1.0, 2.0]), 128, 128) == (1.0, 2.0)


def test_few_values_are_not_clipped_by_entropy():
    values, counts = np.array([0.0, 1.0, 2.0]), np.array([9.0, 5.0, 5.0])
    assert entropy_threshold(values, counts, 256, 128, symmetric=False) == 2.0


def test_rows_that_lie_on_a_grid_keep_their_range():
    low, high = row_ranges(np.array([[0.0, 1.0], [-2.0, 2.0]]), INT8, symmetric=True)
    assert low.tolist() == [0.0, -2.0] and high.tolist() == [1.0, 2.0]


def test_a_weight_on_a_power_of_two_grid_has_the_range_of_the_grid():
    grid = PositionGrid(-127, 127, True)
    assert exact_min_mse(np.array([0.5, -0.25]), grid) == (-127 / 128, 127 / 128)


def test_moments_are_weighted_by_counts():
    assert moments(np.array([-1.0, 1.0]), np.array([2.0, 2.0])) == (0.0, 1.0)
