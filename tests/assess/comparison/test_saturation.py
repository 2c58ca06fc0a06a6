"""What no reader tells apart is no error; what it does tell apart stays one."""

import math

import numpy as np
import pytest
from support.models import make_gate

import bitwright
from bitwright.assess.comparison.saturation import EVERYWHERE, Saturation
from bitwright.assess.sums import Codes, ErrorSums

RNG = np.random.default_rng(5)
VALUES = RNG.normal(0, 6, 4096).astype(np.float32)
HARD_SIGMOID = Saturation(-3.0, 3.0)


def noise(saturation, codes):
    """Return the error of values that are stored in integers, over its step squared."""
    stored = np.clip(np.round(VALUES / codes.scale) + codes.zero_point, codes.lowest, codes.highest)
    sums = ErrorSums()
    sums.add(*saturation.cut(VALUES, stored.astype(np.uint8), codes), codes=codes)
    return sums.noise / sums.count / codes.scale**2


def spanning(low, high):
    scale = (high - low) / 255
    return Codes(scale, round(-low / scale), 0, 255)


@pytest.mark.parametrize("width", [3.02, 30.0])
def test_a_range_at_or_beyond_the_points_has_the_error_of_rounding(width):
    """A uniform error of one step has the energy 1/12, and what saturates has none."""
    assert noise(HARD_SIGMOID, spanning(-width, width)) < 1.1 / 12


def test_a_range_that_ends_before_the_points_loses_what_lies_between():
    assert noise(HARD_SIGMOID, spanning(-1.0, 1.0)) > 1000
    assert noise(EVERYWHERE, spanning(-3.02, 3.02)) > 1000


def test_float_results_are_cut_on_both_sides():
    expected, actual = Saturation(-1.0, math.inf).cut(VALUES, VALUES - 5, None)
    assert expected.min() == actual.min() == -1 and actual.max() == (VALUES - 5).max()


def test_compare_blames_no_node_for_what_its_reader_does_not_tell_apart():
    model = make_gate(RNG)
    samples = [{"x": RNG.normal(0, 1, (1, 4, 8, 8)).astype(np.float32)} for _ in range(8)]
    result = bitwright.quantize(model, data=samples, recipe="int8")
    conv = bitwright.compare(model, result.model, data=samples).nodes[0]
    assert conv.name == "conv" and conv.local_sqnr > 25 and conv.saturated < 0.01
