"""Constants in float16 and bfloat16."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.numerics.halves import INFINITE, narrow


@given(st.lists(st.floats(-65504, 65504, width=32), min_size=2, max_size=20))
def test_numbers_that_fit_are_rounded_as_numpy_does(values):
    array = np.float32(values)
    result, moved = narrow(array, "float16")
    np.testing.assert_array_equal(result, array.astype(np.float16))
    assert moved == 0


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_infinities_and_nan_stay(kind):
    result, moved = narrow(np.float32([np.inf, -np.inf, np.nan, 1]), kind)
    assert np.isinf(result[:2].astype(np.float32)).all() and np.isnan(result[2]) and moved == 0


def test_what_stands_for_infinity_leaves_room_for_a_score():
    result, moved = narrow(np.float32([np.finfo(np.float32).min, INFINITE, 2.0]), "float16")
    assert moved == 2 and result[2] == 2 and np.isfinite(result).all()
    assert np.isfinite(np.float16(result[0]) + np.float16(-1000))


@pytest.mark.parametrize("value", [1e-12, -1e-9])
def test_a_single_number_next_to_zero_is_not_zero(value):
    for array in (np.float32(value), np.float32([value])):
        result, moved = narrow(np.asarray(array), "float16")
        assert moved == 1 and np.sign(result) == np.sign(value) and result.shape == array.shape
    weights, moved = narrow(np.float32([value, 1.0]), "float16")
    assert weights[0] == 0 and moved == 0


def test_bfloat16_has_room_for_all_of_them():
    result, moved = narrow(np.float32([1e-30, 3e38]), "bfloat16")
    assert result.dtype == ml_dtypes.bfloat16 and moved == 0
    assert np.isfinite(result.astype(np.float32)).all() and (result != 0).all()
