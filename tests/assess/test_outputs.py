"""How two models' answers are compared."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.models import normal, sqnr

from bitwright.assess import OutputComparison, compare_outputs
from bitwright.assess.outputs import output_section

IMAGE = np.zeros((1, 3, 64, 48), np.float32)


def fixed(arrays):
    """A model that gives the next of these answers at each call."""
    answers = iter(arrays)
    return lambda feeds: {"y": next(answers)}


def compare(expected, actual):
    [found] = compare_outputs(fixed(expected), fixed(actual), [{}] * len(expected)).outputs
    return found


def test_equal_answers_are_infinitely_good():
    found = compare([normal(2, 3)], [normal(2, 3)])
    assert found.sqnr == math.inf
    assert found.largest_error == 0
    assert found.agreement == 1
    assert found.cosine == pytest.approx(1)


def test_the_ratio_is_over_all_samples_not_the_mean_of_each():
    expected = [normal(4, 5, seed=1), normal(2, 5, seed=2) * 100]
    actual = [a + normal(*a.shape, seed=3, size=0.1) for a in expected]
    assert compare(expected, actual).sqnr == pytest.approx(sqnr(expected, actual))


def test_a_hundredth_of_noise_is_forty_decibels():
    signal = np.ones((1, 1000), np.float32)
    assert compare([signal], [signal * 1.01]).sqnr == pytest.approx(40, abs=0.01)


def test_noise_on_silence_is_infinitely_bad():
    assert compare([np.zeros((1, 3))], [np.ones((1, 3))]).sqnr == -math.inf


def test_agreement_counts_rows_with_the_same_largest_element():
    expected = np.array([[1, 2, 3], [3, 2, 1], [0, 5, 1], [9, 1, 1]], np.float32)
    actual = np.array([[1, 2, 4], [1, 2, 3], [0, 4, 1], [8, 1, 1]], np.float32)
    assert compare([expected], [actual]).agreement == 0.75


def test_single_numbers_have_no_agreement():
    assert compare([np.float32(3)], [np.float32(2)]).agreement is None
    assert compare([np.ones((4, 1))], [np.ones((4, 1))]).agreement is None


def test_pixels_agree_along_the_classes():
    expected = np.zeros((1, 6, 64, 48), np.float32)
    expected[:, 2] = 1
    actual = expected.copy()
    actual[:, 5, :16] = 2  # a quarter of all pixels
    models = (fixed([expected]), fixed([actual]))
    [found] = compare_outputs(*models, [{"image": IMAGE}]).outputs
    assert found.agreement == 0.75


def test_integers_are_left_out():
    found = compare_outputs(fixed([np.array([1, 2])]), fixed([np.array([1, 3])]), [{}])
    assert found.outputs == []
    assert found.judgement.outputs == ()


def test_answers_of_varying_shape_are_all_counted():
    expected = [normal(n, 3, seed=n) for n in (1, 4, 2)]
    found = compare(expected, [a * 1.1 for a in expected])
    assert found.sqnr == pytest.approx(20, abs=0.01)


def test_a_description_is_one_line():
    text = compare([normal(2, 3)], [normal(2, 3, seed=1)]).describe()
    assert "\n" not in text
    assert text.startswith("output 'y': ")


def test_values_that_are_not_finite_on_both_sides_do_not_hide_the_rest():
    expected = np.array([[1.0, 2.0, -np.inf, 4.0]], np.float32)
    actual = np.array([[1.0, 2.1, -np.inf, 4.0]], np.float32)
    found = compare([expected], [actual])
    assert math.isfinite(found.sqnr)
    assert found.sqnr > 20


def test_an_answer_that_stops_being_finite_is_infinitely_bad():
    expected = np.array([[1.0, 2.0, 3.0]], np.float32)
    actual = np.array([[1.0, np.nan, 3.0]], np.float32)
    assert compare([expected], [actual]).sqnr == -math.inf


def test_outputs_are_rows_of_figures():
    title, columns, [row] = output_section("T", [OutputComparison("y", 31.25, 0.5, 0.1, None)])
    assert (title, len(columns)) == ("T", len(row))
    assert row == ("y", "31.2", "0.50000", "0.1", "")
