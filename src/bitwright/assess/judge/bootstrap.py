"""Paired bootstrap over samples: intervals of a mean, and whether one result is better."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bitwright.errors import DataError

__all__ = [
    "CONFIDENCE",
    "MIN_SAMPLES",
    "Difference",
    "Interval",
    "compare_losses",
    "mean_interval",
    "share_interval",
    "too_few",
]

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


@dataclass(frozen=True, slots=True)
class Difference:
    """How the losses of two results differ on the same samples."""

    before: float
    after: float
    samples: int
    interval: Interval | None
    """Of after - before; None with too few samples."""
    better: float | None
    """The share of resamples in which the mean loss falls; None with too few samples."""

    @property
    def gain(self) -> float:
        """The share of the loss that is gone; negative where it grew."""
        return 1 - self.after / self.before if self.before > 0 else -float(self.after > 0)

    @property
    def is_sure(self) -> bool:
        """Whether the second result is better in 90 % of the resamples."""
        return self.better is not None and self.better >= CONFIDENCE

    @property
    def note(self) -> str | None:
        """What to know about the number of samples, where they are few."""
        return too_few(self.samples)


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


def compare_losses(before: npt.ArrayLike, after: npt.ArrayLike) -> Difference:
    """Compare two results by their losses on the same samples, in the same order."""
    one, other = (np.asarray(values, np.float64) for values in (before, after))
    if one.shape != other.shape or one.ndim != 1:
        raise DataError(
            f"two results are compared on the same samples, and one has {one.size} losses, the "
            f"other {other.size}; judge both on the same."
        )
    change = other - one
    means = (float(one.mean()), float(other.mean())) if one.size else (0.0, 0.0)
    if change.size < MIN_SAMPLES:
        return Difference(*means, change.size, None, None)
    resampled = _resampled_means(change)
    better = float(np.mean(resampled < 0))
    return Difference(*means, change.size, _interval(resampled), better)


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
