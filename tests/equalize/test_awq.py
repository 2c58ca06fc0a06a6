"""AWQ: the function stays, the error of the output falls, and siblings share what is chosen."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.weights import make_layer, total_error

from bitwright.equalize import awq
from bitwright.equalize.awq import (
    ALPHAS,
    CLIP_RATIOS,
    awq_clip,
    awq_scales,
    awq_shrink,
)
from bitwright.errors import DataError
from bitwright.numerics.arrays import arrays_on
from bitwright.numerics.blocks import SHRINKS, BlockFormat, quantize_in_blocks, round_to_codes
from bitwright.rounding.gptq import factor_hessian, gptq
from bitwright.rounding.refinement import refine


def scale_rows(weights, factors):
    """Return a weight [K, N] with each row times its factor."""
    return (weights * factors[:, None]).astype(weights.dtype)


def scale_moment(moment, factors):
    """Return the second moment of inputs that have been divided by the factors."""
    return moment / factors[:, None] / factors


def scaled(weights, moment, format, **options):
    factors = awq_scales([weights], moment.mean_magnitudes(), moment.matrix(), format, **options)
    return factors, scale_rows(weights, factors), scale_moment(moment.matrix(), factors)


def test_scaling_changes_neither_the_product_nor_the_error_it_is_measured_by():
    weights, moment = make_layer(48, 6)
    factors = np.exp(np.random.default_rng(1).standard_normal(48))
    inputs = np.random.default_rng(2).standard_normal((5, 48))
    np.testing.assert_allclose(
        (inputs / factors) @ scale_rows(weights.astype(float), factors), inputs @ weights, rtol=1e-6
    )
    moved = scale_moment(moment.matrix(), factors)
    change = np.random.default_rng(3).standard_normal((48, 6))
    np.testing.assert_allclose(
        np.einsum("kn,kl,ln->", change * factors[:, None], moved, change * factors[:, None]),
        np.einsum("kn,kl,ln->", change, moment.matrix(), change),
    )


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    bits=st.integers(2, 8),
    symmetric=st.booleans(),
    rows=st.integers(20, 90),
)
def test_the_output_error_never_grows(seed, bits, symmetric, rows):
    weights, moment = make_layer(rows, 8, seed=seed)
    format = BlockFormat(bits=bits, symmetric=symmetric)
    plain = total_error(weights, quantize_in_blocks(weights, format), moment.matrix())
    _, wider, moved = scaled(weights, moment, format, alphas=(0.25, 0.5, 1.0))
    found = total_error(wider, quantize_in_blocks(wider, format), moved)
    assert found <= plain * 1.001


def test_the_best_of_the_candidates_is_taken():
    """The candidates' errors differ, which is what makes the search one."""
    weights, moment = make_layer(96, 16)
    format = BlockFormat()
    errors = []
    for alpha in ALPHAS[::4]:
        _, wider, moved = scaled(weights, moment, format, alphas=(alpha,))
        errors.append(total_error(wider, quantize_in_blocks(wider, format), moved))
    _, wider, moved = scaled(weights, moment, format, alphas=ALPHAS[::4])
    best = total_error(wider, quantize_in_blocks(wider, format), moved)
    assert best == pytest.approx(min(errors)) and max(errors) > 1.2 * min(errors)


# The paper's method, plainly and in float64 -----------------------------------------------------


def papers_rounding(weights, part=1.0, length=32):
    """Each block of 4 bits on its range, or on a part of it."""
    blocks = weights.reshape(-1, length, weights.shape[1])
    low, high = np.minimum(blocks.min(axis=1), 0) * part, np.maximum(blocks.max(axis=1), 0) * part
    scale = ((high - low) / 15)[:, None]
    zero = np.rint(-low[:, None] / scale)
    return ((np.clip(np.rint(blocks / scale) + zero, 0, 15) - zero) * scale).reshape(weights.shape)


def papers_awq(weights, inputs, *, clip=True, length=32):
    """20 strengths by the error of the output, then for each block the best of ten ranges."""

    def error(found):
        return ((inputs @ (found - weights)) ** 2).sum()

    sizes = np.abs(inputs).mean(axis=0)
    candidates = []
    for alpha in np.arange(20) / 20:
        factors = np.maximum(sizes**alpha, 1e-4)
        factors = (factors / np.sqrt(factors.max() * factors.min()))[:, None]
        candidates.append((error(papers_rounding(weights * factors) / factors), alpha, factors))
    factors = min(candidates, key=lambda candidate: candidate[:2])[2]
    scaled, reads = weights * factors, inputs / factors.T
    best = papers_rounding(scaled)
    for step in range(1, 10 if clip else 1):
        tried = papers_rounding(scaled, 1 - step / 20)
        for top in range(0, len(weights), length):
            rows = slice(top, top + length)
            costs = [
                ((reads[:, rows] @ (found[rows] - scaled[rows])) ** 2).sum(axis=0)
                for found in (best, tried)
            ]
            better = costs[1] < costs[0]
            best[rows, better] = tried[rows, better]
    return error(best / factors)


