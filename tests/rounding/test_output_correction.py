import numpy as np
import pytest

from bitwright.rounding.output_correction import OutputMoments, by_channel, squared_error


def identity(array):
    return array


def relu(array):
    return np.maximum(array, 0)


def silu(array):
    return array / (1 + np.exp(-array))


def outputs(seed, *, mean=0.0):
    rng = np.random.default_rng(seed)
    given = rng.normal(mean, 1, (2, 3, 5, 5))
    shift = np.array([0.2, -0.1, 0.0]).reshape(1, 3, 1, 1)
    return given + shift + rng.normal(0, 0.05, given.shape), given


def test_without_a_function_the_shift_is_the_mean_difference():
    wanted, given = outputs(0)
    found = OutputMoments.of(wanted, given, identity, 1).shift()
    np.testing.assert_allclose(found, (wanted - given).mean(axis=(0, 2, 3)), atol=1e-6)


@pytest.mark.parametrize("function", [relu, silu])
def test_the_shift_is_close_to_the_best_of_a_search_behind_the_function(function):
    wanted, given = outputs(1, mean=-0.5)
    found = OutputMoments.of(function(wanted), given, function, 1).shift()
    shifts = np.linspace(-0.5, 0.5, 1001)
    rows, other = by_channel(function(wanted), 1), by_channel(given, 1)
    for channel, shift in enumerate(found):
        errors = [squared_error(rows[:, channel], function(other[:, channel] + s)) for s in shifts]
        mine = squared_error(rows[:, channel], function(other[:, channel] + shift))
        untouched = squared_error(rows[:, channel], function(other[:, channel]))
        assert mine <= min(errors) + 0.02 * (untouched - min(errors)) + 1e-9


def test_values_that_the_function_suppresses_do_not_count():
    """The background asks for a shift of -1, the responses behind the Relu for one of 0.1."""
    given = np.concatenate([np.full((90, 1), -3.0), np.linspace(1, 2, 10)[:, None]])
    wanted = given + np.where(given < 0, -1.0, 0.1)
    assert OutputMoments.of(wanted, given, identity, -1).shift()[0] < -0.8
    assert OutputMoments.of(relu(wanted), given, relu, -1).shift()[0] == pytest.approx(0.1)


def test_a_channel_that_nothing_passes_is_not_shifted():
    given = np.array([[-5.0, 1.0], [-4.0, 2.0]])
    found = OutputMoments.of(relu(given + 0.5), given, relu, -1).shift()
    assert found[0] == 0 and found[1] == pytest.approx(0.5)


def test_sums_of_samples_add_up():
    pairs = [outputs(seed) for seed in range(3)]
    parts = [OutputMoments.of(w, g, identity, 1) for w, g in pairs]
    whole = OutputMoments.of(
        *(np.concatenate(side) for side in zip(*pairs, strict=True)), identity, 1
    )
    joined = OutputMoments.nothing() | parts[2] | parts[0] | parts[1]
    np.testing.assert_allclose(joined.shift(), whole.shift(), atol=1e-6)


def test_nothing_to_correct_is_a_shift_of_zero():
    _, given = outputs(0)
    assert not OutputMoments.of(given, given, identity, 1).shift().any()
    assert not OutputMoments.nothing().shift().any()


@pytest.mark.parametrize("function", [identity, silu])
def test_gain_and_shift_are_those_of_least_squares(function):
    rng = np.random.default_rng(3)
    given = rng.normal(0.5, 1, (400, 1))
    wanted = function(1.1 * given + 0.05 + rng.normal(0, 0.02, given.shape))
    seen = OutputMoments.nothing()
    for part in range(400):  # so many samples that next to nothing is shrunk
        rows = slice(part, part + 1)
        seen |= OutputMoments.of(wanted[rows], given[rows], function, -1)
    gain, shift = seen.gain_and_shift()
    gains, shifts = np.linspace(1, 1.2, 81), np.linspace(-0.1, 0.2, 61)
    searched = min(squared_error(wanted, function(g * given + s)) for g in gains for s in shifts)
    mine = squared_error(wanted, function(gain * given + shift))
    plain = squared_error(wanted, function(given))
    assert mine < searched + 0.05 * (plain - searched)


def test_a_gain_is_shrunk_where_samples_are_few():
    given = np.random.default_rng(0).normal(size=(50, 1))
    one = OutputMoments.of(1.2 * given, given, identity, -1)
    many = one
    for _ in range(63):
        many |= one
    assert one.gain_and_shift()[0][0] == pytest.approx(1 + 0.2 / 17)
    assert many.gain_and_shift()[0][0] == pytest.approx(1 + 0.2 * 64 / 80)


def test_a_channel_that_does_not_vary_has_no_gain():
    given = np.full((8, 1), 3.0)
    gain, shift = OutputMoments.of(given + 0.5, given, identity, -1).gain_and_shift()
    assert gain[0] == 1 and shift[0] == pytest.approx(0.5)


def test_a_sample_without_rows_says_nothing():
    nothing = np.zeros((0, 4), np.float32)
    seen = OutputMoments.of(nothing, nothing, lambda array: array, -1)
    assert seen.shift().tolist() == [0.0] * 4
