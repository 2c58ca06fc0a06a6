"""Positions of the weight and the bias of one operation that break no limit and lose least."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from bitwright.numerics import PositionGrid, QType
from bitwright.targets.npu_limits import LimitRule, NpuOperation, Positions, Ref, bounds_of

# What is computed at a position uses about a quarter of its range, in the mean square.
_USUAL_SIZE = 32.0

# Scales are normal numbers of float32.
_COARSEST = -127


class StoredConstant:
    """A constant of the model, and what it loses at a position."""

    def __init__(self, array: npt.NDArray[np.generic], qtype: QType) -> None:
        self._flat = array.reshape(-1)
        self._grid = PositionGrid.of(qtype, centred=True, symmetric=True)
        self._losses: dict[int, float] = {}

    def loss(self, position: int) -> float:
        """Return the sum of squared errors at a position."""
        if position not in self._losses:
            scale = np.array([2.0**-position])
            self._losses[position] = float(self._grid.squared_errors(self._flat, scale, 0.0)[0])
        return self._losses[position]


def fit_weight_and_bias(
    operation: NpuOperation,
    rules: Sequence[LimitRule],
    positions: Positions,
    start: Positions,
    stored: Callable[[Ref], StoredConstant | None],
) -> dict[Ref, int] | None:
    """Return the positions of weight and bias that hold all rules here and lose least.

    The shifters bound weight and bias together. Keeping the weight and moving only the bias can
    saturate the bias; a weight one bit coarser often costs a thousandth of that. So each coarser
    weight is tried, with the bias as near to where it was as the rules then let it be.

    None where nothing can be tried: one of them is computed, or shared with other operations.
    """
    weight = None if operation.weight is None else stored(operation.weight)
    bias = None if operation.bias is None else stored(operation.bias)
    if operation.weight is None or weight is None or (operation.bias in positions and bias is None):
        return None
    source = _USUAL_SIZE * 2.0 ** -positions[operation.known[0]]
    best: tuple[float, dict[Ref, int]] | None = None
    for position in range(start[operation.weight], _COARSEST, -1):
        moved = {operation.weight: position}
        if bias is not None and operation.bias is not None:
            moved[operation.bias] = start[operation.bias]
            moved[operation.bias] += _nearest_shift(operation, rules, {**positions, **moved})
        trial = {**positions, **moved}
        if not all(bound.holds(trial) for bound in bounds_of([operation], rules, trial)):
            continue
        cost = weight.loss(position) * source**2
        if best is not None and cost >= best[0]:
            break
        if bias is not None and operation.bias is not None:
            cost += bias.loss(moved[operation.bias])
        if best is None or cost < best[0]:
            best = cost, moved
        if all(start[ref] == moved[ref] for ref in moved if ref != operation.weight):
            break  # a coarser weight only loses more
    return None if best is None else best[1]


def _nearest_shift(operation: NpuOperation, rules: Sequence[LimitRule], trial: Positions) -> int:
    """Return how far the bias must move for the bounds that it gives way to."""
    bounds = (b for b in bounds_of([operation], rules, trial) if b.moves == (operation.bias,))
    return next((excess for bound in bounds if (excess := bound.excess(trial))), 0)
