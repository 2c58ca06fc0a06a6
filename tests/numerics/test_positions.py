"""Fixed-point positions against brute force: every candidate, every value, in plain float64."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bitwright.numerics.positions import PositionGrid
from bitwright.numerics.types import INT4, INT8, INT16, UINT8, UINT16

GRIDS = [
    PositionGrid.of(INT8, centred=True, symmetric=True),
    PositionGrid.of(INT16, centred=True, symmetric=True),
    PositionGrid.of(INT4, centred=True, symmetric=True),
    PositionGrid.of(UINT8, centred=True, symmetric=True),
    PositionGrid.of(UINT8, centred=False),
    PositionGrid.of(UINT16, centred=False),
    PositionGrid.of(INT8, centred=False),
    PositionGrid.of(INT8, centred=True),
    PositionGrid.of(INT8, centred=True, symmetric=True, reduced=True),
]
values = hnp.arrays(
    np.float32,
    st.integers(1, 30),
    elements=st.one_of(st.floats(-8, 8, width=32), st.floats(-(2.0**90), 2.0**90, width=32)),
)


def by_brute_force(x, grid):
    """Return the published rule's position, value by value."""
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    width = 2 * max(-low, high) if grid.centred else high - low
    scale = width / (grid.qmax - grid.qmin)
    if scale < np.finfo(np.float32).tiny:
        return None
    base = round(-math.log2(scale))
    zero = (grid.qmin + grid.qmax + 1) // 2 if grid.centred else round(grid.qmin - low / scale)
    best, least = None, math.inf
    for position in range(base - 1, base + 4):
        step = 2.0 ** -min(position, 126)
        error = 0.0
        for value in x.astype(np.float64):
            stored = min(max(round(value / step) + zero, grid.qmin), grid.qmax)
            error += (value - (stored - zero) * step) ** 2
        if error < least:
            best, least = min(position, 126), error
    return best


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@given(x=values)
@settings(deadline=None, max_examples=60)
@pytest.mark.sampled(4)
def test_the_position_is_that_of_the_published_rule(grid, x):
    ours, theirs = grid.best_position(x), by_brute_force(x, grid)
    if ours != theirs:
        # The sums are added up in another order, so that equal errors may differ in the last bit.
        found = grid.candidates(float(x.min()), float(x.max()))
        assert found is not None
        errors = grid.squared_errors(x, 2.0 ** -np.array([ours, theirs], float), found[1])
        assert errors[0] == pytest.approx(errors[1], rel=1e-12)


@pytest.mark.parametrize(
    ("most", "position"), [(0.7, 7), (1.0, 7), (1.3, 6), (1.41, 6), (100.0, 0), (2.0**-20, 27)]
)
def test_evenly_spread_values_are_hardly_clipped(most, position):
    x = np.linspace(-most, most, 4001, dtype=np.float32)
    assert GRIDS[0].best_position(x) == position


def test_a_rare_outlier_is_clipped_and_three_positions_are_the_limit():
    body = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    alone = GRIDS[0].best_position(body)
    assert GRIDS[0].best_position(np.append(body, np.float32(8.0))) == alone
    # The base position of 500 is -2, and the search ends three finer.
    assert GRIDS[0].best_position(np.append(body, np.float32(500.0))) <= 1


def test_of_equal_errors_the_coarsest_scale_wins():
    assert GRIDS[0].best_position(np.array([4.0, -4.0, 0.0], np.float32)) == 4
    assert GRIDS[0].candidates(-4.0, 4.0)[0].tolist() == [2.0**-p for p in range(4, 9)]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_values_without_extent_have_no_best_position(grid):
    for x in ([], [0.0, -0.0], [np.nan, np.inf], [1e-45]):
        assert grid.best_position(np.array(x, np.float32)) is None


def test_what_is_not_finite_does_not_count():
    x = np.array([1.0, -0.3, 0.7], np.float32)
    with_broken = np.append(x, np.array([np.nan, np.inf, -np.inf], np.float32))
    assert GRIDS[0].best_position(with_broken) == GRIDS[0].best_position(x)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@given(low=st.floats(-1e6, 0), high=st.floats(0, 1e6), position=st.integers(-20, 20))
@settings(deadline=None, max_examples=30)
def test_the_ends_span_all_levels_at_the_position(grid, low, high, position):
    bottom, top = grid.ends(position, low, high)
    assert (top - bottom) == (grid.qmax - grid.qmin) * 2.0**-position
    assert bottom <= 0 <= top
    assert (bottom * 2.0**position).is_integer()


@pytest.mark.parametrize("engine", ["numpy", "numba"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.sampled(2)
def test_many_chunks_add_up(engine, dtype):
    pytest.importorskip("numba")
    x = np.random.default_rng(1).normal(size=3 * (1 << 14) + 17).astype(dtype)
    scales = np.array([0.25, 2.0**-5])
    errors = GRIDS[0].squared_errors(x, scales, 0.0, engine=engine)
    for scale, error in zip(scales, errors, strict=True):
        stored = np.clip(np.rint(x.astype(np.float64) / scale), -127, 127)
        assert error == pytest.approx(np.square(x - stored * scale).sum(), rel=1e-12)
