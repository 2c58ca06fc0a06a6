"""A layer whose inputs are off makes up for it as far as least squares can."""

import numpy as np
import pytest

from bitwright.numerics.arrays import arrays_on
from bitwright.numerics.second_moment import CrossMoment, SecondMoment
from bitwright.rounding.error_propagation import _DAMPING, propagate_error


@pytest.fixture(params=[5, 30], ids=["narrow", "wide"])
def layer(request):
    random = np.random.default_rng(0)
    wanted = random.standard_normal((400, 12)).astype(np.float32)
    inputs = wanted @ (np.eye(12) + 0.1 * random.standard_normal((12, 12))).astype(np.float32)
    return inputs, wanted, random.standard_normal((12, request.param)).astype(np.float32)


def moments(inputs, wanted):
    moment, cross = SecondMoment(12), CrossMoment(12)
    for start in range(0, len(inputs), 100):
        moment.update(inputs[start : start + 100])
        cross.update(inputs[start : start + 100], wanted[start : start + 100])
    return moment.matrix(), cross.take_matrix()


def test_taken_whole_it_is_the_ridge_regression_of_the_float_output(layer):
    inputs, wanted, weight = layer
    matrix, cross = moments(inputs, wanted)
    found = propagate_error(weight, matrix, cross, strength=1.0)
    # min |x (w + d) - f w|^2 + l |d|^2, as one least-squares problem in float64
    x, f, w = (array.astype(np.float64) for array in (inputs, wanted, weight))
    ridge = np.sqrt(_DAMPING * np.mean(np.square(x).sum(axis=0))) * np.eye(12)
    right = np.concatenate([(f - x) @ w, np.zeros_like(w)])
    change = np.linalg.lstsq(np.concatenate([x, ridge]), right, rcond=None)[0]
    np.testing.assert_allclose(found, w + change, atol=2e-5)


def test_a_part_of_it_lies_between(layer):
    inputs, wanted, weight = layer
    matrix, cross = moments(inputs, wanted)

    def error(strength):
        changed = propagate_error(weight, matrix, cross, strength=strength)
        return np.square(inputs @ changed - wanted @ weight).sum()

    assert error(1.0) < error(0.5) < error(0.0)
    np.testing.assert_allclose(propagate_error(weight, matrix, cross, strength=0.0), weight)


def test_inputs_without_error_leave_the_weight(layer):
    _, wanted, weight = layer
    found = propagate_error(weight, *moments(wanted, wanted), strength=1.0)
    np.testing.assert_array_equal(found, weight)


def test_torch_gives_the_same(layer):
    pytest.importorskip("torch")
    inputs, wanted, weight = layer
    given = moments(inputs, wanted)
    found = propagate_error(weight, *given, xp=arrays_on("torch")).numpy()
    np.testing.assert_allclose(found, propagate_error(weight, *given), atol=1e-6)


def test_inputs_of_zero_have_no_error_to_make_up_for():
    weight, nothing = np.ones((3, 2), np.float32), np.zeros((3, 3))
    np.testing.assert_array_equal(propagate_error(weight, nothing, nothing), weight)
