"""Block formats against a reference that lists all values of a block and takes the nearest."""

from __future__ import annotations

import bisect
import functools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bitwright.errors import RecipeError
from bitwright.numerics.quantize import fake_quantize
from bitwright.numerics.shared_exponent import (
    SHARED_EXPONENT_FORMATS,
    BlockFloat,
    Microscaling,
    round_to_shared_exponents,
)
from bitwright.numerics.types import BFP16, INT8, MXINT8, QTYPES

BLOCK_TYPES = [t for t in QTYPES.values() if t.shares_exponent]

# Name of an element type -> (bits of its exponent, bits of its mantissa, its largest value).
SMALL_FLOATS = {
    "fp8_e5m2": (5, 2, 57344),
    "fp8_e4m3": (4, 3, 448),
    "fp6_e3m2": (3, 2, 28),
    "fp6_e2m3": (2, 3, Fraction(15, 2)),
    "fp4_e2m1": (2, 1, 6),
}


# The reference --------------------------------------------------------------------------------


def exponent_of(x):
    """The exponent field of a float32, less 127; infinities and NaN count as zero."""
    if not math.isfinite(x) or abs(x) < 2.0**-126:
        return -127
    return math.frexp(x)[1] - 1


def nearest(value, choices, mode):
    """The choice nearest to a value; `choices` ascend, and `mode` says where halves go."""
    above = bisect.bisect_left(choices, value)
    around = choices[max(above - 1, 0) : above + 1]
    distance = min(abs(choice - value) for choice in around)
    ties = [choice for choice in around if abs(choice - value) == distance]
    if len(ties) == 1:
        return ties[0]
    if mode == "away":
        return max(ties, key=abs)
    if mode == "up":
        return max(ties)
    zero = choices.index(0)
    return next(choice for choice in ties if choices.index(choice) % 2 == zero % 2)


@functools.cache
def small_floats(exponent_bits, mantissa_bits, largest):
    """Every finite value of a float with these bits, ascending."""
    bias = 2 ** (exponent_bits - 1) - 1
    found = set()
    for field in range(2**exponent_bits):
        for mantissa in range(2**mantissa_bits):
            fraction = Fraction(mantissa, 2**mantissa_bits)
            if field:
                found.add((1 + fraction) * Fraction(2) ** (field - bias))
            else:
                found.add(fraction * Fraction(2) ** (1 - bias))
    finite = {v for v in found if v <= largest}
    return sorted(finite | {-v for v in finite})


def reference_block(block, format):
    if isinstance(format, Microscaling):
        return reference_microscaling(block, format)
    mode = ("away", "up", "even")[format.rounding]
    prime = format.sub_block_size > 0
    if prime and not all(map(math.isfinite, block)):
        return [math.nan] * len(block)
    if prime:
        block = [x if abs(x) >= 2.0**-126 else 0.0 for x in block]
    shared = max(map(exponent_of, block))
    result = []
    for i, x in enumerate(block):
        exponent = shared
        if prime:
            size = format.sub_block_size
            own = max(map(exponent_of, block[i - i % size : i - i % size + size]))
            exponent = shared - min(shared - own, 2**format.shift_bits - 1)
        bits = format.bit_width - 9
        step = Fraction(2) ** (exponent - (bits - 1))
        levels = range(-(2**bits) + 1, 2**bits)
        if math.isfinite(x):
            x = float(nearest(Fraction(x) / step, levels, mode) * step)
        result.append(x)
    return result


def reference_microscaling(block, format):
    largest = max(map(exponent_of, block))
    if format.element == "int8":
        # -2 times the largest scale is no number of float32.
        choices = [Fraction(k, 64) for k in range(-127 if largest == 127 else -128, 128)]
        mode, emax = ("away", "up", "even")[format.rounding], 0
    else:
        choices = small_floats(*SMALL_FLOATS[format.element])
        mode, emax = "even", exponent_of(float(choices[-1]))
    scale = Fraction(2) ** max(largest - emax, -127)
    return [
        float(nearest(Fraction(x) / scale, choices, mode) * scale) if math.isfinite(x) else x
        for x in block
    ]


def reference(values, format):
    """Round one row."""
    size = format.block_size
    padded = [*map(float, values), *[0.0] * (-len(values) % size)]
    rounded = []
    for start in range(0, len(padded), size):
        rounded += reference_block(padded[start : start + size], format)
    return np.array(rounded[: len(values)], np.float32)


# The tests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", BLOCK_TYPES, ids=str)
def test_the_largest_numbers_stay_numbers(t):
    largest = np.finfo(np.float32).max
    rounded = round_to_shared_exponents(
        np.array([largest, -largest, -1.999 * 2.0**127], np.float32), t, 0
    )
    assert np.isfinite(rounded).all()
    np.testing.assert_allclose(rounded[:2], [largest, -largest], rtol=0.3)


@pytest.mark.parametrize("t", BLOCK_TYPES, ids=str)
@settings(max_examples=30, deadline=None)
@given(values=hnp.arrays(np.float32, st.integers(1, 20), elements=st.floats(width=32)))
@example(values=np.array([np.finfo(np.float32).min], np.float32))
@pytest.mark.sampled(5)
def test_any_floats_round_to_the_nearest_value_that_their_block_can_hold(t, values):
    expected = reference(values, SHARED_EXPONENT_FORMATS[t.name])
    np.testing.assert_array_equal(round_to_shared_exponents(values, t, 0), expected)


