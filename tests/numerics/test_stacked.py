"""A stack of weights is one matrix whose columns are the outputs of all of them."""

import numpy as np
import pytest

from bitwright.numerics.stacked import as_matrix, as_stack


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
