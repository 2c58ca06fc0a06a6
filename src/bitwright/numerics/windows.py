"""Sliding windows: what each reads, and how often its weights meet a value and not padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bitwright.support.array_types import F64, Array


def window_coverage(
    length: int | None,
    kernel: int,
    *,
    stride: int = 1,
    dilation: int = 1,
    pads: tuple[int, int] = (0, 0),
) -> F64:
    """Return in which part of the windows each place of a kernel meets a value, along one axis.

    None for a length that is not known counts no padding.

    >>> window_coverage(4, 3, pads=(1, 1))
    array([0.75, 1.  , 0.75])
    """
    if length is None:
        return np.ones(kernel)
    windows = (length + sum(pads) - dilation * (kernel - 1) - 1) // stride + 1
    if windows < 1:
        return np.ones(kernel)
    starts = np.arange(windows) * stride - pads[0]
    read = starts[None, :] + dilation * np.arange(kernel)[:, None]
    fractions: F64 = ((read >= 0) & (read < length)).mean(axis=1)
    return fractions


def transposed_window_coverage(
    length: int | None,
    kernel: int,
    *,
    stride: int = 1,
    dilation: int = 1,
    begin: int = 0,
    outputs: int | None = None,
) -> F64:
    """Return the same for a transposed convolution: in which part of the outputs a place adds one.

    Where a size is not known, it is what it is far from the borders. `begin` is how many outputs
    are cut off before the first, `outputs` how many are left.
    """
    if length is None or outputs is None or outputs < 1:
        return np.full(kernel, 1 / stride)
    starts = np.arange(length) * stride - begin
    written = starts[None, :] + dilation * np.arange(kernel)[:, None]
    fractions: F64 = ((written >= 0) & (written < outputs)).sum(axis=1) / outputs
    return fractions


def unfold_windows(
    array: Array,
    kernel: Sequence[int],
    *,
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[tuple[int, int]],
    most: int,
) -> Array:
    """Return what the windows of a convolution read of (batch, channels, ...): one row a window.

    A row has the kernel of each channel, channel after channel, as the weights of an output do. Of
    more than `most` windows, as many are taken as lie evenly apart.
    """
    padded = np.pad(array, [(0, 0), (0, 0), *pads])
    spans = [dilation * (size - 1) + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    axes = tuple(range(2, array.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(padded, spans, axes)
    every = tuple(slice(None, None, step) for step in strides)
    inside = tuple(slice(None, None, step) for step in dilations)
    windows = windows[(slice(None), slice(None), *every, *inside)]
    places = np.moveaxis(windows, 1, array.ndim - 1)  # batch, places..., channels, kernel...
    count = int(np.prod(places.shape[: array.ndim - 1]))
    chosen = np.arange(count)
    if count > most:
        chosen = np.unique(np.linspace(0, count - 1, most).round().astype(np.int64))
    rows = places[np.unravel_index(chosen, places.shape[: array.ndim - 1])]
    return np.ascontiguousarray(rows).reshape(len(chosen), -1)
