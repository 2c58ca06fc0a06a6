"""How often each value of a tensor was seen: counted at once, or kept until there are many."""

from __future__ import annotations

import mmap

import numpy as np

from bitwright.observe import kernels
from bitwright.observe.kernels import Extremes
from bitwright.support.array_types import F32, I64, Array

MOST_WAITING = 1 << 13
"""Values of a tensor that are kept as they are: 32 KiB, where their counts take up to 1 MiB, spread
over bins. A graph of thousands of nodes has thousands of small tensors."""


class ValueCounts:
    """The count of each of the 65,536 bfloat16 values."""

    __slots__ = ("_bins", "_counts", "_lanes", "_size", "_waiting")

    def __init__(self, bins: Array | None = None, counts: Array | None = None) -> None:
        """Start with counts of bins, each of which is named once, in ascending order."""
        self._bins = np.array([] if bins is None else bins, np.uint16)
        self._counts = np.array([] if counts is None else counts, np.int64)
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

    def merge(self, other: ValueCounts) -> None:
        """Add the counts of another, which is packed by it."""
        other.pack()
        for values in other._waiting:
            self.add(values)
        bins = np.concatenate([self._bins, other._bins])
        order = np.argsort(bins, kind="stable")
        bins, counts = bins[order], np.concatenate([self._counts, other._counts])[order]
        first = np.flatnonzero(np.diff(bins, prepend=-1))  # of those that both have
        self._bins = bins[first]
        self._counts = np.add.reduceat(counts, first) if first.size else counts

    def pack(self) -> None:
        """Give back the memory of bins that hold nothing: a tensor uses a few thousand of them."""
        if self._lanes is not None:
            total = self.total()
            self._bins = np.flatnonzero(total != 0).astype(np.uint16)
            self._counts, self._lanes = total[self._bins], None

    def total(self) -> I64:
        """Return the count of each bfloat16 bit pattern."""
        first, second = self._counted() if self._lanes is None else self._lanes
        total: I64 = first + second
        total[self._bins] += self._counts
        return total

    def _dense(self) -> I64:
        if self._lanes is None:
            self._lanes, self._waiting, self._size = self._counted(), [], 0
        return self._lanes

    def _counted(self) -> I64:
        """Return the counts of what waits."""
        lanes = _zeros()
        for values in self._waiting:
            kernels.accumulate(values, lanes)
        return lanes


def _zeros() -> I64:
    """Return lanes without counts, whose pages get memory when a value falls into one.

    Those of numpy have it all at once where memory is reused, or large pages are taken.
    """
    private = (
        {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    )
    memory = mmap.mmap(-1, kernels.LANES * kernels.BINS * np.dtype(np.int64).itemsize, **private)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.int64).reshape(kernels.LANES, kernels.BINS)
