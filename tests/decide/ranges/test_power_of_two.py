"""MinMSE over all data and by votes of the batches, through the range that comes out."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwright.decide.ranges.methods import choose_range, weight_range
from bitwright.decide.ranges.power_of_two import most_common_position, position_grid
from bitwright.errors import DataError
from bitwright.numerics.positions import PositionGrid
from bitwright.numerics.quantize import dequantize, quantize
from bitwright.numerics.scales import affine_parameters
from bitwright.numerics.types import INT8, UINT8
from bitwright.observe import TensorSketch
from bitwright.recipe import MinMSE, NonOverflow

COMMON = MinMSE(mode="most-common")


def voted(batches, method, qtype, symmetric):
    grid = position_grid(method, qtype, symmetric=symmetric)
    sketch = TensorSketch.empty(histogram=False, grids=[grid])
    for batch in batches:
        sketch.update(np.asarray(batch, np.float32))
    return sketch


def scale_of(sketch, method, qtype, symmetric):
    low, high = choose_range(sketch, method, qtype, symmetric=symmetric)
    return affine_parameters(low, high, qtype, symmetric=symmetric, kind="power-of-two")


@pytest.mark.parametrize(("qtype", "symmetric"), [(INT8, True), (UINT8, True), (UINT8, False)])
def test_the_position_of_most_batches_wins(qtype, symmetric):
    rng = np.random.default_rng(0)
    batches = [rng.normal(size=2000) * size for size in (1, 1, 30, 1, 30)]
    common = voted(batches, COMMON, qtype, symmetric)
    alone = voted(batches[:1], COMMON, qtype, symmetric)
    scale, zero_point = scale_of(common, COMMON, qtype, symmetric)
    assert scale == scale_of(alone, COMMON, qtype, symmetric)[0]
    everything = TensorSketch.of(*batches)
    assert scale < scale_of(everything, MinMSE(), qtype, symmetric)[0]
    if symmetric:
        assert zero_point == (0 if qtype is INT8 else 128)


def test_of_as_common_positions_the_finest_scale_wins():
    even = [np.linspace(-size, size, 500) for size in (1.0, 30.0)]
    for batches in (even, even[::-1]):
        scale, _ = scale_of(voted(batches, COMMON, INT8, True), COMMON, INT8, True)
        assert scale == 2.0**-7


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=9))
@settings(deadline=None, max_examples=40)
def test_the_winner_is_the_finest_of_the_most_frequent(exponents):
    batches = [np.linspace(-1, 1, 300) * 2.0**e for e in exponents]
    sketch = voted(batches, COMMON, INT8, True)
    grid = position_grid(COMMON, INT8, symmetric=True)
    counts = Counter(grid.best_position(np.asarray(b, np.float32)) for b in batches)
    most = max(counts.values())
    expected = max(p for p, n in counts.items() if n == most)
    assert most_common_position(sketch, grid) == expected


def test_batches_of_zeros_have_no_vote():
    batches = [np.zeros(8), np.zeros(8), np.linspace(-1, 1, 50)]
    assert scale_of(voted(batches, COMMON, INT8, True), COMMON, INT8, True)[0] == 2.0**-7
    assert scale_of(voted(batches[:2], COMMON, INT8, True), COMMON, INT8, True)[0] == 1.0


def test_votes_that_were_not_observed_are_asked_for():
    with pytest.raises(DataError, match="observe again"):
        choose_range(TensorSketch.of([1.0]), COMMON, INT8, symmetric=True)
    other = voted([[1.0]], COMMON, UINT8, symmetric=False)
    with pytest.raises(DataError, match="observe again"):
        choose_range(other, COMMON, INT8, symmetric=True)


@pytest.mark.parametrize("qtype", [INT8, UINT8])
def test_a_symmetric_range_gives_an_asymmetric_grid_its_middle_as_zero(qtype):
    x = np.random.default_rng(3).normal(size=5000).astype(np.float32) + 1
    method = MinMSE(symmetric=True)
    scale, zero_point = scale_of(TensorSketch.of(x), method, qtype, False)
    assert zero_point == (0 if qtype is INT8 else 128)
    assert scale == scale_of(TensorSketch.of(x), MinMSE(), qtype, True)[0]
    low, high = weight_range(x, method, qtype, False)
    assert affine_parameters(low, high, qtype, kind="power-of-two") == (scale, zero_point)


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize(("qtype", "symmetric"), [(INT8, True), (UINT8, False)])
def test_a_weight_is_searched_value_by_value(qtype, symmetric, axis):
    weight = np.random.default_rng(5).standard_t(3, size=(4, 900)).astype(np.float32)
    weight *= np.float32([[1.0], [0.03], [5.0], [0.0]])
    low, high = weight_range(weight, MinMSE(), qtype, symmetric, axis=axis)
    scale, zero_point = affine_parameters(
        low, high, qtype, symmetric=symmetric, kind="power-of-two"
    )
    rows = weight[:, None] if axis == 0 else [weight]
    qmin, qmax = qtype.bounds(symmetric=symmetric)
    for row, one, zero in zip(rows, np.atleast_1d(scale), np.atleast_1d(zero_point), strict=True):
        if not row.any():
            assert one == 1.0
            continue
        errors = {}
        for finer in range(-3, 6):
            step = np.float64(one) * 2.0**-finer
            stored = np.clip(np.rint(row / step) + zero, qmin, qmax)
            errors[step] = np.square(row.astype(np.float64) - (stored - zero) * step).sum()
        # Around the chosen scale no power of two is better, neither coarser nor finer.
        assert min(errors, key=errors.get) == one
        kept = dequantize(quantize(row, one, zero, qtype), one, zero)
        assert np.square(row - kept).sum() <= 1.001 * errors[np.float64(one)]


@pytest.mark.parametrize("qtype", [INT8, UINT8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("spread", [True, False])
def test_non_overflow_keeps_every_observed_value_within_its_levels(qtype, symmetric, spread):
    for seed in range(40):
        rng = np.random.default_rng(seed)
        x = (rng.normal(size=200) * 10.0 ** rng.uniform(-6, 6) + rng.normal()).astype(np.float32)
        method = NonOverflow(symmetric=spread)
        scale, zero = scale_of(TensorSketch.of(x, histogram=False), method, qtype, symmetric)
        stored = np.rint(x.astype(np.float64) / scale) + zero
        qmin, qmax = qtype.bounds(symmetric=symmetric)
        assert qmin <= stored.min()
        assert stored.max() <= qmax


def test_grids_are_told_apart_by_what_decides_a_position():
    assert position_grid(MinMSE(), INT8, symmetric=True) == PositionGrid(-127, 127, True)
    assert position_grid(MinMSE(), INT8) == PositionGrid(-128, 127, False)
    assert position_grid(MinMSE(symmetric=True), INT8) == PositionGrid(-128, 127, True)
