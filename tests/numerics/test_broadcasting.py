"""Scales and zero points take the shape of their tensor, in numpy and in torch."""

import numpy as np
import pytest

from bitwright.errors import RecipeError
from bitwright.numerics.broadcasting import (
    along_axis,
    as_matrix,
    as_stack,
    broadcast_parameters,
    some_places,
)


@pytest.mark.parametrize(("axis", "shape"), [(0, (3, 1, 1)), (1, (1, 3, 1)), (-1, (1, 1, 3))])
def test_a_vector_lies_along_its_axis(axis, shape):
    assert along_axis(np.arange(3), axis, 3).shape == shape


def test_torch_tensors_take_the_same_shapes():
    torch = pytest.importorskip("torch")
    assert along_axis(torch.arange(3), -2, 4).shape == (1, 1, 3, 1)
    assert along_axis(torch.ones(1), 1, 4).shape == ()


def test_without_an_axis_values_stay_as_they_are():
    assert along_axis(np.ones((2, 3)), None, 2).shape == (2, 3)


def test_the_last_block_may_be_shorter():
    found = broadcast_parameters(np.array([[1.0], [2.0], [3.0]]), (5, 1), 0, 2)
    assert found.ravel().tolist() == [1, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("shape", "axis", "block_size", "said"),
    [
        ((4,), None, 0, "need an axis within it, not None"),
        ((4,), 2, 0, "need an axis within it, not 2"),
        ((4,), 1, 0, "needs 6 scales"),
        ((4, 3), 1, 4, "blocks of 4 along axis 1"),
    ],
)
def test_values_that_do_not_fit_are_refused(shape, axis, block_size, said):
    with pytest.raises(RecipeError, match=said):
        broadcast_parameters(np.ones(shape), (4, 6), axis, block_size)


def test_places_are_thinned_out_and_channels_are_not():
    whole, every_other = slice(None), slice(1, None, 2)
    assert some_places((1, 16, 64, 64), 1, 1024) == (whole, whole, every_other, every_other)
    assert some_places((1, 16, 8, 8), 1, 1024) == (whole,) * 4


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("shape", [(5, 7), (3, 5, 7), (2, 3, 5, 7), (0, 7), (2, 5, 0)])
def test_there_and_back(shape, transposed):
    array = np.arange(np.prod(shape)).reshape(shape)
    matrix = as_matrix(array, transposed=transposed)
    assert matrix.shape[0] == shape[-1 if transposed else -2]
    assert np.array_equal(as_stack(matrix, shape[:-2], transposed=transposed), array)


def test_each_matrix_has_its_own_columns():
    array = np.random.default_rng(0).normal(size=(3, 5, 7))
    x = np.arange(5.0)
    wanted = np.concatenate([x @ one for one in array])
    np.testing.assert_allclose(x @ as_matrix(array, transposed=False), wanted)
    np.testing.assert_allclose(x @ as_matrix(array.swapaxes(1, 2), transposed=True), wanted)
