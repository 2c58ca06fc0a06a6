"""Running sums against plain numpy over everything at once."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwright.assess.sums import Codes, ErrorSums, decibels, signal_and_noise


@pytest.fixture(params=["compiled", "numpy"])
def engine(request, monkeypatch):
    monkeypatch.setenv("BITWRIGHT_NUMBA", "0" if request.param == "numpy" else "1")
    monkeypatch.setattr("bitwright.assess.sums._COMPILED_FROM", 0)
    return request.param


def plain_decibels(signal, noise):
    return 10 * math.log10(signal / noise)


def make_pair(seed, shape, bits=8, signed=False):
    rng = np.random.default_rng(seed)
    values = (rng.normal(size=shape) * rng.lognormal(size=(1, shape[1], 1))).astype(np.float32)
    dtype = np.dtype(f"{'int' if signed else 'uint'}{bits}")
    info = np.iinfo(dtype)
    codes = Codes(6.0 / (info.max - info.min), (info.min + info.max + 1) // 2, info.min, info.max)
    stored = np.clip(np.rint(values / codes.scale) + codes.zero_point, info.min, info.max)
    return values, stored.astype(dtype), codes


@pytest.mark.parametrize(("bits", "signed"), [(8, False), (8, True), (16, False)])
@pytest.mark.parametrize("axis", [None, 1, -1])
@pytest.mark.sampled(8)
def test_sums_over_samples_are_those_over_everything(engine, bits, signed, axis):
    parts = [make_pair(seed, (2, 5, 700), bits, signed) for seed in range(3)]
    sums = ErrorSums()
    for values, stored, codes in parts:
        sums.add(values, stored, codes=codes, axis=axis)
    values = np.concatenate([part[0] for part in parts]).astype(np.float64)
    stored = np.concatenate([part[1] for part in parts]).astype(np.float64)
    codes = parts[0][2]
    restored = (stored - codes.zero_point) * codes.scale
    noise = (values - restored) ** 2
    assert sums.sqnr == pytest.approx(plain_decibels((values**2).sum(), noise.sum()), abs=1e-4)
    cosine = (values * restored).sum() / math.sqrt((values**2).sum() * (restored**2).sum())
    assert sums.cosine == pytest.approx(cosine, abs=1e-7)
    assert sums.largest == pytest.approx(np.abs(values - restored).max(), rel=1e-5)
    assert (sums.low, sums.high) == (stored.min(), stored.max())
    low, high = codes.bounds
    assert sums.clipped == ((values < low) | (values > high)).sum() > 0
    if axis is not None:
        others = tuple(a for a in range(3) if a != axis % 3)
        share = noise.sum(axis=others) / (values**2).sum(axis=others)
        assert sums.channel_sqnr == pytest.approx(-10 * math.log10(share.mean()), abs=1e-4)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 4), st.integers(1, 1100))
def test_the_order_and_size_of_parts_do_not_matter(seed, outer, channels, inner):
    rng = np.random.default_rng(seed)
    one, other = rng.normal(size=(2, outer, channels, inner)).astype(np.float32)
    whole, parts = ErrorSums(), ErrorSums()
    whole.add(one, other, axis=1)
    for index in reversed(range(outer)):
        parts.add(one[index : index + 1], other[index : index + 1], axis=1)
    for name in ("signal", "noise", "dot", "actual"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-5, abs=1e-3)
    assert (parts.largest, parts.count) == (whole.largest, whole.count)
    np.testing.assert_allclose(parts.channel_noise, whole.channel_noise, rtol=1e-5)


def test_a_lost_channel_counts_as_much_as_a_large_one(engine):
    values = np.ones((1, 4, 100), np.float32)
    values[:, 0] = 1000
    other = values.copy()
    other[:, 1:] = 0
    sums = ErrorSums()
    sums.add(values, other, axis=1)
    assert sums.sqnr > 55
    assert sums.channel_sqnr == pytest.approx(-10 * math.log10(3 / 4))


def test_infinities_on_both_sides_are_no_error_and_on_one_side_are(engine):
    values = np.array([1.0, -np.inf, np.nan, 2.0], np.float32)
    same = ErrorSums()
    same.add(values, values)
    assert (same.sqnr, same.largest) == (math.inf, 0.0)
    differs = ErrorSums()
    differs.add(values, np.array([1.0, 0.0, 0.0, 2.0], np.float32))
    assert differs.sqnr == -math.inf


def test_nothing_at_all_is_no_error(engine):
    sums = ErrorSums()
    sums.add(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32), axis=1)
    sums.add(np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32), axis=1)
    assert (sums.sqnr, sums.cosine, sums.channel_sqnr) == (math.inf, 1.0, math.inf)


def test_a_varying_number_of_channels_makes_them_one(engine):
    sums = ErrorSums()
    for channels in (3, 5):
        values = np.ones((2, channels), np.float32)
        sums.add(values, 0.9 * values, axis=1)
    assert sums.channel_sqnr == pytest.approx(20, abs=1e-4)
    assert sums.count == 16


def test_numbers_lost_altogether_lie_in_no_direction():
    sums = ErrorSums()
    sums.add(np.ones(4, np.float32), np.full(4, np.nan, np.float32))
    assert (sums.sqnr, sums.cosine, sums.largest) == (-math.inf, 0.0, math.inf)


def test_decibels_at_the_ends():
    assert decibels(1.0, 0.0) == math.inf
    assert decibels(0.0, 1.0) == decibels(1.0, math.inf) == -math.inf
    assert decibels(1000.0, 1.0) == pytest.approx(30.0)


def test_energies_add_up_over_arrays_of_any_shape():
    a, b = np.ones((2, 3), np.float32), np.zeros(4, np.float32)
    assert signal_and_noise([a, b], [a, b + 1]) == (6.0, 4.0)
    with pytest.raises(ValueError, match="shorter"):
        signal_and_noise([a], [])


def test_numbers_are_cut_off_half_a_step_beyond_the_last_codes():
    assert Codes(0.5, 10, 0, 255).bounds == (-5.25, 122.75)
