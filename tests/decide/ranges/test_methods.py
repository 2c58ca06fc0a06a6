import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bitwright.decide.ranges.density import Density, Levels
from bitwright.decide.ranges.methods import METHODS, choose_range, sketch_std, weight_range
from bitwright.errors import DataError, RecipeError
from bitwright.numerics.quantize import dequantize, quantize
from bitwright.numerics.scales import (
    affine_parameters,
    middle_of,
    nearest_power_of_two,
)
from bitwright.numerics.types import INT4, INT8, INT16, UINT4, UINT8, UINT16
from bitwright.observe import TensorSketch
from bitwright.recipe import (
    MSE,
    Distribution,
    Entropy,
    LayerwisePercentile,
    MeanExtremes,
    MinMax,
    MinMSE,
    NonOverflow,
    Percentile,
)

SIZE = 60_000


def _draw(name, scale):
    rng = np.random.default_rng(sum(map(ord, name)))
    drawn = {
        "normal": lambda: rng.normal(size=SIZE),
        "relu": lambda: np.maximum(rng.normal(size=SIZE), 0),
        "laplace": lambda: rng.laplace(size=SIZE),
        "student-t": lambda: rng.standard_t(3, size=SIZE),
        "log-normal": lambda: np.exp(1.5 * rng.normal(size=SIZE)),
        "shifted": lambda: rng.normal(size=SIZE) + 2,
        "relu6": lambda: np.clip(5 * rng.normal(size=SIZE), 0, 6),
    }[name]()
    return (drawn * scale).astype(np.float32)


NAMES = ["normal", "relu", "laplace", "student-t", "log-normal", "shifted", "relu6"]
distributions = pytest.mark.parametrize("name", NAMES)
grids = pytest.mark.parametrize(
    ("qtype", "symmetric"), [(UINT8, False), (INT8, True), (INT4, True), (UINT16, False)]
)


def raw_error(x, low, high, qtype, symmetric, kind="float"):
    scale, zero_point = affine_parameters(low, high, qtype, symmetric=symmetric, kind=kind)
    stored = quantize(x, scale, zero_point, qtype)
    return float(
        np.mean(
            (x.astype(np.float64) - dequantize(stored, scale, zero_point, dtype=np.float64)) ** 2
        )
    )


@distributions
def test_min_max_is_exact(name):
    x = _draw(name, 0.37)
    sketch = TensorSketch.of(x, histogram=False)
    low, high = choose_range(sketch, MinMax(), UINT8)
    assert (low, high) == (min(x.min(), 0), max(x.max(), 0))
    most = np.abs(x).max()
    assert choose_range(sketch, MinMax(symmetric=True), UINT8) == (-most, most)


def test_a_moving_average_is_the_recurrence_over_batches():
    data = [np.array([-i, 2 * i + 1], np.float32) for i in (1, 5, 2, 7)]
    low, high = data[0]
    for batch in data[1:]:
        low, high = low + 0.3 * (batch[0] - low), high + 0.3 * (batch[1] - high)
    chosen = choose_range(TensorSketch.of(*data), MinMax(moving_average=0.3), UINT8)
    assert chosen == pytest.approx((low, high))
    slow = choose_range(TensorSketch.of(*data), MinMax(moving_average=0.01), UINT8)
    assert slow != pytest.approx(chosen)


batches = st.lists(
    hnp.arrays(np.float32, st.integers(1, 9), elements=st.floats(-100, 100, width=32)),
    min_size=1,
    max_size=6,
)


@given(batches=batches, split=st.integers(0, 6))
def test_mean_extremes_are_those_of_the_batches_wherever_sketches_are_merged(batches, split):
    whole, first, second = (
        TensorSketch.of(*part, histogram=False)
        for part in (batches, batches[:split], batches[split:])
    )
    expected = (
        min(np.mean([x.min() for x in batches], dtype=np.float64), 0.0),
        max(np.mean([x.max() for x in batches], dtype=np.float64), 0.0),
    )
    for sketch in (whole, first | second, second | first):
        assert choose_range(sketch, MeanExtremes(), UINT8) == pytest.approx(expected)
    most = max(-expected[0], expected[1])
    centred = choose_range(whole, MeanExtremes(symmetric=True), UINT8)
    assert centred == pytest.approx((-most, most))


