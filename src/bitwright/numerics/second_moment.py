"""The second moment of a layer's inputs, which says how much each rounding error costs.

For a product x W the squared error of the output, summed over inputs x, is tr(D' H D) with
D the change of W and H the sum of x x'. That is the Hessian of the GPTQ paper up to a factor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bitwright.errors import DataError
from bitwright.numerics.arrays import NUMPY, Arrays
from bitwright.numerics.wide_matrices import add_products_, mirror_
from bitwright.support.array_types import F64

MAX_COPIED_CHANNELS = 4096
"""Channels above which the products on a CPU are summed and factored in place."""

BATCH_ROWS, BATCH_BYTES = 8192, 30_000_000
"""Vectors that are multiplied at a time, of which a matrix product needs many to be fast; their
memory is used again up to 32 MiB, beyond that the system clears new pages each time."""


class SecondMoment:
    """Sum of x x', of |x|, and the count of vectors x; two of them merge by `|`.

    Layers that read the same tensor share one. Products are taken in float32, sums in float64.
    Without `magnitudes`, which few methods ask for, |x| is not summed.
    """

    __slots__ = ("_magnitudes", "_products", "_xp", "channels", "count")

    def __init__(self, channels: int, *, magnitudes: bool = True, xp: Arrays = NUMPY) -> None:
        self.channels = channels
        self.count = 0
        self._xp = xp
        self._products = xp.zeros(channels, channels, dtype="float64")
        self._magnitudes = xp.zeros(channels, dtype="float64") if magnitudes else None

    def update(self, inputs: Any) -> None:
        """Add a batch: an array whose last axis is the channels."""
        xp = self._xp
        rows = _as_rows(inputs, self.channels, xp)
        if self._is_wide:
            finite = add_products_(self._products, rows)
        else:
            # The product of a matrix with its own transpose: numpy and cuBLAS do half of the work.
            products = rows.T @ rows
            self._products += products
            # No product is larger than the squares of its factors.
            finite = bool(xp.isfinite(products.diagonal().sum()))
        if not finite:
            raise DataError("a layer's input holds NaN or infinity, or its squares overflow.")
        if self._magnitudes is not None:
            self._magnitudes += xp.abs(rows).sum(axis=0)
        self.count += rows.shape[0]

    def __or__(self, other: SecondMoment) -> SecondMoment:
        if self.channels != other.channels:
            raise DataError(
                f"moments of {self.channels} and of {other.channels} channels do not merge."
            )
        merged = SecondMoment(self.channels, xp=self._xp)
        merged.count = self.count + other.count
        merged._products = self._products + self._own(other._products, other._xp)
        merged._magnitudes = None
        if self._magnitudes is not None and other._magnitudes is not None:
            merged._magnitudes = self._magnitudes + self._own(other._magnitudes, other._xp)
        return merged

    def _own(self, sums: Any, xp: Arrays) -> Any:
        """Return sums of another library as an array of this one's."""
        return sums if xp is self._xp else self._xp.array(xp.numpy(sums), "float64")

    @property
    def _is_wide(self) -> bool:
        """Whether no copy of the products may be made; their lower half is summed then."""
        return self._xp is NUMPY and self.channels > MAX_COPIED_CHANNELS

    def matrix(self) -> F64:
        """Return the mean of x x'."""
        mean = np.asarray(self._xp.numpy(self._products / self._checked()), np.float64)
        if self._is_wide:
            mirror_(mean)
        return mean

    def take_matrix(self) -> Any:
        """Return the mean of x x' as an array of `xp`, in the memory of the sums, which is gone."""
        mean = self._products
        mean /= self._checked()
        if self._is_wide:
            mirror_(mean)
        self.count, self._products = 0, self._xp.zeros(0, 0, dtype="float64")
        return mean

    def mean_magnitudes(self) -> F64:
        """Return the mean of |x| for each channel."""
        assert self._magnitudes is not None, "the moment was made without them"
        return np.asarray(self._xp.numpy(self._magnitudes / self._checked()), np.float64)

    def _checked(self) -> int:
        if not self.count:
            raise DataError(
                "no calibration data reached the layer; give at least one sample that does."
            )
        return self.count


class CrossMoment:
    """The mean of x (f - x)', where f is what each vector x should have been."""

    __slots__ = ("_count", "_products", "_xp", "channels")

    def __init__(self, channels: int, *, xp: Arrays = NUMPY) -> None:
        self.channels = channels
        self._count = 0
        self._xp = xp
        self._products = xp.zeros(channels, channels, dtype="float64")

    def update(self, inputs: Any, wanted: Any) -> None:
        """Add a batch of inputs, and what they should have been."""
        rows = _as_rows(inputs, self.channels, self._xp)
        self._products += rows.T @ (_as_rows(wanted, self.channels, self._xp) - rows)
        self._count += rows.shape[0]

    def take_matrix(self) -> Any:
        """Return the mean, an array of `xp`; nothing is left here."""
        products, self._products = self._products, None
        products /= max(self._count, 1)
        return products


class Batches:
    """Collects small batches of vectors into large ones, which moments are faster with."""

    __slots__ = ("_channels", "_parts", "_rows", "_update", "_xp")

    def __init__(self, update: Callable[..., None], channels: int, xp: Arrays = NUMPY) -> None:
        self._update, self._channels, self._xp = update, channels, xp
        self._parts: list[tuple[Any, ...]] = []
        self._rows = 0

    def add(self, *inputs: Any) -> None:
        """Keep a batch of each of the arguments of the update; give them on when many."""
        self._parts.append(tuple(_as_rows(x, self._channels, self._xp) for x in inputs))
        self._rows += self._parts[-1][0].shape[0]
        if self._rows >= min(BATCH_ROWS, BATCH_BYTES // (4 * self._channels)):
            self.end()

    def end(self) -> None:
        """Give on what is kept."""
        if self._parts:
            parts = zip(*self._parts, strict=True)
            self._parts, self._rows = [], 0
            self._update(*(p[0] if len(p) == 1 else self._xp.concatenate(p) for p in parts))


def _as_rows(inputs: Any, channels: int, xp: Arrays) -> Any:
    rows = xp.array(inputs)
    if rows.ndim < 1 or rows.shape[-1] != channels:
        raise DataError(
            f"an input of shape {tuple(rows.shape)} does not end in the layer's {channels} "
            "channels."
        )
    return rows.reshape(-1, channels)


def output_error(change: Any, moment: Any, *, xp: Arrays = NUMPY) -> Any:
    """Return the mean squared error of each output when a weight [K, N] changes by `change`."""
    moved = xp.array(change)
    return ((xp.array(moment) @ moved) * moved).sum(axis=0)
