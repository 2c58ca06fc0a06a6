"""GPTQ against a plain float64 version of the paper's loop, and against nearest rounding."""

from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.weights import column_errors, make_layer, total_error

import bitwright.rounding.gptq as rounding
from bitwright.errors import DataError, RecipeError
from bitwright.numerics import wide_matrices
from bitwright.numerics.arrays import _TorchArrays, arrays_on
from bitwright.numerics.blocks import (
    SHRINKS,
    BlockFormat,
    BlockScales,
    fit_block_scales,
    quantize_in_blocks,
    round_to_codes,
)
from bitwright.rounding.gptq import factor_hessian, gptq
from bitwright.rounding.refinement import refine


def papers_loop(weights, hessian, format, grid=None):
    """The published algorithm, row after row, in float64: an inverse, its Cholesky factor, and the
    error of each row subtracted from all later ones. Scales from the weights as they then are."""
    work = weights.astype(np.float64)
    rows = len(work)
    length = format.length(rows)
    damped = hessian + 0.01 * np.diag(hessian).mean() * np.eye(rows)
    upper = np.linalg.cholesky(np.linalg.inv(damped)).T
    codes = np.empty(work.shape, np.uint8)
    for row in range(rows):
        if row % length == 0 and grid is None:
            now = fit_block_scales(work[row : row + length], format)
            scale, zero = now.scales[0].astype(float), now.zero_points[0]
        if grid is not None:
            scale = grid.scales[row // length].astype(float)
            zero = grid.zero_points[row // length]
        codes[row] = np.clip(np.rint(work[row] / scale) + zero, 0, format.highest)
        error = (work[row] - (codes[row] - zero) * scale) / upper[row, row]
        work[row:] -= np.outer(upper[row, row:], error)
    return codes


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("rows", "block_size"), [(128, 32), (100, 16), (160, 128), (70, -1)])
def test_codes_are_those_of_the_papers_loop(symmetric, rows, block_size):
    weights, moment = make_layer(rows, samples=2 * rows)
    hessian = moment.matrix()
    format = BlockFormat(block_size=block_size, symmetric=symmetric)
    factor = factor_hessian(hessian, act_order=False)
    grid = fit_block_scales(weights, format)
    static = gptq(weights, factor, format, grid=grid, guard=False)
    expected = papers_loop(weights, hessian, format, grid)
    # A value near the middle of two codes may fall to the other side in float32, and whatever
    # follows in its column then differs.
    assert (static.codes != expected).any(axis=0).mean() <= 0.1
    if block_size != -1:
        moving = gptq(weights, factor, format, static_groups=False, shrinks=(1.0,), guard=False)
        expected = papers_loop(weights, hessian, format)
        assert (moving.codes != expected).any(axis=0).mean() <= 0.1


def test_act_order_is_the_papers_loop_on_permuted_rows():
    weights, moment = make_layer(64)
    hessian = moment.matrix()
    format = BlockFormat(block_size=-1)
    grid = fit_block_scales(weights, format)
    found = gptq(weights, factor_hessian(hessian), format, grid=grid, guard=False)
    order = np.argsort(-np.diag(hessian))
    expected = papers_loop(weights[order], hessian[np.ix_(order, order)], format, grid)
    assert (found.codes[order] != expected).any(axis=0).mean() <= 0.1


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(60, 200),
    block_size=st.sampled_from([16, 32, 64, 128, -1]),
    symmetric=st.booleans(),
    act_order=st.booleans(),
)
@pytest.mark.slow
def test_error_is_a_quarter_below_nearest_rounding_at_4_bits(
    seed, rows, block_size, symmetric, act_order
):
    weights, moment = make_layer(rows, seed=seed)
    hessian = moment.matrix()
    format = BlockFormat(block_size=block_size, symmetric=symmetric)
    nearest = total_error(weights, quantize_in_blocks(weights, format), hessian)
    found = gptq(weights, factor_hessian(hessian, act_order=act_order), format)
    assert total_error(weights, found, hessian) < 0.75 * nearest


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    bits=st.integers(2, 8),
    symmetric=st.booleans(),
    spread=st.floats(0, 2),
    samples=st.integers(8, 200),
)
def test_no_column_is_ever_worse_than_nearest_rounding(seed, bits, symmetric, spread, samples):
    weights, moment = make_layer(80, 40, seed=seed, spread=spread, samples=samples)
    hessian = moment.matrix()
    damped = hessian + 0.01 * np.diag(hessian).mean() * np.eye(80)
    format = BlockFormat(bits=bits, symmetric=symmetric)
    nearest = column_errors(weights, quantize_in_blocks(weights, format), damped)
    for options in ({}, {"shrinks": (1.0,)}):
        found = gptq(weights, factor_hessian(hessian), format, **options)
        assert (column_errors(weights, found, damped) <= nearest * 1.001 + 1e-12).all()


