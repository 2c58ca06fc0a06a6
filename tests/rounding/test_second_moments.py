import itertools

import numpy as np
import pytest

from bitwright.rounding.second_moments import (
    MatrixGrid,
    fit_scales,
    output_errors,
    round_by_moment,
    round_each_by_moment,
    trusted_moment,
)


def tiny(seed, rows=5, columns=3, bits=2):
    """A weight, the second moment of correlated inputs, and a grid that covers the weight."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(200, rows)) @ rng.normal(size=(rows, rows)) + 1.0
    weights = rng.normal(size=(rows, columns))
    scales = np.abs(weights).max(axis=0) / (2 ** (bits - 1) - 0.5)
    grid = MatrixGrid(bits, scales, np.full(columns, 2 ** (bits - 1)))
    return weights, inputs.T @ inputs / 200, grid


def best_of_all(weights, moment, grid):
    """Return the least error of each column over all of its codes."""
    codes = range(2**grid.bits)
    levels = np.array(list(itertools.product(codes, repeat=len(weights)))).T
    found = []
    for column, scale, zero in zip(weights.T, grid.scales, grid.zeros, strict=True):
        change = column[:, None] - (levels - zero) * np.float64(np.float32(scale))
        found.append(output_errors(change, moment).min())
    return np.array(found)


@pytest.mark.parametrize("seed", range(8))
def test_codes_on_a_given_grid_are_between_nearest_and_the_best_of_all(seed):
    weights, moment, grid = tiny(seed)
    result, same = round_by_moment(weights, moment, grid, fit=False)
    np.testing.assert_allclose(same.scales, grid.scales, rtol=1e-7)
    np.testing.assert_allclose(grid.round(result), result, atol=1e-12)
    errors = output_errors(weights - result, moment)
    assert np.all(errors >= best_of_all(weights, moment, grid) - 1e-9)
    assert np.all(errors <= output_errors(weights - grid.round(weights), moment) + 1e-9)


def test_most_of_what_all_codes_could_gain_is_gained():
    sums = np.zeros(3)
    for seed in range(20):
        weights, moment, grid = tiny(seed)
        result, _ = round_by_moment(weights, moment, grid, fit=False)
        nearest = output_errors(weights - grid.round(weights), moment).sum()
        mine = output_errors(weights - result, moment).sum()
        sums += (nearest, mine, best_of_all(weights, moment, grid).sum())
    nearest, mine, best = sums
    assert nearest - mine > 0.6 * (nearest - best)


@pytest.mark.parametrize("seed", range(4))
def test_fitted_scales_give_less_error_and_codes_of_their_own_grid(seed):
    weights, moment, grid = tiny(seed, rows=24, columns=6, bits=4)
    given, _ = round_by_moment(weights, moment, grid, fit=False)
    result, fitted = round_by_moment(weights, moment, grid, fit=True)
    np.testing.assert_allclose(fitted.round(result), result, atol=1e-9)
    assert np.all(fitted.scales > 0)
    mine, theirs = (output_errors(weights - r, moment).sum() for r in (result, given))
    assert mine < theirs


def test_scales_are_weighted_by_what_is_read():
    weights = np.array([[8.0], [0.5], [0.6], [-0.4]])
    grid = MatrixGrid(4, np.array([8 / 7]), np.array([8]))
    read, unread = np.array([0.0, 1.0, 1.0, 1.0]), np.array([1.0, 0.0, 0.0, 0.0])
    errors = [
        np.square((weights - fit_scales(weights, grid, m).round(weights))[1:]).sum()
        for m in (read, unread)
    ]
    assert errors[0] < errors[1]


def test_few_rows_leave_the_diagonal():
    moment = np.array([[4.0, 2.0], [2.0, 4.0]])
    np.testing.assert_allclose(trusted_moment(moment, 0), np.diag([4.0, 4.0]))
    np.testing.assert_allclose(trusted_moment(moment, 8), moment)


def test_a_layer_that_reads_zeros_is_rounded_to_nearest():
    weights, moment, grid = tiny(0)
    result, _ = round_by_moment(weights, 0 * moment, grid, fit=True)
    np.testing.assert_array_equal(result, grid.round(weights))


def each_with_a_moment(count, rows=5, bits=2):
    """Columns with a moment each, and a grid for all of them."""
    parts = [tiny(seed, rows=rows, columns=1, bits=bits) for seed in range(count)]
    weights = np.concatenate([weight for weight, _, _ in parts], axis=1)
    scales = np.concatenate([grid.scales for _, _, grid in parts])
    moments = np.stack([moment for _, moment, _ in parts])
    return weights, moments, MatrixGrid(bits, scales, np.full(count, 2 ** (bits - 1)))


def errors_of_each(change, moments):
    return np.array(
        [output_errors(c[:, None], m)[0] for c, m in zip(change.T, moments, strict=True)]
    )


def test_columns_with_moments_of_their_own_gain_most_of_what_all_codes_could():
    weights, moments, grid = each_with_a_moment(40)
    result, same = round_each_by_moment(weights, moments, grid, fit=False)
    np.testing.assert_allclose(same.scales, grid.scales, rtol=1e-7)
    np.testing.assert_allclose(grid.round(result), result, atol=1e-12)
    nearest = errors_of_each(weights - grid.round(weights), moments)
    mine = errors_of_each(weights - result, moments)
    best = [
        best_of_all(w[:, None], m, MatrixGrid(2, np.array([s]), np.array([2])))[0]
        for w, m, s in zip(weights.T, moments, grid.scales, strict=True)
    ]
    assert np.all(mine <= nearest + 1e-9)
    assert np.all(mine >= np.array(best) - 1e-9)
    assert nearest.sum() - mine.sum() > 0.6 * (nearest.sum() - np.sum(best))


def test_columns_with_moments_of_their_own_are_as_close_as_one_by_one():
    weights, moments, grid = each_with_a_moment(60, rows=9, bits=4)
    result, fitted = round_each_by_moment(weights, moments, grid, fit=True)
    np.testing.assert_allclose(fitted.round(result), result, atol=1e-9)
    assert np.all(fitted.scales > 0)
    alone = [
        round_by_moment(w[:, None], m, MatrixGrid(4, np.array([s]), np.array([z])), fit=True)[0][
            :, 0
        ]
        for w, m, s, z in zip(weights.T, moments, grid.scales, grid.zeros, strict=True)
    ]
    mine = errors_of_each(weights - result, moments).sum()
    assert mine < errors_of_each(weights - np.stack(alone, axis=1), moments).sum()


def test_a_channel_that_reads_zeros_is_rounded_to_nearest():
    weights, moments, grid = each_with_a_moment(3)
    moments[1] = 0
    result, fitted = round_each_by_moment(weights, moments, grid, fit=True)
    np.testing.assert_allclose(result[:, 1], grid.round(weights)[:, 1])
    assert fitted.scales[1] == grid.scales[1]