@pytest.mark.parametrize("spread", [0.2, 1.0, 2.0])
@pytest.mark.parametrize("clip", [False, True])
def test_it_is_at_least_as_good_as_the_papers(clip, spread):
    weights, moment, inputs = make_layer(128, 48, spread=spread, samples=512, with_inputs=True)
    hessian, format = moment.matrix(), BlockFormat()
    _, wider, moved = scaled(weights, moment, format, shrinks=CLIP_RATIOS if clip else (1.0,))
    grid = awq_clip(wider, moved, format, shrinks=SHRINKS if clip else (1.0,))
    found = total_error(wider, round_to_codes(wider, grid, format), moved) * len(inputs)
    assert found <= papers_awq(weights.astype(np.float64), inputs, clip=clip)
    nearest = total_error(weights, quantize_in_blocks(weights, format), hessian) * len(inputs)
    assert found < nearest


@pytest.mark.parametrize("seed", range(4))
def test_a_scaling_that_clipping_follows_is_chosen_for_that(seed):
    """By itself, clipping takes over a part of what scaling gains."""
    weights, moment = make_layer(128, 48, spread=0.3, seed=seed)
    hessian, format = moment.matrix(), BlockFormat()
    clipped = total_error(
        weights, round_to_codes(weights, awq_clip(weights, hessian, format), format), hessian
    )
    _, wider, moved = scaled(weights, moment, format, shrinks=CLIP_RATIOS)
    both = total_error(wider, round_to_codes(wider, awq_clip(wider, moved, format), format), moved)
    assert both <= 1.01 * clipped


@pytest.mark.slow
def test_methods_add_up():
    """Scaling, then clipping, then GPTQ, then refining: each on what the one before left."""
    weights, moment = make_layer(256, 64, samples=1024)
    hessian, format = moment.matrix(), BlockFormat()
    _, wider, moved = scaled(weights, moment, format)
    grid = awq_clip(wider, moved, format)
    steps = [
        total_error(weights, quantize_in_blocks(weights, format), hessian),
        total_error(wider, quantize_in_blocks(wider, format), moved),
        total_error(wider, round_to_codes(wider, grid, format), moved),
        total_error(wider, gptq(wider, factor_hessian(moved), format, grid=grid), moved),
    ]
    found = gptq(wider, factor_hessian(moved), format, grid=grid)
    steps.append(total_error(wider, refine(wider, found, moved), moved))
    for before, after in itertools.pairwise(steps):
        assert after < 0.95 * before
    assert steps[-1] < 0.15 * steps[0]
    alone = gptq(weights, factor_hessian(hessian), format)
    assert steps[3] < total_error(weights, alone, hessian)


def test_layers_that_read_one_tensor_get_one_scaling_that_serves_all():
    first, moment = make_layer(64, 10)
    second = np.random.default_rng(5).standard_normal((64, 30)).astype(np.float32)
    format = BlockFormat()
    factors = awq_scales([first, second], moment.mean_magnitudes(), moment.matrix(), format)
    moved = scale_moment(moment.matrix(), factors)

    def mean_errors(weights, hessian):
        return sum(
            total_error(w, quantize_in_blocks(w, format), hessian) / w.shape[1] for w in weights
        )

    wider = [scale_rows(w, factors) for w in (first, second)]
    assert mean_errors(wider, moved) < mean_errors((first, second), moment.matrix())


def test_a_few_columns_stand_for_all_of_a_wide_layer(monkeypatch):
    weights, moment = make_layer(64, 400)
    format = BlockFormat()
    _, wider, moved = scaled(weights, moment, format)
    monkeypatch.setattr(awq, "MAX_COLUMNS", 40)
    _, fewer, moved_too = scaled(weights, moment, format)
    whole = total_error(wider, quantize_in_blocks(wider, format), moved)
    part = total_error(fewer, quantize_in_blocks(fewer, format), moved_too)
    assert part < 1.05 * whole


def test_silent_channels_and_empty_rows_are_no_trouble():
    weights, moment = make_layer(64, 8)
    weights[3] = 0
    matrix, sizes = moment.matrix(), moment.mean_magnitudes()
    matrix[5] = matrix[:, 5] = 0
    sizes[5] = 0
    factors = awq_scales([weights], sizes, matrix, BlockFormat())
    assert np.isfinite(factors).all() and (factors > 0).all()


def test_torch_chooses_the_same():
    pytest.importorskip("torch")
    weights, moment = make_layer(64, 8)
    here, there = (
        scaled(weights, moment, BlockFormat(), xp=arrays_on(name))[0] for name in ("numpy", "torch")
    )
    np.testing.assert_allclose(here, there)


def test_weights_of_other_inputs_are_refused():
    with pytest.raises(DataError, match=r"4 channels, the weights \[5\] rows"):
        awq_scales([np.ones((5, 2))], np.ones(4), np.eye(4), BlockFormat())


def test_one_shrink_for_a_whole_weight_is_the_best_of_those_tried():
    weights, moment = make_layer(64, 8, seed=5)
    format, tried = BlockFormat(bits=3), (1.0, 0.9, 0.8, 0.7, 0.6)
    hessian = moment.matrix()
    errors = {
        part: total_error(weights, quantize_in_blocks(weights, format, shrinks=(part,)), hessian)
        for part in tried
    }
    chosen = awq_shrink(weights, hessian, format, shrinks=tried)
    assert chosen == min(errors, key=errors.__getitem__) != 1.0