def test_one_odd_sample_moves_mean_extremes_by_its_share_and_a_weight_has_one_batch():
    usual = [np.array([-1, 1], np.float32)] * 9
    sketch = TensorSketch.of(*usual, np.array([-1, 41], np.float32))
    assert choose_range(sketch, MeanExtremes(), UINT8) == (-1.0, 5.0)
    rows = np.array([[1, -2], [3, 4]], np.float32)
    low, high = weight_range(rows, MeanExtremes(), INT8, True, axis=0)
    assert (low.tolist(), high.tolist()) == ([-2.0, 0.0], [1.0, 4.0])


def test_per_channel_extremes():
    x = np.random.default_rng(0).normal(size=(4, 3, 5)).astype(np.float32)
    sketch = TensorSketch.empty(channel_axis=1)
    sketch.update(x)
    low, high = choose_range(sketch, MinMax(per_channel=True), INT8)
    assert np.array_equal(low, x.min(axis=(0, 2)))
    assert np.array_equal(high, x.max(axis=(0, 2)))
    low, high = choose_range(sketch, MinMax(per_channel=True, symmetric=True), INT8)
    assert np.array_equal(high, np.abs(x).max(axis=(0, 2)))
    assert np.array_equal(low, -high)
    with pytest.raises(DataError, match="no per-channel extremes"):
        choose_range(TensorSketch.of(x), MinMax(per_channel=True), INT8)
    with pytest.raises(RecipeError, match="not both"):
        choose_range(sketch, MinMax(per_channel=True, moving_average=0.1), INT8)


def raw_quantile(x, percent):
    rank = int(np.ceil(percent / 100 * x.size - 1e-6))
    return float(np.sort(x)[rank - 1])


@distributions
@pytest.mark.parametrize("percentile", [99.0, 99.9, 99.99, 99.999, 100.0])
def test_percentiles_are_within_half_a_percent_of_the_raw_ones(name, percentile):
    x = _draw(name, 3.0)
    sketch = TensorSketch.of(x)
    cut = (100 - percentile) / 2
    low, high = choose_range(sketch, Percentile(percentile=percentile), UINT8)
    raw_high = raw_quantile(x, 100 - cut)
    raw_low = -raw_quantile(-x, 100 - cut)
    assert high == pytest.approx(max(raw_high, 0), rel=0.005)
    assert low == pytest.approx(min(raw_low, 0), rel=0.005)
    low, high = choose_range(sketch, Percentile(percentile=percentile), INT8, symmetric=True)
    raw = raw_quantile(np.abs(x), percentile)
    assert max(-low, high) == pytest.approx(raw, rel=0.005)


def test_a_percentile_finds_whole_counts():
    sketch = TensorSketch.of(np.arange(1, 11, dtype=np.float32))
    assert choose_range(sketch, Percentile(percentile=80), UINT8) == (0.0, 9.0)
    assert choose_range(sketch, Percentile(percentile=90), INT8, symmetric=True) == (0.0, 9.0)


@distributions
@grids
@pytest.mark.parametrize("metric", ["mae", "mse"])
def test_the_percentile_that_loses_least_on_the_raw_data_wins(name, qtype, symmetric, metric):
    x = _draw(name, 2.0)[:20_000]
    sketch = TensorSketch.of(x)
    method = LayerwisePercentile(candidates=(90.0, 99.0, 99.9, 100.0), metric=metric)
    chosen = choose_range(sketch, method, qtype, symmetric=symmetric)
    errors = {}
    for percentile in method.candidates:
        ends = choose_range(sketch, Percentile(percentile=percentile), qtype, symmetric=symmetric)
        scale, zero_point = affine_parameters(*ends, qtype, symmetric=symmetric)
        kept = dequantize(quantize(x, scale, zero_point, qtype), scale, zero_point)
        error = np.abs(x.astype(np.float64) - kept)
        errors.setdefault(ends, np.mean(error if metric == "mae" else error**2))
    # Where two percentiles are as good as each other, either is right.
    assert errors[chosen] <= 1.02 * min(errors.values())


