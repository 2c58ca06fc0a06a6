"""Every operation gives the same on torch as on numpy."""

import math
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from bitwright.errors import RecipeError
from bitwright.numerics.arrays import NUMPY, _TorchArrays, arrays_on


@pytest.fixture(params=["numpy", "torch"])
def xp(request):
    if request.param == "torch":
        pytest.importorskip("torch")
    return arrays_on(request.param)


def test_operations_give_what_numpy_gives(xp):
    values = np.random.default_rng(0).standard_normal((6, 6)).astype(np.float32)
    mine = xp.array(values)
    for name in ("abs", "sign", "rint"):
        np.testing.assert_array_equal(
            xp.numpy(getattr(xp, name)(mine)), getattr(np, name)(values), name
        )
    np.testing.assert_array_equal(xp.numpy(xp.amax(mine, 1)), values.max(axis=1))
    np.testing.assert_array_equal(xp.numpy(xp.amin(mine, 0)), values.min(axis=0))
    np.testing.assert_array_equal(xp.numpy(xp.flip(mine)), values[::-1, ::-1])
    np.testing.assert_array_equal(xp.numpy(xp.clip_(xp.copy(mine), -1, 1)), values.clip(-1, 1))
    np.testing.assert_array_equal(xp.numpy(xp.rint_(xp.copy(mine))), np.rint(values))
    square = values @ values.T + np.eye(6, dtype=np.float32)
    np.testing.assert_allclose(
        xp.numpy(xp.cholesky(xp.array(square))), np.linalg.cholesky(square), rtol=1e-3, atol=1e-5
    )
    np.testing.assert_allclose(
        square @ xp.numpy(xp.solve(xp.array(square), mine)), values, rtol=1e-3, atol=1e-3
    )


def test_a_matrix_that_is_not_positive_definite_has_no_factor(xp):
    assert xp.cholesky(xp.array([[1.0, 2.0], [2.0, 1.0]], "float64")) is None


def test_ties_round_to_even_and_sort_in_their_order(xp):
    assert xp.numpy(xp.rint(xp.array([0.5, 1.5, -2.5]))).tolist() == [0.0, 2.0, -2.0]
    assert xp.numpy(xp.descending(xp.array([1.0, 2.0, 1.0, 2.0]))).tolist() == [1, 3, 0, 2]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_to_a_shorter_float_is_storing_in_it(xp, dtype):
    values = np.random.default_rng(1).standard_normal(50).astype(np.float32)
    stored = values.astype({"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype])
    got = xp.numpy(xp.rounded(xp.array(values), dtype))
    np.testing.assert_array_equal(got, stored.astype(np.float32))
    np.testing.assert_array_equal(xp.numpy(xp.array(stored)), stored.astype(np.float32))


def test_numpy_arrays_are_not_copied_without_need():
    values = np.zeros(3, np.float32)
    assert NUMPY.array(values) is values


def test_unknown_places_are_refused():
    with pytest.raises(RecipeError, match="Did you mean 'cuda'"):
        arrays_on("cuda_")


def test_torch_is_not_loaded_before_it_is_asked_for():
    code = "import sys, bitwright.numerics.arrays; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["numpy", "torch", "cuda"])
def test_a_captured_function_gives_what_it_would_alone(name):
    if name != "numpy":
        torch = pytest.importorskip("torch")
        if name == "cuda" and not torch.cuda.is_available():
            pytest.skip("no CUDA device")
    xp = arrays_on(name)

    def twice(values, factors):
        for _ in range(2):
            values *= factors  # inputs may be overwritten
        return values, values + 1

    captured = xp.captured("twice", twice)
    assert xp.captured("twice", twice) is captured
    for rows in (3, 3, 5):  # the first of a shape is captured, the second replayed
        values = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
        found = [xp.numpy(a) for a in captured(xp.array(values.copy()), xp.array(values))]
        np.testing.assert_array_equal(found[0], values**3)
        np.testing.assert_array_equal(found[1], values**3 + 1)


@pytest.mark.parametrize("shape", [(3, 4), (5, 1), (1, 5), (0, 0), (6,)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8, ml_dtypes.bfloat16])
def test_arrays_reach_another_device_as_they_are(shape, dtype):
    """As the other device, the CPU by another name: what is copied there takes the same way."""
    pytest.importorskip("torch")
    xp = _TorchArrays("cpu:0")
    values = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    for given in (values, np.array(values, order="F")):
        given.flags.writeable = False
        found = xp.array(given, "float64")
        assert found.is_contiguous() and found.shape == given.shape
        np.testing.assert_array_equal(found.numpy(), given.astype(np.float64))