def test_the_guard_has_something_to_do():
    """Without correlation there is nothing to make up for, and clipping for two rows hurts."""
    weights, _ = make_layer(64, 200)
    hessian = np.eye(64) + 1e-9
    format = BlockFormat(bits=2, block_size=16)
    grid = fit_block_scales(weights, format, shrinks=(0.5,))
    factor = factor_hessian(hessian)
    nearest = column_errors(weights, quantize_in_blocks(weights, format), hessian)
    loose = column_errors(weights, gptq(weights, factor, format, grid=grid, guard=False), hessian)
    safe = column_errors(weights, gptq(weights, factor, format, grid=grid), hessian)
    assert (loose > nearest).any()
    assert (safe <= nearest * 1.001).all()
    np.testing.assert_allclose(safe, np.minimum(loose, nearest), rtol=1e-3)


def test_act_order_with_static_groups_halves_the_error_of_the_plain_order():
    weights, moment = make_layer(256, 64, samples=1024)
    hessian = moment.matrix()
    format = BlockFormat()
    plain = gptq(weights, factor_hessian(hessian, act_order=False), format, shrinks=(1.0,))
    ordered = gptq(weights, factor_hessian(hessian), format, shrinks=(1.0,))
    clipped = gptq(weights, factor_hessian(hessian), format)
    errors = [total_error(weights, found, hessian) for found in (plain, ordered, clipped)]
    assert errors[1] < 0.6 * errors[0] and errors[2] < 0.9 * errors[1]


@pytest.mark.parametrize(
    ("symmetric", "block_size", "plain", "ordered"),
    [
        (False, 32, 0.0048, 0.0023),
        (False, 128, 0.0072, 0.0031),
        (True, 32, 0.0065, 0.0028),
        (True, 128, 0.0088, 0.0037),
    ],
)
def test_the_relative_loss_is_that_of_a_correct_gptq(symmetric, block_size, plain, ordered):
    """What correct ones reach on K=256, N=64; those that lose the error round to nearest."""
    weights, moment = make_layer(256, 64, samples=512, spread=1.4)
    hessian = moment.matrix()
    format = BlockFormat(block_size=block_size, symmetric=symmetric)
    whole = np.einsum("kn,kl,ln->", weights.astype(float), hessian, weights.astype(float))
    usual = BlockFormat(block_size=block_size, symmetric=symmetric, negative_scales=False)
    nearest = total_error(weights, quantize_in_blocks(weights, usual), hessian) / whole
    assert nearest > 1.3 * plain > 2.6 * ordered
    for act_order, bound in ((False, plain), (True, ordered)):
        factor = factor_hessian(hessian, act_order=act_order)
        for shrinks, part in (((1.0,), 1.0), (SHRINKS, 0.65)):
            found = gptq(
                weights, factor, format, static_groups=act_order, shrinks=shrinks, guard=False
            )
            assert total_error(weights, found, hessian) / whole <= part * bound


def test_channels_that_were_always_zero_are_rounded_to_nearest():
    weights, moment = make_layer(64)
    hessian = moment.matrix()
    dead = [3, 40]
    hessian[dead] = hessian[:, dead] = 0
    format = BlockFormat()
    grid = fit_block_scales(weights, format)
    found = gptq(weights, factor_hessian(hessian), format, grid=grid, guard=False)
    nearest = quantize_in_blocks(weights, format)
    np.testing.assert_array_equal(found.codes[dead], nearest.codes[dead])


def test_a_hessian_of_too_few_samples_is_damped_until_it_can_be_factored():
    weights, _ = make_layer(64)
    moment = np.outer(np.arange(64.0), np.arange(64.0))
    moment[0, 0] = -20  # as rounding noise may leave it
    found = gptq(weights, factor_hessian(moment), BlockFormat())
    assert np.isfinite(found.dequantize()).all()


def test_siblings_share_a_factor_and_do_not_change_it():
    weights, moment = make_layer(96, 40)
    factor = factor_hessian(moment.matrix())
    together = gptq(weights, factor, BlockFormat())
    left, right = (gptq(part, factor, BlockFormat()) for part in (weights[:, :15], weights[:, 15:]))
    apart = np.concatenate([left.codes, right.codes], axis=1)
    # Products of other shapes sum in another order.
    assert (together.codes != apart).any(axis=0).mean() <= 0.1


def test_inputs_are_left_as_they_are():
    weights, moment = make_layer(64)
    hessian = moment.matrix()
    before = weights.copy(), hessian.copy()
    for act_order in (False, True):
        gptq(weights, factor_hessian(hessian, act_order=act_order), BlockFormat())
    np.testing.assert_array_equal(weights, before[0])
    np.testing.assert_array_equal(hessian, before[1])


def test_torch_gives_the_same_error():
    pytest.importorskip("torch")
    weights, moment = make_layer(150, 40)
    hessian = moment.matrix()
    for act_order, static in ((True, True), (False, False)):
        errors = [
            total_error(
                weights,
                gptq(
                    weights,
                    factor_hessian(hessian, act_order=act_order, xp=arrays_on(where)),
                    BlockFormat(),
                    static_groups=static,
                ),
                hessian,
            )
            for where in ("numpy", "torch")
        ]
        assert errors[1] == pytest.approx(errors[0], rel=0.02)