def test_the_metrics_differ_where_an_outlier_is_costly():
    x = np.append(_draw("normal", 1.0), np.float32([60.0] * 3))
    methods = [LayerwisePercentile(candidates=(99.9, 100.0), metric=m) for m in ("mae", "mse")]
    by_mae, by_mse = (choose_range(TensorSketch.of(x), method, UINT8) for method in methods)
    assert by_mae[1] < 5
    assert by_mse[1] == 60


def brute_force(x, qtype, symmetric):
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    most = max(-low, high)
    shares = np.concatenate([np.geomspace(0.01, 0.3, 12), np.linspace(0.3, 1, 57)])
    if symmetric or low == 0:
        tried = [(max(-most * s, low), min(most * s, high)) for s in shares]
    else:
        some = shares[::4]
        tried = [(low * a, high * b) for a in some for b in some]
    return min(raw_error(x, *ends, qtype, symmetric) for ends in tried)


@distributions
@grids
def test_the_mse_range_is_within_two_percent_of_brute_force_on_the_raw_data(name, qtype, symmetric):
    x = _draw(name, 0.05)[:20_000]
    low, high = choose_range(TensorSketch.of(x), MSE(), qtype, symmetric=symmetric)
    assert min(x.min(), 0) <= low <= 0 <= high <= max(x.max(), 0)
    assert raw_error(x, low, high, qtype, symmetric) <= 1.02 * brute_force(x, qtype, symmetric)


def test_mse_keeps_a_spike_at_the_end_exact():
    x = _draw("relu6", 1.0)
    assert choose_range(TensorSketch.of(x), MSE(), UINT8) == (0.0, 6.0)


@distributions
@pytest.mark.parametrize("scale", [1e-3, 0.3, 1.0, 700.0])
@pytest.mark.parametrize(
    ("qtype", "symmetric"), [(INT8, True), (UINT8, False), (UINT8, True), (INT16, True)]
)
def test_min_mse_chooses_the_power_of_two_that_the_raw_data_chooses(name, scale, qtype, symmetric):
    x = _draw(name, scale)
    low, high = choose_range(TensorSketch.of(x), MinMSE(), qtype, symmetric=symmetric)
    chosen, _ = affine_parameters(low, high, qtype, symmetric=symmetric, kind="power-of-two")
    qmin, qmax = qtype.bounds(symmetric=symmetric)
    bottom, top = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    width = 2 * max(-bottom, top) if symmetric else top - bottom
    base = float(nearest_power_of_two(width / (qmax - qmin)))
    zero = (
        middle_of(*qtype.bounds(symmetric=True))
        if symmetric
        else np.rint(qmin - bottom * (qmax - qmin) / width)
    )
    errors = {}
    for finer in range(-1, 4):
        s = base * 2.0**-finer
        grid = Levels.of(np.float64(s), np.float64(zero), qmin, qmax)
        errors[s] = grid.squared_error(x.astype(np.float64)).sum()
    best = min(errors, key=errors.get)
    # Where two scales are as good as each other, either is right.
    assert errors[float(chosen)] <= 1.01 * errors[best]


@pytest.mark.parametrize("qtype", [INT8, UINT8, INT4, UINT4, INT16, UINT16])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("reduced", [True, False])
def test_the_min_mse_range_gives_its_scale_back_exactly(qtype, symmetric, reduced):
    for seed in range(10):
        x = np.random.default_rng(seed).normal(size=500) * 10.0 ** (seed - 5) + seed
        low, high = choose_range(
            TensorSketch.of(x), MinMSE(), qtype, symmetric=symmetric, reduced=reduced
        )
        qmin, qmax = qtype.bounds(symmetric=symmetric, reduced=reduced)
        expected = (high - low) / (qmax - qmin)
        assert np.frexp(expected)[0] == 0.5
        scale, zero_point = affine_parameters(
            low, high, qtype, symmetric=symmetric, reduced=reduced, kind="power-of-two"
        )
        assert scale == expected
        if not symmetric:
            assert (qmin - int(zero_point)) * float(scale) == low


@distributions
def test_non_overflow_clips_nothing(name):
    x = _draw(name, 1.3)
    low, high = choose_range(TensorSketch.of(x), NonOverflow(), INT8, symmetric=True)
    scale, _ = affine_parameters(low, high, INT8, symmetric=True, kind="power-of-two")
    assert 127 * scale >= np.abs(x).max() > 127 * scale / 2


