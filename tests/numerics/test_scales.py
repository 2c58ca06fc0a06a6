"""Scale formulas: laws that must hold for every range, and agreement with ONNX Runtime's tool."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxruntime.quantization.quant_utils import compute_scale_zp, compute_scale_zp_float8

from bitwright.errors import DataError, RecipeError
from bitwright.numerics.quantize import dequantize, quantize
from bitwright.numerics.scales import (
    affine_parameters,
    ceil_power_of_two,
    ceil_scale,
    float_scale,
    middle_of,
    nearest_int16_scale,
    nearest_power_of_two,
    restricted_asymmetric_parameters,
    share_zero_point,
    smallest_bias_scale,
)
from bitwright.numerics.types import (
    BFLOAT16,
    FLOAT8E4M3FN,
    FLOAT8E5M2,
    FLOAT16,
    INT2,
    INT4,
    INT8,
    INT16,
    QTYPES,
    UINT2,
    UINT4,
    UINT8,
    UINT16,
)

INTEGERS = [t for t in QTYPES.values() if t.is_integer]
integers = st.sampled_from(INTEGERS)
reals = st.floats(allow_nan=False, allow_infinity=False, width=32)
everyday = st.floats(-1e6, 1e6, width=32)
ranges = st.tuples(reals, reals).map(sorted)
everyday_ranges = st.tuples(everyday, everyday).map(sorted)
kinds = st.sampled_from(["float", "power-of-two", "int16"])
stored = st.sampled_from([np.float32, np.float16, np.float64, ml_dtypes.bfloat16])
positive = st.floats(1e-30, 1e30)


@settings(max_examples=400)
@given(ranges, integers, st.booleans(), st.booleans(), kinds, stored)
def test_zero_is_exact_and_scales_are_positive_and_finite(
    limits, qtype, symmetric, reduced, kind, dtype
):
    scale, zero_point = affine_parameters(
        *limits, qtype, symmetric=symmetric, reduced=reduced, kind=kind, dtype=dtype
    )
    assert scale.dtype == dtype
    assert zero_point.dtype == np.int64
    assert scale.shape == zero_point.shape == ()
    assert np.isfinite(scale.astype(np.float64))
    assert scale.astype(np.float64) > 0
    assert qtype.lowest <= int(zero_point) <= qtype.highest
    zero = quantize(np.zeros(1, np.float32), scale, zero_point, qtype)
    assert dequantize(zero, scale, zero_point).tolist() == [0.0]


def clips(low, high, scale, zero_point, qmin, qmax):
    """Say, in fractions, whether an end of the range lies beyond the outermost levels."""
    scale, zero_point = Fraction(float(scale)), int(zero_point)
    bottom, top = (qmin - zero_point) * scale, (qmax - zero_point) * scale
    return Fraction(min(low, 0.0)) < bottom or top < Fraction(max(high, 0.0))


@settings(max_examples=400)
@given(everyday_ranges, st.sampled_from([INT2, UINT2, INT4, UINT4, INT8, UINT8, INT16, UINT16]),
       st.booleans(), st.booleans())  # fmt: skip
def test_a_power_of_two_scale_clips_nothing_and_half_of_it_would(limits, qtype, symmetric, reduced):
    if reduced and qtype.bits == 2:
        return  # two levels have no room for both signs
    qmin, qmax = qtype.bounds(symmetric=symmetric, reduced=reduced)
    scale, zero_point = affine_parameters(
        *limits, qtype, symmetric=symmetric, reduced=reduced, kind="power-of-two"
    )
    assert np.frexp(float(scale))[0] == 0.5
    assert qmin <= int(zero_point) <= qmax
    if float(scale) == 1.0 and max(-limits[0], limits[1]) < 1e-30:
        return  # a range without width
    assert not clips(*limits, scale, zero_point, qmin, qmax)
    # Half the scale would clip with every zero point; a symmetric grid has only one.
    zeros = [zero_point] if symmetric else range(qmin, min(qmax, qmin + 256) + 1)
    if symmetric or qtype.bits <= 8:
        assert all(clips(*limits, float(scale) / 2, zero, qmin, qmax) for zero in zeros)


@pytest.mark.parametrize("exponent", [-100, -7, 0, 5, 90])
@pytest.mark.parametrize("steps", [126, 127, 127.25, 127.5, 127.75, 128, 128.25, 254, 255])
@pytest.mark.parametrize("qtype", [INT8, UINT8], ids=str)
def test_ranges_at_the_edge_of_the_levels_are_not_clipped(qtype, steps, exponent):
    most = np.ldexp(steps, exponent)
    for low, high in ((-most, most), (-most, 0.0), (0.0, most), (-most / 2, most)):
        for symmetric in (True, False):
            qmin, qmax = qtype.bounds(symmetric=symmetric)
            scale, zero_point = affine_parameters(
                low, high, qtype, symmetric=symmetric, kind="power-of-two"
            )
            assert not clips(low, high, scale, zero_point, qmin, qmax)


@pytest.mark.parametrize("qtype", [UINT4, INT8], ids=str)
@pytest.mark.parametrize(
    ("low", "high"), [(-12.74, 5.4), (-16.27, 18.26), (-10.87, 18.7), (-17.15, 0.67), (-0.3, 7.9)]
)
def test_the_room_of_a_power_of_two_scale_is_shared_out_as_the_range_is(low, high, qtype):
    scale, zero_point = affine_parameters(low, high, qtype, kind="power-of-two")
    qmin, qmax = qtype.bounds()
    points = np.arange(qmin, qmax + 1)
    clips_nothing = points[((qmin - points) * scale <= low) & ((qmax - points) * scale >= high)]
    wanted = np.rint(qmin - low / ((high - low) / (qmax - qmin)))
    assert int(zero_point) == clips_nothing[np.argmin(np.abs(clips_nothing - wanted))]


def test_a_power_of_two_scale_keeps_zero_where_the_range_has_it():
    scale, zero_point = affine_parameters(-1.0, 1.0, UINT8, kind="power-of-two")
    assert (float(scale), int(zero_point)) == (2.0**-6, 128)
    scale, zero_point = affine_parameters(0.0, 6.0, UINT8, kind="power-of-two")
    assert (float(scale), int(zero_point)) == (2.0**-5, 0)
    scale, zero_point = affine_parameters(0.0, 6.0, INT8, kind="power-of-two")
    assert (float(scale), int(zero_point)) == (2.0**-5, -128)


@settings(max_examples=300)
@given(
    everyday_ranges.filter(lambda r: r[1] - r[0] > 1e-3),
    st.sampled_from([INT8, UINT8, INT16, UINT16, INT4, UINT4]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 0.01, 10.0]),
)
def test_float_scales_are_those_of_onnx_runtimes_tool(
    limits, qtype, symmetric, reduced, min_real_range
):
    qmin, qmax = qtype.bounds(symmetric=symmetric, reduced=reduced)
    theirs_zero, theirs_scale = compute_scale_zp(
        np.array(limits[0], np.float64), np.array(limits[1], np.float64),
        np.array(qmin, qtype.dtype), np.array(qmax, qtype.dtype),
        symmetric=symmetric, min_real_range=min_real_range,
    )  # fmt: skip
    scale, zero_point = affine_parameters(
        *limits, qtype, symmetric=symmetric, reduced=reduced, min_real_range=min_real_range
    )
    np.testing.assert_allclose(scale, np.float32(theirs_scale), rtol=2e-7)
    # Theirs divides by the unrounded scale, so a tie may fall the other way.
    assert abs(int(zero_point) - int(theirs_zero)) <= 1


@given(everyday_ranges, integers)
def test_the_zero_point_is_right_for_the_stored_scale(limits, qtype):
    scale, zero_point = affine_parameters(*limits, qtype, dtype=np.float16)
    if float(scale) in (1.0, 65504.0):
        return  # degenerate, or saturated: the range did not decide
    wanted = Fraction(qtype.lowest) - Fraction(min(limits[0], 0.0)) / Fraction(float(scale))
    clipped = min(max(wanted, Fraction(qtype.lowest)), Fraction(qtype.highest))
    assert abs(int(zero_point) - clipped) <= Fraction(1, 2) + abs(clipped) / 2**50


def test_vectors_and_blocks_give_what_each_range_gives_alone():
    rng = np.random.default_rng(0)
    low, high = np.sort(rng.normal(size=(2, 3, 5)), axis=0)
    for kind in ("float", "power-of-two", "int16"):
        scale, zero_point = affine_parameters(low, high, UINT8, kind=kind)
        assert scale.shape == zero_point.shape == (3, 5)
        for i in np.ndindex(3, 5):
            one, zero = affine_parameters(low[i], high[i], UINT8, kind=kind)
            assert (one, zero) == (scale[i], zero_point[i])


@pytest.mark.parametrize(
    ("name", "plain", "reduced"),
    [
        ("uint8", 128, 64), ("int8", 0, 0), ("uint16", 32768, 16384), ("int16", 0, 0),
        ("uint4", 8, 4), ("int4", 0, 0), ("uint2", 2, 1), ("int2", 0, 0),
        ("int32", 0, 0), ("uint32", 2**31, 2**30),
    ],
)  # fmt: skip
def test_symmetric_zero_points(name, plain, reduced):
    qtype = QTYPES[name]
    assert middle_of(*qtype.bounds(symmetric=True)) == plain
    assert middle_of(*qtype.bounds(symmetric=True, reduced=True)) == reduced
    assert int(affine_parameters(-1, 1, qtype, symmetric=True)[1]) == plain


@pytest.mark.parametrize("qtype", INTEGERS, ids=str)
@pytest.mark.parametrize("limits", [(0.0, 0.0), (0.0, 1e-42), (-1e-45, 0.0)])
@pytest.mark.parametrize("kind", ["float", "power-of-two", "int16"])
def test_a_range_without_width_gets_scale_one(qtype, limits, kind):
    scale, zero_point = affine_parameters(*limits, qtype, kind=kind)
    assert (float(scale), int(zero_point)) == (1.0, 0)
    scale, zero_point = affine_parameters(*limits, qtype, symmetric=True, kind=kind)
    assert (float(scale), int(zero_point)) == (1.0, middle_of(*qtype.bounds(symmetric=True)))


def test_scales_saturate_at_the_end_of_their_dtype():
    assert float(affine_parameters(-1e9, 1e9, UINT8, dtype=np.float16)[0]) == 65504.0
    assert (
        float(affine_parameters(-1e9, 1e9, UINT8, kind="power-of-two", dtype=np.float16)[0])
        == 2.0**15
    )
    top = float(np.finfo(np.float32).max)
    scale, _ = affine_parameters(-top, top, INT2, kind="power-of-two")
    assert float(scale) == 2.0**127


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_ranges_that_are_not_finite_are_refused(bad):
    with pytest.raises(DataError, match="not finite"):
        affine_parameters([0.0, bad], [1.0, 1.0], UINT8)
    with pytest.raises(DataError, match="not finite"):
        restricted_asymmetric_parameters(0.0, bad)
    with pytest.raises(DataError, match="not finite"):
        float_scale(bad, FLOAT8E4M3FN)
    with pytest.raises(DataError, match="not finite"):
        smallest_bias_scale([bad])


def test_a_reversed_range_is_refused():
    with pytest.raises(DataError, match="minimum 2 above its maximum 1"):
        affine_parameters([0.0, 2.0], [1.0, 1.0], UINT8)


def test_unknown_kinds_and_float_types_are_refused():
    with pytest.raises(RecipeError, match="unknown scale kind"):
        affine_parameters(0, 1, UINT8, kind="log")
    with pytest.raises(RecipeError, match="not an integer type"):
        affine_parameters(0, 1, FLOAT16)
    with pytest.raises(RecipeError, match="not a float type"):
        float_scale(1.0, INT8)


@given(everyday_ranges)
def test_restricted_asymmetric_covers_the_range_with_zero_point_0_or_128(limits):
    scale, zero_point = restricted_asymmetric_parameters(*limits)
    assert int(zero_point) == (0 if limits[0] >= 0 else 128)
    ends = np.array([min(limits[0], 0), max(limits[1], 0)]) / float(scale) + int(zero_point)
    assert ends[0] >= -1e-4
    assert ends[1] <= 255 + 1e-4


@given(positive)
def test_ceil_power_of_two_is_the_tightest_from_above(scale):
    up = float(ceil_power_of_two(scale))
    assert up / 2 < scale <= up
    assert np.frexp(up)[0] == 0.5


@given(st.integers(-1022, 1023))
def test_powers_of_two_stay_what_they_are(exponent):
    power = np.ldexp(1.0, exponent)
    assert float(ceil_power_of_two(power)) == power
    assert float(nearest_power_of_two(power)) == power


def test_ceil_power_of_two_never_overflows():
    assert float(ceil_power_of_two(np.finfo(np.float64).max)) == 2.0**1023


@given(positive)
def test_nearest_power_of_two_is_within_a_factor_of_the_root_of_two(scale):
    ratio = float(nearest_power_of_two(scale)) / scale
    assert 0.5**0.5 * 0.999999 <= ratio <= 2**0.5 * 1.000001


ALL_INT16_SCALES = np.unique(np.arange(1.0, 32768) / 2.0 ** np.arange(17)[:, None])


@settings(max_examples=300)
@given(
    st.one_of(
        st.floats(1e-7, 1e5),
        st.floats(1e-300, 1e300),
        st.integers(1, 32768).map(lambda m: m + 0.499),
        st.sampled_from(ALL_INT16_SCALES[[0, 1, 32766, 32767, 65535, -2, -1]].tolist()),
        st.sampled_from([2.0**-17, 2.0**-18, 32766.5, 32767.5, 32768.0, 16383.75, 5e-324]),
    )
)
def test_int16_scales_are_the_nearest_of_all(scale):
    ours = float(nearest_int16_scale(scale))
    where = np.searchsorted(ALL_INT16_SCALES, scale)
    around = ALL_INT16_SCALES[max(where - 1, 0) : where + 1]
    assert ours in ALL_INT16_SCALES
    assert abs(ours - scale) == np.abs(around - scale).min()
    assert float(np.float32(ours)) == ours


@settings(max_examples=100)
@given(st.floats(1e-4, 3e4), st.sampled_from(["float", "power-of-two", "int16"]))
def test_the_next_scale_of_a_kind_is_the_nearest_from_above(scale, kind):
    up = float(ceil_scale(scale, kind))
    assert up >= scale
    if kind == "float":
        assert up == scale
    elif kind == "power-of-two":
        assert up == float(ceil_power_of_two(scale))
    else:
        assert up == ALL_INT16_SCALES[np.searchsorted(ALL_INT16_SCALES, scale)]


@settings(max_examples=200)
@given(st.floats(-2e3, 0), st.floats(0, 2e3), st.sampled_from([INT8, UINT8, INT16, UINT16]))
def test_int16_scales_cut_off_no_more_than_a_level(low, high, qtype):
    scale, zero_point = (float(x) for x in affine_parameters(low, high, qtype, kind="int16"))
    # Zero is one of the levels, which may take half of one at either end.
    assert low >= (qtype.lowest - zero_point - 1.5) * scale
    assert high <= (qtype.highest - zero_point + 1.5) * scale


def test_int16_scales_of_the_vendors_examples():
    assert float(nearest_int16_scale(0.0225191)) == 369 / 16384
    assert float(nearest_int16_scale(1 / 127.5)) == 257 / 32768
    assert nearest_int16_scale([78740.0, 7.9e-7]).tolist() == [32767.0, 2.0**-16]


@given(st.floats(2**-10, 1000, width=32))
def test_float8_scales_are_those_of_onnx_runtimes_tool(std):
    theirs = compute_scale_zp_float8(FLOAT8E4M3FN.onnx_type, np.float32(std))[1]
    scale, zero_point = float_scale(std, FLOAT8E4M3FN)
    np.testing.assert_allclose(scale, theirs, rtol=1e-6)
    assert int(zero_point) == 0


def test_float_types_without_deviation_have_scale_one():
    for qtype in (FLOAT16, BFLOAT16, FLOAT8E4M3FN, FLOAT8E5M2):
        assert float(float_scale(0.0, qtype)[0]) == 1.0
    assert float_scale([1.0, 2.0], BFLOAT16)[0].tolist() == [1.0, 1.0]


@given(st.lists(everyday.filter(lambda b: b == 0 or abs(b) > 1e-20), min_size=1, max_size=8))
def test_a_bias_at_the_smallest_scale_does_not_saturate(values):
    bias = np.array(values)
    one = float(smallest_bias_scale(bias))
    each = smallest_bias_scale(bias, per_channel=True)
    assert each.shape == bias.shape
    assert each.max() == one
    if one > 0:
        assert np.abs(bias / np.float32(one)).max() <= 2**31 - 1


def test_a_zero_point_for_all_channels_wastes_no_more_than_one_range_would():
    generator = np.random.default_rng(3)
    low = -generator.exponential(size=8) * 0.2
    high = generator.exponential(size=8)
    shared = share_zero_point(low, high, 255)
    scale, zero = affine_parameters(*shared, UINT8)
    assert len(set(zero.tolist())) == 1
    assert np.all(shared[0] <= low + 1e-12) and np.all(shared[1] >= high - 1e-12)
    whole, _ = affine_parameters(low.min(), high.max(), UINT8)
    middle, _ = affine_parameters(low, high, UINT8, symmetric=True)
    assert (scale**2).sum() < min(8 * whole**2, (middle**2).sum())
    assert np.all(share_zero_point([0.0, -1.0], [0.0, 1.0], 255)[1] > 0)
