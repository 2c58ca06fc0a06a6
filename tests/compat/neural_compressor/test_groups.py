"""Groups of values as integers, against the published vectors and against the rule itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bitwright.compat.neural_compressor.groups import magnitude_shares, quantize_groups
from bitwright.errors import DataError, ModelError, RecipeError

GROUP = [-1.0, -0.3, 0.2, 0.7]


@pytest.mark.parametrize(
    ("options", "codes", "scale", "zero"),
    [
        ({}, [0, 6, 11, 15], 0.113333, 9),
        ({"symmetric": True}, [0, 6, 10, 13], 0.133333, 8),
        ({"symmetric": True, "signed": True}, [-8, -2, 2, 5], 0.133333, 0),
        ({"bits": 8}, [0, 105, 180, 255], 0.0066667, 150),
        ({"bits": 2}, [0, 1, 2, 3], 0.566667, 2),
        ({"bits": 1, "symmetric": True, "signed": True}, [0, 0, 0, 0], 2.0, 0),
    ],
)
def test_the_published_vectors(options, codes, scale, zero):
    found = quantize_groups(GROUP, length=4, **options)
    assert found.codes.tolist() == [codes]
    assert found.scales[0, 0] == pytest.approx(scale, abs=1e-6)
    assert found.zero_points.tolist() == [[zero]]


@given(
    values=arrays.arrays(np.float32, (3, 8), elements=st.floats(-1000, 1000, width=32)),
    bits=st.integers(2, 8),
    bounded=st.booleans(),
)
def test_no_value_is_further_off_than_a_step(values, bits, bounded):
    """Also groups of one sign, constants and zeros: the range holds zero where the zero point is
    a code."""
    found = quantize_groups(values, bits=bits, length=8, bounded=bounded)
    off = np.abs(found.dequantize() - values.reshape(-1, 8))
    assert (off <= found.scales * (1 + 1e-9) + 1e-30).all()
    if bounded:
        assert (found.zero_points >= 0).all() and (found.zero_points < 1 << bits).all()


def test_a_zero_point_that_is_no_code_lets_the_range_lie_anywhere():
    far = [1.0, 1.1, 1.2, 1.3]
    assert quantize_groups(far, length=4, bounded=False).zero_points[0, 0] < 0
    off = np.abs(quantize_groups(far, length=4, bounded=False).dequantize() - far)
    assert off.max() < 0.011


def test_a_ratio_narrows_the_range():
    whole, part = (quantize_groups(GROUP, length=4, ratio=ratio) for ratio in (1.0, 0.5))
    assert part.scales[0, 0] == pytest.approx(whole.scales[0, 0] / 2)


def test_shares_of_the_published_example():
    rows = [[1, 2, 3, 4], [4, 4, 2, 1]]
    assert magnitude_shares(rows, 2).tolist() == [0.75, 1, 0.875, 0.75]
    assert magnitude_shares(rows).tolist() == [0.625, 0.75, 0.625, 0.625]
    assert magnitude_shares(np.zeros((2, 4))).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("values", "options", "error", "message"),
    [
        (GROUP, {"length": 3}, RecipeError, "4 values do not make whole groups of 3"),
        (GROUP, {"length": 0}, RecipeError, "at least one value"),
        (GROUP, {"length": 4, "bits": 9}, RecipeError, "1 to 8 bits"),
        (GROUP, {"length": 4, "ratio": 0}, RecipeError, r"\(0, 1\]"),
        ([np.nan, 1], {"length": 2}, ModelError, "NaN"),
        (["a"], {"length": 1}, DataError, "numbers"),
    ],
)
def test_bad_input_is_refused(values, options, error, message):
    with pytest.raises(error, match=message):
        quantize_groups(values, **options)