def test_what_cannot_be_is_refused():
    weights, moment = make_layer(64)
    factor = factor_hessian(moment.matrix())
    with pytest.raises(RecipeError, match="static_groups=True"):
        gptq(weights, factor, BlockFormat(), static_groups=False)
    with pytest.raises(DataError, match="63 rows, the Hessian 64"):
        gptq(weights[:63], factor, BlockFormat())
    with pytest.raises(DataError, match="all zero"):
        factor_hessian(np.zeros((4, 4)))
    with pytest.raises(DataError, match="NaN or infinity"):
        factor_hessian(np.full((4, 4), np.nan))
    with pytest.raises(DataError, match="not positive definite"):
        factor_hessian(np.array([[1.0, 5000.0], [5000.0, 1.0]]))
    with pytest.raises(DataError, match="square matrix"):
        factor_hessian(np.zeros((4, 3)))


def test_all_columns_can_share_the_scales_of_a_block():
    weights, moment = make_layer()
    found = gptq(weights, factor_hessian(moment.matrix()), BlockFormat(), per_column=False)
    assert (found.scales == found.scales[:, :1]).all()
    assert (found.zero_points == found.zero_points[:, :1]).all()
    plain = round_to_codes(weights, BlockScales(found.scales, found.zero_points), BlockFormat())
    hessian = moment.matrix()
    assert total_error(weights, found, hessian) < 0.8 * total_error(weights, plain, hessian)


@pytest.mark.parametrize("act_order", [True, False])
@pytest.mark.parametrize("overwrite", [True, False])
def test_a_wide_hessian_is_factored_in_its_own_memory(monkeypatch, act_order, overwrite):
    weights, moment = make_layer(100)
    matrix = moment.matrix()
    plain = factor_hessian(matrix, act_order=act_order)
    monkeypatch.setattr(rounding, "MAX_COPIED_CHANNELS", 0)
    monkeypatch.setattr(wide_matrices, "PANEL", 16)
    given = matrix.copy()
    wide = factor_hessian(given, act_order=act_order, overwrite=overwrite)
    assert overwrite or np.array_equal(given, matrix)
    np.testing.assert_array_equal(wide.order, plain.order)
    np.testing.assert_allclose(wide.lower, plain.lower, atol=1e-6)
    np.testing.assert_allclose(wide.costs, plain.costs, rtol=1e-6)
    # M' of H = M M', by its definition in float64.
    order = plain.order
    damped = matrix[np.ix_(order, order)] + 0.01 * np.diag(matrix).mean() * np.eye(100)
    rebuilt = (wide.lower.T.astype(np.float64) * wide.costs) @ wide.lower
    np.testing.assert_allclose(rebuilt, damped, atol=1e-5 * np.abs(damped).max())
    codes = [gptq(weights, factor, BlockFormat()).codes for factor in (plain, wide)]
    assert (codes[0] == codes[1]).mean() > 0.999


def test_more_damping_is_tried_on_a_wide_hessian_too(monkeypatch):
    monkeypatch.setattr(rounding, "MAX_COPIED_CHANNELS", 0)
    monkeypatch.setattr(wide_matrices, "PANEL", 8)
    matrix = np.eye(30)
    matrix[4, 4] = -0.05  # 1 % of the mean is too little, 10 % is enough
    found = factor_hessian(matrix.copy(), act_order=False)
    mean = np.diag(matrix).mean()
    expected = np.diag(matrix) + 0.1 * mean
    np.testing.assert_allclose(found.costs, expected, rtol=1e-6)
    with pytest.raises(DataError, match="not positive definite, even with 100 times"):
        factor_hessian(np.eye(30) - 0.9999 * np.ones((30, 30)) * np.eye(30)[::-1] * 2e4)


class ReplayedArrays(_TorchArrays):
    """Torch that keeps the results of a captured function in one place, as a GPU's graph does."""

    def captured(self, name, function):
        def replay(*arrays):
            results = function(*(array.clone() for array in arrays))
            kept = self.kept.setdefault((name, *(array.shape for array in arrays)), results)
            for own, new in zip(kept, results, strict=True):
                own.copy_(new)
            return kept

        return replay

    kept: ClassVar = {}


@pytest.mark.parametrize("rows", [256, 300])
@pytest.mark.sampled(1)
def test_results_that_the_next_block_overwrites_are_not_kept(rows):
    pytest.importorskip("torch")
    weights, moment = make_layer(rows)
    matrix = moment.matrix()
    found = []
    for xp in (arrays_on("torch"), ReplayedArrays("cpu:0")):
        blocks = gptq(weights, factor_hessian(matrix, xp=xp), BlockFormat())
        found += [blocks, refine(weights, blocks, matrix, xp=xp)]
    for plain, replayed in ((found[0], found[2]), (found[1], found[3])):
        np.testing.assert_array_equal(plain.codes, replayed.codes)
        np.testing.assert_array_equal(plain.scales, replayed.scales)