@pytest.mark.parametrize("t", BLOCK_TYPES, ids=str)
@settings(max_examples=20, deadline=None)
@given(
    values=hnp.arrays(np.int64, st.integers(1, 20), elements=st.integers(-600, 600)),
    unit=st.sampled_from([2.0**-9, 0.25, 1.0, 2.0**20]),
)
def test_halves_go_where_the_format_sends_them(t, values, unit):
    floats = (values * unit).astype(np.float32)
    expected = reference(floats, SHARED_EXPONENT_FORMATS[t.name])
    np.testing.assert_array_equal(round_to_shared_exponents(floats, t, 0), expected)


@pytest.mark.parametrize(
    ("rounding", "expected"), [(0, [1, -1, 2, -2]), (1, [1, 0, 2, -1]), (2, [0, 0, 2, -2])]
)
def test_each_rounding_mode_has_its_own_halves(rounding, expected):
    format = BlockFloat(bit_width=11, block_size=8, rounding=rounding)
    # The largest value makes the step 1: two mantissa bits below an exponent of 1.
    x = np.array([0.5, -0.5, 1.5, -1.5, 2.0], np.float32)
    np.testing.assert_array_equal(round_to_shared_exponents(x, format, 0)[:4], expected)


@pytest.mark.parametrize("t", [t for t in BLOCK_TYPES if t != MXINT8], ids=str)
def test_rounding_twice_changes_nothing_more(t):
    x = np.random.default_rng(1).standard_normal((400, 50)).astype(np.float32) * 7
    once = round_to_shared_exponents(x, t)
    np.testing.assert_array_equal(round_to_shared_exponents(once, t), once)


def test_the_lowest_integer_of_mxint8_has_an_exponent_of_its_own():
    x = np.array([-1.999, 1 / 64], np.float32)
    once = round_to_shared_exponents(x, MXINT8, 0)
    np.testing.assert_array_equal(once, [-2, 1 / 64])
    np.testing.assert_array_equal(round_to_shared_exponents(once, MXINT8, 0), [-2, 1 / 32])


@pytest.mark.parametrize("t", BLOCK_TYPES, ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_blocks_lie_along_the_axis(t, axis):
    x = np.random.default_rng(2).standard_normal((5, 20, 3)).astype(np.float32)
    rows = np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis])
    expected = np.stack([round_to_shared_exponents(row, t, 0) for row in rows])
    expected = np.moveaxis(expected.reshape(np.moveaxis(x, axis, -1).shape), -1, axis)
    np.testing.assert_array_equal(round_to_shared_exponents(x, t, axis), expected)


def test_small_elements_have_the_values_that_ml_dtypes_has():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name, dtype in {
        "mxfp8e5m2": ml_dtypes.float8_e5m2,
        "mxfp8e4m3": ml_dtypes.float8_e4m3fn,
        "mxfp6e3m2": ml_dtypes.float6_e3m2fn,
        "mxfp6e2m3": ml_dtypes.float6_e2m3fn,
        "mxfp4e2m1": ml_dtypes.float4_e2m1fn,
    }.items():
        highest = float(ml_dtypes.finfo(dtype).max)
        x = np.random.default_rng(3).uniform(-highest, highest, 31).astype(np.float32)
        block = np.append(x, np.float32(highest))  # so that the scale is 1
        expected = block.astype(dtype).astype(np.float32)
        np.testing.assert_array_equal(round_to_shared_exponents(block, QTYPES[name], 0), expected)


def test_infinities_and_nan_stay_but_take_a_block_of_microexponents_with_them():
    x = np.array([1.0, np.inf, np.nan, -np.inf, 0.1] + [0.0] * 3, np.float32)
    kept = round_to_shared_exponents(x, BFP16, 0)
    np.testing.assert_array_equal(kept[1:4], x[1:4])
    assert kept[0] == 1 and kept[4] == np.float32(0.09375)
    assert np.isnan(round_to_shared_exponents(x, QTYPES["mx9"], 0)).all()


def test_half_floats_stay_half_floats():
    x = np.random.default_rng(4).standard_normal((2, 40)).astype(np.float16)
    rounded = round_to_shared_exponents(x, MXINT8)
    assert rounded.dtype == np.float16
    np.testing.assert_array_equal(rounded, round_to_shared_exponents(x.astype(np.float32), MXINT8))


def test_scalars_and_empty_arrays_are_fine():
    assert round_to_shared_exponents(np.float32(0.3), BFP16) == np.float32(0.30078125)
    assert round_to_shared_exponents(np.zeros((0, 8), np.float32), BFP16).shape == (0, 8)


def test_fake_quantizing_to_a_block_format_rounds_to_blocks():
    x = np.random.default_rng(5).standard_normal((3, 40)).astype(np.float32)
    np.testing.assert_array_equal(
        fake_quantize(x, 1.0, 0, BFP16, axis=1), round_to_shared_exponents(x, BFP16)
    )


def test_a_type_with_a_scale_is_no_block_format():
    with pytest.raises(RecipeError, match="int8 is no shared-exponent format"):
        round_to_shared_exponents([1.0], INT8)
