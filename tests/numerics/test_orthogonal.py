"""Orthogonal matrices: orthogonal, spread, reproducible, and multiplied block by block."""

from __future__ import annotations

import numpy as np
import pytest

from bitwright.numerics.orthogonal import hadamard, make_orthogonal

# The widths of language models that people run, and the sizes of their heads.
WIDTHS = [64, 80, 96, 112, 128, 256, 576, 640, 768, 896, 960, 1152, 1536, 2048, 2304]


@pytest.mark.parametrize("order", [1, 2, 4, 8, 12, 20, 24, 28, 36, 40, 44, 48, 60, 76])
def test_rows_of_a_hadamard_matrix_are_orthogonal_signs(order):
    matrix = hadamard(order)
    assert set(np.unique(matrix)) <= {-1.0, 1.0}
    np.testing.assert_array_equal(matrix @ matrix.T, order * np.eye(order))


@pytest.mark.parametrize("size", WIDTHS)
@pytest.mark.sampled(6)
def test_widths_of_language_models_have_a_hadamard_matrix(size):
    rotation = make_orthogonal(size, seed=3)
    assert rotation.kind == "hadamard"
    matrix = rotation.matrix()
    np.testing.assert_allclose(np.abs(matrix), size**-0.5, rtol=1e-12)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(size), atol=1e-12)


@pytest.mark.parametrize(("size", "keep_mean"), [(7, False), (50, False), (12, True), (33, True)])
def test_other_matrices_are_random_and_orthogonal(size, keep_mean):
    matrix = make_orthogonal(size, seed=1, keep_mean=keep_mean).matrix()
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(size), atol=1e-12)
    assert np.abs(matrix).max() < 0.95


def test_a_matrix_can_keep_the_mean():
    x = np.random.default_rng(0).normal(size=(5, 24))
    rotated = make_orthogonal(24, seed=1, keep_mean=True).multiply(x)
    np.testing.assert_allclose(rotated.mean(axis=-1), x.mean(axis=-1), atol=1e-12)


def test_a_seed_gives_one_matrix():
    first, again, other = (make_orthogonal(48, seed).matrix() for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("axis", [0, 1])
def test_blocks_along_an_axis_are_multiplied_and_the_rest_stays(axis):
    rotation = make_orthogonal(12, seed=0)
    array = np.random.default_rng(0).normal(size=(40, 40)).astype(np.float32)
    result = rotation.multiply(array, axis, slice(8, 32))
    expected = np.moveaxis(array.astype(np.float64), axis, -1)
    blocks = np.kron(np.eye(2), rotation.matrix())
    expected[:, 8:32] = expected[:, 8:32] @ blocks
    np.testing.assert_allclose(result, np.moveaxis(expected, -1, axis), atol=1e-12)
