"""HQQ: against the published iteration, brute force, and the grids that it starts from."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.models import normal

from bitwright.numerics.arrays import arrays_on
from bitwright.numerics.blocks import SHRINKS, BlockFormat, quantize_in_blocks
from bitwright.rounding.hqq import hqq

SIZES = (16, 32, 128, -1)

any_weights = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 70), st.integers(1, 4)),
    elements=st.floats(-8, 8, width=32),
)
normal_weights = st.builds(
    lambda seed, rows, shift: normal(rows, 5, seed=seed) + np.float32(shift),
    st.integers(0, 10_000),
    st.integers(1, 100),
    st.sampled_from([0, 0, 1, 5]),
)
formats = st.builds(
    BlockFormat,
    bits=st.integers(2, 8),
    block_size=st.sampled_from(SIZES),
    symmetric=st.booleans(),
    scale_type=st.sampled_from(["float32", "float16", "bfloat16"]),
)


def squares(weights, found):
    """Return the squared error of each block, computed in float64."""
    errors = np.square(found.dequantize() - weights)
    length = found.format.length(len(weights))
    return np.add.reduceat(errors, np.arange(0, len(weights), length), axis=0)


def published(weights, length=32, highest=15, rounds=20, threshold=True):
    """Return scales, zero points and squared errors of the paper's iteration, in float64."""
    blocks = weights.astype(np.float64).reshape(-1, length, weights.shape[1])
    low, high = blocks.min(axis=1, keepdims=True), blocks.max(axis=1, keepdims=True)
    scale = (high - low) / highest
    zero = -low / scale
    sharpness = 10.0
    for _ in range(rounds):
        codes = np.clip(np.rint(blocks / scale + zero), 0, highest)
        error = blocks - (codes - zero) * scale
        size = np.maximum(np.abs(error), 1e-12)
        left_out = np.sign(error) * np.maximum(size - size**-0.3 / sharpness, 0)
        zero = (codes - (blocks - left_out * threshold) / scale).mean(axis=1, keepdims=True)
        sharpness *= 1.01
    codes = np.clip(np.rint(blocks / scale + zero), 0, highest)
    error = np.square(blocks - (codes - zero) * scale).sum(axis=1)
    return scale[:, 0], zero[:, 0], error


@settings(max_examples=150, deadline=None)
@given(st.one_of(any_weights, normal_weights), formats, st.booleans())
def test_no_block_has_a_larger_error_than_the_grids_it_is_compared_with(weights, format, floats):
    after = squares(weights, hqq(weights, format, float_zero_points=floats))
    shrinks = [(1.0,)] if floats and not format.symmetric else [(1.0,), SHRINKS]
    # The search sums in float32 and multiplies by the inverse of a scale; 8 bits leave little.
    allowed = np.square(np.abs(weights).max() * 1e-5)
    for tried in shrinks:
        before = squares(weights, quantize_in_blocks(weights, format, shrinks=tried))
        assert (after <= before * 1.002 + allowed).all()


def test_the_published_threshold_leaves_nothing_out_of_a_models_weights():
    """Which is why we have none: only errors above 0.17 would pass it."""
    weights = normal(512, 64, size=0.05)
    with_it, without = (published(weights, threshold=on) for on in (True, False))
    for one, other in zip(with_it, without, strict=True):
        np.testing.assert_array_equal(one, other)


def test_float_zero_points_are_clearly_better_than_published():
    """In thousandths of the energy of normal weights."""
    weights = normal(512, 256)
    energy = np.square(weights, dtype=np.float64).sum() / 1000
    plain = squares(weights, quantize_in_blocks(weights, BlockFormat())).sum() / energy
    paper = published(weights)[2].sum() / energy
    ours = squares(weights, hqq(weights, BlockFormat(), float_zero_points=True)).sum() / energy
    assert plain == pytest.approx(6.54, rel=0.03)
    assert paper == pytest.approx(5.48, rel=0.03)
    assert ours < 0.92 * paper


def test_integer_zero_points_do_better_than_clipping():
    weights = normal(512, 256)
    clipped = squares(weights, quantize_in_blocks(weights, BlockFormat(), shrinks=SHRINKS)).sum()
    found = hqq(weights, BlockFormat())
    assert found.zero_points.dtype == np.uint8
    assert squares(weights, found).sum() < 0.98 * clipped


def best_of_all(column, highest, zeros):
    """Return the least squared error of a block over many scales and the given zero points."""
    width = column.max() - column.min()
    scales = width / highest * np.linspace(0.6, 1.2, 150)[:, None]
    best = np.inf
    for zero in zeros:
        steps = np.clip(np.rint(column / scales + zero), 0, highest) - zero
        best = min(best, np.square(column - steps * scales).sum(axis=1).min())
    return best


@pytest.mark.parametrize("floats", [False, True])
def test_the_grids_are_close_to_the_best_that_brute_force_finds(floats):
    weights = normal(32, 40, seed=5).astype(np.float64)
    zeros = np.arange(2, 14, 0.1 if floats else 1)
    best = sum(best_of_all(column, 15, zeros) for column in weights.T)
    ours = squares(weights, hqq(weights, BlockFormat(), float_zero_points=floats)).sum()
    assert ours < (1.08 if floats else 1.04) * best


def test_zeros_constants_and_one_sign_are_held():
    weights = np.zeros((32, 3), np.float32)
    weights[:, 1] = 0.5
    weights[:, 2] = np.linspace(1, 2, 32)
    for symmetric in (False, True):
        found = hqq(weights, BlockFormat(symmetric=symmetric)).dequantize()
        np.testing.assert_allclose(found, weights, atol=0.15)
        assert not found[:, 0].any()


def test_float_zero_points_may_lie_outside_the_codes():
    """The range 1 to 2 begins 15 steps before the first code, at a whole number even."""
    found = hqq(np.linspace(1, 2, 16)[:, None], BlockFormat(block_size=16), float_zero_points=True)
    assert found.zero_points.dtype == np.float32
    np.testing.assert_allclose(found.zero_points, -15, rtol=1e-3)
    np.testing.assert_allclose(found.dequantize()[:, 0], np.linspace(1, 2, 16), atol=1e-3)


def test_what_fills_up_the_last_block_counts_for_nothing():
    weights = normal(40, 6) + 3
    for floats in (False, True):
        whole = hqq(weights, BlockFormat(), float_zero_points=floats)
        rest = hqq(weights[32:], BlockFormat(block_size=-1), float_zero_points=floats)
        np.testing.assert_allclose(squares(weights, whole)[1:], squares(weights[32:], rest))


@pytest.mark.parametrize("floats", [False, True])
def test_torch_gives_the_same(floats):
    pytest.importorskip("torch")
    weights = normal(90, 20)
    here, there = (
        hqq(weights, BlockFormat(), float_zero_points=floats, xp=arrays_on(name))
        for name in ("numpy", "torch")
    )
    np.testing.assert_allclose(squares(weights, there), squares(weights, here), rtol=1e-2)
