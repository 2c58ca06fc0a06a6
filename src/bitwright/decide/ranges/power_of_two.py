"""Power-of-two scales by least squared error: over all that was seen, or batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from bitwright.decide.ranges.density import Density, Levels
from bitwright.decide.ranges.statistics import Sketch
from bitwright.errors import DataError
from bitwright.numerics import PositionGrid, QType
from bitwright.recipe import MinMSE


def position_grid(
    method: MinMSE, qtype: QType, *, symmetric: bool = False, reduced: bool = False
) -> PositionGrid:
    """Return the grid for which a power-of-two scale is searched."""
    return PositionGrid.of(
        qtype, centred=symmetric or method.symmetric, symmetric=symmetric, reduced=reduced
    )


def least_error_position(
    density: Callable[[], Density], grid: PositionGrid, low: float, high: float
) -> int | None:
    """Return the position with the least squared error of a distribution in this range.

    Of equal errors the first, and coarsest, wins, as in the tools this is known from. None where
    the range has no width.
    """
    found = grid.candidates(low, high)
    if found is None:
        return None
    scales, zero_point = found
    errors = density().error(Levels.of(scales, np.float64(zero_point), grid.qmin, grid.qmax))
    return round(-float(np.log2(scales[int(np.argmin(errors))])))


def most_common_position(sketch: Sketch, grid: PositionGrid) -> int | None:
    """Return the position that was best for most batches; of as common ones the finest."""
    votes = sketch.votes.get(grid)
    if votes is None:
        raise DataError(
            "which scale is best for each batch was not observed, and MinMSE counts that in mode "
            "'most-common'; observe again (delete the file of sketches, if there is one)."
        )
    return max(votes, key=lambda position: (votes[position], position), default=None)


def exact_min_mse(row: npt.NDArray[Any], grid: PositionGrid) -> tuple[float, float]:
    """Return the range of a weight's values at the position with the least squared error."""
    low, high = float(row.min()), float(row.max())
    position = grid.best_position(row)
    return (min(low, 0.0), max(high, 0.0)) if position is None else grid.ends(position, low, high)
