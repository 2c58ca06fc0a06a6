"""What is done in the memory of a matrix is what copies of it would give."""

import numpy as np
import pytest

from bitwright.numerics import wide_matrices
from bitwright.numerics.wide_matrices import factor_, mirror_, permute_, unit_rows_


@pytest.fixture(autouse=True)
def small_panels(monkeypatch):
    monkeypatch.setattr(wide_matrices, "PANEL", 8)


def symmetric(size):
    inputs = np.random.default_rng(size).standard_normal((size, 2 * size + 1))
    return inputs @ inputs.T


@pytest.mark.parametrize("size", [1, 7, 8, 33])
def test_rows_and_columns_are_permuted_in_place(size):
    matrix = symmetric(size)
    order = np.random.default_rng(1).permutation(size)
    expected = matrix[order][:, order]
    permute_(matrix, order)
    np.testing.assert_array_equal(matrix, expected)


@pytest.mark.parametrize("size", [1, 7, 8, 33])
def test_the_lower_half_is_enough(size):
    matrix = symmetric(size)
    half = np.tril(matrix)
    mirror_(half)
    np.testing.assert_array_equal(half, (np.tril(matrix) + np.tril(matrix, -1).T))


@pytest.mark.parametrize("size", [1, 7, 8, 33])
def test_the_factor_gives_the_matrix_back(size):
    matrix = symmetric(size)
    work = matrix.copy()
    assert factor_(work, 0.5)
    lower = np.tril(work)
    np.testing.assert_allclose(lower.T @ lower, matrix + 0.5 * np.eye(size), atol=1e-10)
    unit, diagonal = unit_rows_(work)
    assert unit.dtype == np.float32 and unit.flags.c_contiguous
    np.testing.assert_allclose(unit * diagonal[:, None], lower, atol=1e-5)
    np.testing.assert_array_equal(np.triu(unit, 1), 0)


@pytest.mark.parametrize("size", [2, 7, 8, 33])
def test_what_has_no_factor_stays_as_it_was(size):
    matrix = symmetric(size)
    matrix[0, 0] = -1  # found last
    work = matrix.copy()
    assert not factor_(work, 0.0)
    np.testing.assert_array_equal(work, matrix)
