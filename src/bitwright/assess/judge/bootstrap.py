"""Bootstrap over samples: intervals of a mean, and of the share of one that is gone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

CONFIDENCE = 0.9
MIN_SAMPLES = 8
"""Fewest samples from which an interval is estimated."""
_RESAMPLES = 2000
_SEED = 0


@dataclass(frozen=True, slots=True)
class Interval:
    """Where the mean of a figure lies with a confidence of 90 %."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:.3g} to {self.high:.3g}"

    def to_dict(self) -> list[float]:
        """Return both ends, as plain data has them."""
        return [self.low, self.high]


def too_few(samples: int) -> str | None:
    """Return the sentence that says that there are too few samples, or None."""
    if samples >= MIN_SAMPLES:
        return None
    plural = "" if samples == 1 else "s"
    return (
        f"judged on {samples} sample{plural}: too few for an interval, which needs {MIN_SAMPLES} "
        "holdout samples"
    )


def mean_interval(values: npt.ArrayLike) -> Interval | None:
    """Return the interval of the mean over samples, or None where they are too few."""
    given = np.asarray(values, np.float64)
    if given.size < MIN_SAMPLES:
        return None
    return _interval(_resampled_means(given))


def share_interval(before: npt.ArrayLike, after: npt.ArrayLike) -> Interval | None:
    """Return the interval of the share of a mean that is gone; None where samples are too few.

    Both are of the same samples, in the same order, and are drawn together.
    """
    one, other = (np.asarray(values, np.float64) for values in (before, after))
    if one.size < MIN_SAMPLES or one.shape != other.shape or not one.any():
        return None
    draws = np.random.default_rng(_SEED).integers(one.size, size=(_RESAMPLES, one.size))
    whole = one[draws].mean(axis=1)
    gone = 1 - other[draws].mean(axis=1)[whole > 0] / whole[whole > 0]
    return _interval(gone)


def _resampled_means(values: Floats) -> Floats:
    """Return the means of random draws with replacement, the same ones at each call.

    Values are sorted first, so that their order does not matter.
    """
    draws = np.random.default_rng(_SEED).integers(values.size, size=(_RESAMPLES, values.size))
    mean = values.mean()
    # Draws from n values vary by (n - 1) / n of what n new samples would.
    spread = np.sqrt(values.size / (values.size - 1))
    means: Floats = mean + (np.sort(values)[draws].mean(axis=1) - mean) * spread
    return means


def _interval(resampled: Floats) -> Interval:
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(resampled, [tail, 100 - tail])
    return Interval(float(low), float(high))
