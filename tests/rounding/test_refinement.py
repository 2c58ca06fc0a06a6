"""Refitted scales and codes: against brute force and least squares, and never worse."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.weights import column_errors, make_layer, total_error

from bitwright.errors import DataError
from bitwright.numerics.arrays import arrays_on
from bitwright.numerics.blocks import (
    BlockFormat,
    quantize_in_blocks,
)
from bitwright.rounding.gptq import factor_hessian, gptq
from bitwright.rounding.refinement import refine


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(20, 100),
    bits=st.integers(2, 8),
    block_size=st.sampled_from([16, 32, -1]),
    symmetric=st.booleans(),
)
def test_refining_never_makes_an_output_worse(seed, rows, bits, block_size, symmetric):
    weights, moment = make_layer(rows, 6, seed=seed, samples=30)
    hessian = moment.matrix()
    damped = hessian + 0.01 * np.diag(hessian).mean() * np.eye(rows)
    format = BlockFormat(bits=bits, block_size=block_size, symmetric=symmetric)
    before = quantize_in_blocks(weights, format)
    after = refine(weights, before, hessian)
    assert after.format == format
    assert (
        column_errors(weights, after, damped)
        <= column_errors(weights, before, damped) * 1.001 + 1e-10
    ).all()


def test_refitted_scales_are_the_least_squares_solution():
    """Many rounds come to the solution of the normal equations, one per output."""
    weights, moment = make_layer(64, 5)
    hessian = moment.matrix()
    before = quantize_in_blocks(weights, BlockFormat(bits=3, block_size=16))
    after = refine(weights, before, hessian, rounds=200, damping=0.0)
    offsets = np.repeat(before.zero_points.astype(float), 16, axis=0)
    steps = after.codes - offsets
    for column in range(5):
        spread = np.zeros((64, 4))
        for place in range(4):
            rows = slice(16 * place, 16 * place + 16)
            spread[rows, place] = steps[rows, column]
        best = np.linalg.solve(
            spread.T @ hessian @ spread, spread.T @ hessian @ weights[:, column].astype(float)
        )
        np.testing.assert_allclose(after.scales[:, column], best, rtol=1e-3)


def test_each_code_is_the_best_one_given_the_others():
    weights, moment = make_layer(32, 4)
    hessian = moment.matrix()
    format = BlockFormat(bits=3, block_size=16)
    found = refine(weights, quantize_in_blocks(weights, format), hessian, rounds=30, damping=0.0)
    least = column_errors(weights, found, hessian)
    for row in range(32):
        for code in range(8):
            codes = found.codes.copy()
            codes[row] = code
            other = type(found)(format, codes, found.scales, found.zero_points)
            assert (column_errors(weights, other, hessian) >= least * 0.999).all()


def test_refining_lowers_the_error_that_gptq_leaves():
    weights, moment = make_layer(256, 64, samples=1024)
    hessian = moment.matrix()
    for format in (BlockFormat(), BlockFormat(block_size=128, symmetric=True)):
        found = gptq(weights, factor_hessian(hessian), format)
        before = total_error(weights, found, hessian)
        assert (
            total_error(weights, refine(weights, found, hessian, damping=1e-3), hessian)
            < 0.9 * before
        )


def test_channels_that_are_always_zero_keep_their_codes():
    weights, moment = make_layer(64)
    hessian = moment.matrix()
    hessian[7] = hessian[:, 7] = 0
    before = quantize_in_blocks(weights, BlockFormat())
    after = refine(weights, before, hessian, damping=0.0)
    np.testing.assert_array_equal(after.codes[7], before.codes[7])


@pytest.mark.parametrize("scale_type", ["float16", "bfloat16"])
def test_scales_stay_in_their_type(scale_type):
    weights, moment = make_layer(64)
    before = quantize_in_blocks(weights, BlockFormat(scale_type=scale_type))
    after = refine(weights, before, moment.matrix())
    assert str(after.scales.dtype) == scale_type
    assert total_error(weights, after, moment.matrix()) < total_error(
        weights, before, moment.matrix()
    )


def test_torch_gives_the_same_error():
    pytest.importorskip("torch")
    weights, moment = make_layer(100, 20)
    hessian = moment.matrix()
    before = quantize_in_blocks(weights, BlockFormat())
    errors = [
        total_error(weights, refine(weights, before, hessian, xp=arrays_on(name)), hessian)
        for name in ("numpy", "torch")
    ]
    assert errors[1] == pytest.approx(errors[0], rel=0.02)


def test_what_does_not_belong_together_is_refused():
    weights, moment = make_layer(64)
    before = quantize_in_blocks(weights, BlockFormat())
    with pytest.raises(DataError, match="do not belong together"):
        refine(weights, before, np.eye(63))
    with pytest.raises(DataError, match="do not belong together"):
        refine(weights[:, :3], before, moment.matrix())
