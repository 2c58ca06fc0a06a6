"""How often each value of a tensor was seen: counted at once, or kept until there are many."""

from __future__ import annotations

import numpy as np

from bitwright.observe import kernels
from bitwright.observe.kernels import Extremes
from bitwright.support.array_types import F32, I64, Array

MOST_WAITING = 1 << 13
"""Values of a tensor that are kept as they are: 32 KiB, where their counts take up to 1 MiB, spread
over bins. A graph of thousands of nodes has thousands of small tensors."""


class ValueCounts:
    """The count of each of the 65,536 bfloat16 values."""

    __slots__ = ("_lanes", "_size", "_waiting")

    def __init__(self) -> None:
        self._lanes: I64 | None = None
        self._waiting: list[F32] = []
        self._size = 0

    def add(self, values: F32, every: int = 1, *, engine: str | None = None) -> Extremes:
        """Count the values of a flat array, or one in so many for as many; return its extremes."""
        if every == 1 and self._lanes is None and self._size + values.size <= MOST_WAITING:
            self._waiting.append(values.copy())  # the runtime's memory is not kept for it
            self._size += values.size
            return kernels.extremes(values)
        if every == 1:
            return kernels.accumulate(values, self._dense(), engine=engine)
        return kernels.accumulate_every(values, self._dense(), every)

    def add_bins(self, bins: Array, counts: Array) -> None:
        """Add counts of bins, each of which is named once."""
        self._dense()[0, bins] += counts.astype(np.int64)

    def merge(self, other: ValueCounts) -> None:
        """Add the counts of another."""
        if other._lanes is None:
            for values in other._waiting:
                self.add(values)
            return
        total = other.total()
        used = np.flatnonzero(total)  # leaves untouched pages without memory
        self.add_bins(used, total[used])

    def total(self) -> I64:
        """Return the count of each bfloat16 bit pattern."""
        first, second = self._counted() if self._lanes is None else self._lanes
        total: I64 = first + second
        return total

    def _dense(self) -> I64:
        if self._lanes is None:
            self._lanes, self._waiting = self._counted(), []
        return self._lanes

    def _counted(self) -> I64:
        """Return the counts of what waits."""
        # calloc: pages that no value falls into are never given memory.
        lanes = np.zeros((kernels.LANES, kernels.BINS), np.int64)
        for values in self._waiting:
            kernels.accumulate(values, lanes)
        return lanes
