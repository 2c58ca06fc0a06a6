"""Scales, zero points and integers, as ONNX Runtime's tool computes them."""

from __future__ import annotations

import numpy as np
import onnxruntime.quantization.quant_utils as peer
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper
from support.peer_numbers import INTEGERS, same

import bitwright.compat.onnxruntime.quant_utils as ours
from bitwright.errors import RecipeError

floats = st.floats(-1e6, 1e6, width=32)


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("reduce_range", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_the_ends_of_every_type(kind, reduce_range, symmetric):
    mine = ours.get_qmin_qmax_for_qType(kind, reduce_range, symmetric)
    theirs = peer.get_qmin_qmax_for_qType(kind, reduce_range, symmetric)
    for one, other in zip(mine, theirs, strict=True):
        same(one, other)
    # The peer subtracts in the type itself, where 127 - -128 is -1.
    low, high = (int(end) for end in theirs)
    assert ours.get_qrange_for_qType(kind, reduce_range, symmetric) == high - low


@given(floats, floats, st.sampled_from(INTEGERS), st.booleans(), st.booleans())
def test_scale_and_zero_point(one, other, kind, symmetric, reduce_range):
    low, high = np.float32(min(one, other)), np.float32(max(one, other))
    ends = peer.get_qmin_qmax_for_qType(kind, reduce_range, symmetric)
    zero, scale = ours.compute_scale_zp(low, high, *ends, symmetric)
    wanted_zero, wanted_scale = peer.compute_scale_zp(low, high, *ends, symmetric)
    same(scale, wanted_scale)
    assert zero.dtype == wanted_zero.dtype
    if max(-low, high) < 1e-30 and symmetric:
        return  # of a range of nothing their zero point is 0, ours the same as of every other
    assert int(zero) == int(wanted_zero)


@pytest.mark.parametrize("kind", INTEGERS)
def test_a_minimum_range(kind):
    ends = peer.get_qmin_qmax_for_qType(kind)
    arguments = (np.float32(0), np.float32(1e-9), *ends, False, 0.125)
    for mine, theirs in zip(
        ours.compute_scale_zp(*arguments), peer.compute_scale_zp(*arguments), strict=True
    ):
        same(mine, theirs)


def test_float16_ranges_give_float16_scales():
    ends = peer.get_qmin_qmax_for_qType(TensorProto.UINT8)
    arguments = (np.float16(-1), np.float16(3), *ends)
    for mine, theirs in zip(
        ours.compute_scale_zp(*arguments), peer.compute_scale_zp(*arguments), strict=True
    ):
        same(mine, theirs)


@given(
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=20),
    st.sampled_from(INTEGERS),
    st.booleans(),
    st.booleans(),
)
def test_data_is_quantized_to_the_same_integers(values, kind, symmetric, reduce_range):
    data = np.array(values, np.float32)
    zero, scale, mine = ours.quantize_data(data, kind, symmetric, reduce_range)
    wanted_zero, wanted_scale, theirs = peer.quantize_data(data, kind, symmetric, reduce_range)
    same(scale, wanted_scale)
    if np.abs(data).max() > 1e-30 or not symmetric:
        same(zero, wanted_zero)
        same(mine, theirs)


@given(
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=20),
    st.sampled_from(INTEGERS),
    st.floats(2**-10, 2.0, width=32),
)
def test_an_array_with_given_parameters(values, kind, scale):
    data, scale = np.array(values, np.float32), np.float32(scale)
    same(ours.quantize_nparray(kind, data, scale, 1), peer.quantize_nparray(kind, data, scale, 1))
    same(
        ours.quantize_nparray(kind, data, scale, 0, 0, 5),
        peer.quantize_nparray(kind, data, scale, 0, np.array(0), np.array(5)),
    )


def test_given_ends_replace_the_datas():
    data = np.array([-3.0, 5.0], np.float32)
    options = {"rmin_override": -1.0, "rmax_override": 1.0}
    mine = ours.compute_data_quant_params(data, TensorProto.UINT8, False, **options)
    theirs = peer.compute_data_quant_params(data, TensorProto.UINT8, False, **options)
    for one, other in zip(mine, theirs, strict=True):
        same(one, other)


def test_float8():
    kind = TensorProto.FLOAT8E4M3FN
    data = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    mine, theirs = (m.compute_scale_zp_float8(kind, np.std(data)) for m in (ours, peer))
    np.testing.assert_allclose(mine[1], theirs[1], rtol=1e-6)
    scale = np.float32(theirs[1])
    one, other = (m.quantize_nparray(kind, data, scale, np.float32(0)) for m in (ours, peer))
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))
    with pytest.raises(RecipeError, match="reduce_range"):
        ours.quantize_data(data, kind, True, reduce_range=True)


@given(st.binary(max_size=33))
def test_four_bits_in_each_half_of_a_byte(content):
    assert ours.pack_bytes_to_4bit(content) == peer.pack_bytes_to_4bit(content)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=200))
def test_a_smoothed_distribution(counts):
    histogram = np.array(counts)
    mine, theirs = ours.smooth_distribution(histogram), peer.smooth_distribution(histogram)
    if theirs is None:
        assert mine is None
    else:
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize(("axis", "block"), [(None, 0), (0, 0), (1, 0), (0, 2)])
def test_an_initializer_per_tensor_channel_and_block(kind, axis, block):
    array = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)
    weight = numpy_helper.from_array(array, "w")
    shape = () if axis is None else (2, 6) if block else (array.shape[axis],)
    scale = np.full(shape, 0.25, np.float32)
    zero = np.full(shape, 1, ours.ONNX_TYPE_TO_NP_TYPE[kind])
    mine, theirs = (
        m.quantize_onnx_initializer(weight, kind, zero, scale, axis, block_size=block)
        for m in (ours, peer)
    )
    assert mine.name == theirs.name == "w_quantized" and mine.data_type == theirs.data_type
    same(numpy_helper.to_array(mine), numpy_helper.to_array(theirs))


@pytest.mark.parametrize("number", [TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("axis", "block"), [(0, 4), (1, 4), (0, 7), (-1, 100)])
def test_blocks_have_the_peers_scales_and_zero_points(number, symmetric, axis, block):
    weight = np.random.default_rng(3).standard_normal((10, 12)).astype(np.float32) + 0.3
    weight[:4, :4] = 0
    mine = ours.compute_scale_zp_blocked(weight, number, axis, block, symmetric)
    theirs = peer.compute_scale_zp_blocked(weight, number, axis % 2, block, symmetric)
    np.testing.assert_array_equal(mine[0], theirs[0], strict=True)
    # The peer takes the width of a range in float32.
    np.testing.assert_allclose(mine[1], theirs[1], rtol=3e-7, strict=True)


@pytest.mark.parametrize("ends", [(0.0, 2.0), (-1.0, 2.0), (-3.0, 0.5), (0.5, 1.0)])
@pytest.mark.parametrize("least", [None, 4.0])
def test_snapped_zero_points_are_the_peers(ends, least):
    ends = [np.float32(end) for end in ends]
    mine = ours.snap_zero_point_to_uint8(*ends, min_real_range=least)
    theirs = peer.snap_zero_point_to_uint8(*ends, min_real_range=least)
    for found, wanted in zip(mine, theirs, strict=True):
        assert found.dtype == np.asarray(wanted).dtype
        assert float(found) == pytest.approx(float(wanted), rel=1e-6)