@pytest.mark.parametrize("name", ["student-t", "log-normal"])
def test_entropy_searches(name):
    x = _draw(name, 1.0)
    sketch = TensorSketch.of(x)
    low, high = choose_range(sketch, Entropy(guarded=False), UINT8)
    assert high < 0.9 * x.max()
    assert np.mean((x < low) | (x > high)) < 0.01


@pytest.mark.parametrize("name", ["normal", "relu", "shifted", "laplace"])
@pytest.mark.parametrize(("qtype", "symmetric"), [(UINT8, False), (INT8, True)])
def test_entropy_keeps_nearly_everything_of_light_tails(name, qtype, symmetric):
    x = _draw(name, 5.0)
    low, high = choose_range(TensorSketch.of(x), Entropy(guarded=False), qtype, symmetric=symmetric)
    assert np.mean((x < low) | (x > high)) < 0.002
    full = max(-x.min(), x.max())
    assert raw_error(x, low, high, qtype, symmetric) < 3 * raw_error(
        x, -full, full, qtype, symmetric
    )


def test_entropy_spreads_all_levels_over_one_sided_data():
    x = _draw("relu", 1.0)
    low, high = choose_range(TensorSketch.of(x), Entropy(guarded=False), UINT8)
    mirrored = np.concatenate([x, -x])
    low2, high2 = choose_range(TensorSketch.of(mirrored), Entropy(guarded=False), UINT8)
    assert low == 0
    assert low2 == -high2
    # The same levels over half the width: less has to be clipped, or as much.
    assert high > 0.8 * high2


def test_entropy_looks_closer_at_extreme_outliers():
    x = np.append(_draw("normal", 1.0), np.float32(1e5))
    _, high = choose_range(TensorSketch.of(x), Entropy(guarded=False), UINT8)
    assert high < 100


@distributions
@grids
def test_guarded_entropy_never_loses_to_the_whole_range(name, qtype, symmetric):
    x = _draw(name, 1.0)
    chosen = choose_range(TensorSketch.of(x), Entropy(), qtype, symmetric=symmetric)
    error = raw_error(x, *chosen, qtype, symmetric)
    whole = raw_error(x, min(x.min(), 0), max(x.max(), 0), qtype, symmetric)
    assert error <= 1.02 * whole  # as exact as the error from a sketch is


def test_guarded_entropy_keeps_rare_large_values_and_clips_where_few_levels_gain():
    swish = _draw("normal", 1.0)
    swish[:40] = 12.0  # what a detector found, once in 1500
    swish = swish / (1 + np.exp(-swish))
    sketch = TensorSketch.of(swish)
    _, clipped = choose_range(sketch, Entropy(guarded=False), UINT8)
    assert clipped < 6
    assert choose_range(sketch, Entropy(), UINT8) == (swish.min(), swish.max())
    heavy = TensorSketch.of(_draw("laplace", 1.0))
    low, high = choose_range(heavy, Entropy(), INT4, symmetric=True)
    assert max(-low, high) < 0.8 * max(-heavy.low, heavy.high)


def test_entropy_of_16_bits_clips_nothing():
    x = _draw("student-t", 1.0)
    assert choose_range(TensorSketch.of(x), Entropy(), UINT16) == (x.min(), x.max())


@distributions
def test_the_standard_deviation(name):
    x = _draw(name, 12.0)
    assert sketch_std(TensorSketch.of(x)) == pytest.approx(x.std(dtype=np.float64), rel=1e-3)
    most = np.abs(x).max()
    assert choose_range(TensorSketch.of(x), Distribution(), INT8) == (-most, most)


def test_the_error_model_is_the_true_error_on_smooth_data():
    x = _draw("normal", 1.0)
    density = Density.of_bins(
        TensorSketch.of(x).values().astype(float), TensorSketch.of(x).counts().astype(float)
    )
    for high in (0.5, 2.0, 4.0, 8.0):
        grid = Levels.over(np.array([-high]), np.array([high]), UINT8)
        true = grid.squared_error(x.astype(np.float64)).sum()
        assert density.error(grid)[0] == pytest.approx(true, rel=0.02)


