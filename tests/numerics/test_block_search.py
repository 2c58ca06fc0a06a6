"""Compiled code finds the scales that numpy finds."""

import numpy as np
import pytest

from bitwright.numerics import block_search
from bitwright.numerics.blocks import SHRINKS, BlockFormat, fit_block_scales, round_to_codes

pytest.importorskip("numba")


def error(weights, grid, format, metric):
    change = round_to_codes(weights, grid, format).dequantize() - weights
    return (np.square(change) * (1 if metric is None else metric[:, None])).sum()


@pytest.mark.parametrize("scale_type", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("negative_scales", [False, True])
@pytest.mark.parametrize("size", [1.0, 1e-6, 0.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_same_scales_are_found(
    monkeypatch, scale_type, symmetric, negative_scales, size, weighted
):
    rng = np.random.default_rng(0)
    weights = (rng.standard_t(4, size=(100, 24)) * size).astype(np.float32)
    weights[:, 3] = np.abs(weights[:, 3])
    weights[:, 4] = 0
    weights[:2, 5] = np.float32([-9, 9]) * size  # no side is the larger one
    metric = rng.uniform(0, 2, 100).astype(np.float32) if weighted else None
    format = BlockFormat(
        bits=4,
        block_size=32,
        symmetric=symmetric,
        negative_scales=negative_scales,
        scale_type=scale_type,
    )
    plain = fit_block_scales(weights, format, shrinks=SHRINKS, metric=metric)
    monkeypatch.setattr(block_search, "MIN_COMPILED_WORK", 0)
    fast = fit_block_scales(weights, format, shrinks=SHRINKS, metric=metric)
    same = (fast.scales == plain.scales) & (fast.zero_points == plain.zero_points)
    assert np.array_equal(np.sign(fast.scales), np.sign(plain.scales))
    assert same.mean() > 0.98  # of grids that are equally good either may be found
    assert error(weights, fast, format, metric) == pytest.approx(
        error(weights, plain, format, metric), rel=1e-5
    )


def test_little_work_does_not_load_the_compiler(monkeypatch):
    monkeypatch.setattr(block_search, "default_engine", lambda: "numba")
    assert not block_search.is_worth_compiling(1000, 21)
    assert block_search.is_worth_compiling(block_search.MIN_COMPILED_WORK, 1)
