"""Packing has ONNX's layout and loses nothing."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper, numpy_helper

from bitwright.errors import RecipeError
from bitwright.numerics.packing import pack, unpack

ONNX_TYPES = {
    (4, True): (TensorProto.INT4, ml_dtypes.int4),
    (4, False): (TensorProto.UINT4, ml_dtypes.uint4),
    (2, True): (TensorProto.INT2, ml_dtypes.int2),
    (2, False): (TensorProto.UINT2, ml_dtypes.uint2),
}


@st.composite
def small_integers(draw, max_dims=1):
    bits, signed = draw(st.sampled_from([2, 4])), draw(st.booleans())
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    shape = draw(hnp.array_shapes(max_dims=max_dims, min_side=0, max_side=17))
    dtype = np.int8 if signed else np.uint8
    return draw(hnp.arrays(dtype, shape, elements=st.integers(low, high))), bits, signed


@given(small_integers(max_dims=3))
def test_unpack_undoes_pack(problem):
    values, bits, signed = problem
    packed = pack(values, bits)
    assert packed.dtype == np.uint8
    assert packed.shape == (*values.shape[:-1], -(-values.shape[-1] * bits // 8))
    back = unpack(packed, bits, values.shape[-1], signed)
    assert back.dtype == values.dtype
    np.testing.assert_array_equal(back, values)


@given(small_integers())
def test_bytes_are_those_of_an_onnx_tensor(problem):
    values, bits, signed = problem
    onnx_type, dtype = ONNX_TYPES[bits, signed]
    ours = pack(values, bits).tobytes()
    assert numpy_helper.from_array(values.astype(dtype)).raw_data == ours
    tensor = helper.make_tensor("t", onnx_type, values.shape, ours, raw=True)
    np.testing.assert_array_equal(numpy_helper.to_array(tensor).astype(values.dtype), values)


@given(small_integers())
def test_a_last_gap_is_zero(problem):
    values, bits, _ = problem
    packed = pack(values, bits)
    padded = unpack(packed, bits, packed.size * 8 // bits, signed=False)
    assert not padded[values.size :].any()


def test_ml_dtypes_and_wide_integers_pack_too():
    assert pack(np.array([1, -1], ml_dtypes.int4), 4).tolist() == [0xF1]
    assert pack(np.array([1, -1], np.int64), 4).tolist() == [0xF1]


def test_the_first_value_sits_in_the_lowest_bits():
    assert pack([1, 2, 3], 4).tolist() == [0x21, 0x03]
    assert pack([1, 2, 3, 0, 1], 2).tolist() == [0b00111001, 0b01]


def test_other_widths_and_impossible_counts_are_refused():
    with pytest.raises(RecipeError, match="not 3-bit"):
        pack([1], 3)
    with pytest.raises(RecipeError, match="2 values of 4 bits, not 3"):
        unpack(np.zeros(1, np.uint8), 4, 3, signed=False)