ALL_METHODS = [
    MinMax(),
    MinMax(moving_average=0.1),
    MinMax(symmetric=True),
    MeanExtremes(),
    Percentile(percentile=99.0),
    LayerwisePercentile(),
    Entropy(),
    Entropy(guarded=False),
    Distribution(),
    MSE(),
    NonOverflow(),
    MinMSE(),
]
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
anything = st.one_of(
    hnp.arrays(np.float32, st.integers(1, 40), elements=finite),
    hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-8, 8, width=32)),
)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("method", ALL_METHODS, ids=repr)
@given(x=anything, symmetric=st.booleans(), qtype=st.sampled_from([UINT8, INT8, INT4, UINT16]))
@settings(deadline=None, max_examples=60)
@pytest.mark.sampled(6)
def test_every_range_is_finite_ordered_and_contains_zero(method, x, symmetric, qtype):
    sketch = TensorSketch.empty()
    sketch.update(x, engine="numpy")
    weight = weight_range(x, method, qtype, symmetric)
    for low, high in (choose_range(sketch, method, qtype, symmetric=symmetric), weight):
        assert isinstance(low, float)
        assert isinstance(high, float)
        assert np.isfinite(low)
        assert np.isfinite(high)
        assert low <= 0 <= high
        if not isinstance(method, MinMSE | Distribution) and not method.symmetric:
            assert min(x.min(), 0) <= low
            assert high <= max(x.max(), 0)


@pytest.mark.parametrize("method", ALL_METHODS, ids=repr)
@pytest.mark.parametrize("value", [0.0, 3.0, -3.0, 1e-45, -1e-40, 3.4e38])
def test_constant_tensors(method, value):
    x = np.full((2, 8), value, np.float32)
    for symmetric in (True, False):
        low, high = choose_range(TensorSketch.of(x), method, INT8, symmetric=symmetric)
        assert low <= 0 <= high
        assert np.isfinite([low, high]).all()
        scale, _ = affine_parameters(low, high, INT8, symmetric=symmetric)
        assert np.isfinite(scale)
        assert scale > 0


def test_nothing_finite_is_an_error():
    with pytest.raises(DataError, match="no finite value"):
        choose_range(TensorSketch.of([np.nan, np.inf]), MinMax(), UINT8)


def test_every_method_of_the_recipe_has_its_function():
    from typing import get_args

    from bitwright.recipe import RangeMethod

    assert set(METHODS) == set(get_args(RangeMethod))


@pytest.mark.parametrize("method", [m for m in ALL_METHODS if not isinstance(m, Entropy)], ids=repr)
@pytest.mark.parametrize("symmetric", [True, False])
def test_channels_of_a_weight_are_what_each_gives_alone(method, symmetric):
    weight = np.random.default_rng(0).standard_t(4, size=(6, 5, 3, 3)).astype(np.float32)
    weight *= np.array([1, 10, 0.1, 0, 1, 5], np.float32)[:, None, None, None]
    low, high = weight_range(weight, method, INT8, symmetric, axis=0)
    for channel in range(6):
        alone = weight_range(weight[channel], method, INT8, symmetric)
        assert (low[channel], high[channel]) == pytest.approx(alone)
    swapped = weight_range(weight.swapaxes(0, 1), method, INT8, symmetric, axis=1)
    assert np.array_equal(swapped, (low, high))


@grids
def test_the_mse_range_of_a_weight_is_within_two_percent_of_brute_force(qtype, symmetric):
    weight = _draw("laplace", 0.02)[:18_432].reshape(8, -1)
    low, high = weight_range(weight, MSE(), qtype, symmetric, axis=0)
    for row, a, b in zip(weight, low, high, strict=True):
        best = brute_force(row, qtype, symmetric)
        assert raw_error(row, a, b, qtype, symmetric) <= 1.02 * best


def test_weights_that_are_empty_half_or_broken():
    assert weight_range(np.zeros((0, 3), np.float32), MSE(), INT8, True) == (0.0, 0.0)
    low, high = weight_range(np.array([[1, -2]], np.float16), MinMax(), INT8, True, axis=0)
    assert (low.tolist(), high.tolist()) == ([-2.0], [1.0])
    with pytest.raises(DataError, match="NaN"):
        weight_range(np.array([np.nan], np.float32), MinMax(), INT8, True)
