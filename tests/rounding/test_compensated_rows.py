"""Rows are rounded with the changes of earlier ones, by numpy and by compiled code alike."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwright.numerics import block_search
from bitwright.numerics.arrays import NUMPY
from bitwright.rounding.compensated_rows import row_rounder

HIGHEST = 15


def problem(rows, columns, seed):
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(rows, columns)).astype(np.float32)
    carried = rng.normal(scale=0.1, size=(rows, columns)).astype(np.float32)
    within = np.tril(rng.normal(scale=0.2, size=(rows, rows)), -1).astype(np.float32)
    scales = rng.uniform(0.1, 0.3, (rows, columns)).astype(np.float32)
    zeros = rng.integers(0, HIGHEST + 1, (rows, columns)).astype(np.float32)
    return weights + carried, weights, within, scales, zeros


def check(found, target, work, within, scales, zeros):
    """Each row by the definition, in float64, with the changes of the rows before it as found."""
    codes, changes, errors = found
    stored = (codes.astype(np.float64) - zeros) * scales
    value = target + within.astype(np.float64) @ changes
    ideal = np.clip(value / scales + zeros, 0, HIGHEST)
    assert np.all(codes == np.rint(codes))
    assert np.abs(codes - ideal).max() <= 0.5 + 1e-4
    np.testing.assert_allclose(changes, work - stored, atol=1e-5)
    np.testing.assert_allclose(errors, value - stored, atol=1e-5)


@pytest.mark.parametrize("compiles", [False, True])
@given(st.integers(1, 40), st.integers(1, 150), st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_rows_are_rounded_by_the_definition(compiles, rows, columns, seed):
    if compiles:
        pytest.importorskip("numba")
    target, *rest = problem(rows, columns, seed)
    size = block_search.MIN_COMPILED_WORK if compiles else 0
    check(row_rounder(size, HIGHEST, NUMPY)(target.copy(), *rest), target, *rest)


def test_only_large_weights_are_worth_compiling():
    small, large = (row_rounder(size, HIGHEST, NUMPY) for size in (1000, 1 << 30))
    pytest.importorskip("numba")
    assert small.func is not large.func
