"""Signal and noise: the energy of arrays and of their differences, in decibels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["decibels", "signal_and_noise"]

Array = npt.NDArray[Any]


def decibels(signal: float, noise: float) -> float:
    """Return the ratio of two energies in dB; infinite without noise.

    >>> round(decibels(100.0, 1.0), 6), decibels(1.0, 0.0), decibels(0.0, 1.0)
    (20.0, inf, -inf)
    """
    if noise == 0:
        return math.inf
    if signal == 0 or noise == math.inf:
        return -math.inf
    return 10 * math.log10(signal / noise)


def signal_and_noise(expected: Sequence[Array], actual: Sequence[Array]) -> tuple[float, float]:
    """Return the energy of what was expected, and of the difference, over pairs of arrays.

    >>> signal_and_noise([np.array([3.0, 4.0])], [np.array([3.0, 3.0])])
    (25.0, 1.0)
    """
    signal = noise = 0.0
    for one, other in zip(expected, actual, strict=True):
        wanted = np.asarray(one, np.float64)
        difference = wanted - np.asarray(other, np.float64)
        signal += float(np.vdot(wanted, wanted))
        noise += float(np.vdot(difference, difference))
    return signal, noise
