"""How often each weight of a sliding window meets a value, and not the padding around it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["transposed_window_coverage", "window_coverage"]

F64 = npt.NDArray[np.float64]


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

    >>> transposed_window_coverage(3, 2, stride=2, outputs=6)
    array([0.5, 0.5])
    """
    if length is None or outputs is None or outputs < 1:
        return np.full(kernel, 1 / stride)
    starts = np.arange(length) * stride - begin
    written = starts[None, :] + dilation * np.arange(kernel)[:, None]
    fractions: F64 = ((written >= 0) & (written < outputs)).sum(axis=1) / outputs
    return fractions
