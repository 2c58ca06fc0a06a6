"""Intervals of means by a bootstrap over samples, and a paired sequential test.

The test says whether a metric fell by more than a limit, on as few samples as needed. The scores of
two models on the same samples are compared pair by pair: at 3 % changed answers, a drop of one
point shows on a twelfth of the samples that two unpaired means would need. After an eighth, a
quarter and half of the samples the test may end early; the bound of Pocock (Biometrika 64, 1977),
the same for each look, keeps the chance of a wrong end as low as that of one look at all of them.
Bounds that are wider for early looks (O'Brien and Fleming, Biometrics 35, 1979) would take up to
half as many samples again for models that are far from the limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bitwright.support import counted, plain_fields

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


Verdict = Literal["pass", "fail", "open"]
"""Within the limit, beyond it, or not to be told yet."""

_Z_975 = 1.96
"""One-sided 97.5 % quantile of the normal distribution: both tails leave 95 %."""
_Z_90 = 1.2816
"""One-sided 90 % quantile of the normal distribution."""
BOUND = 2.36
"""Standard errors between the drop and the limit that end the test, at each of four looks."""
_FRACTIONS = (1 / 8, 1 / 4, 1 / 2, 1)
MIN_LOOK = 16
"""Samples of the first look at least: below, a mean is far from normal."""
MIN_PASS = 50
"""Samples of a look that may pass a model: where few samples lose much, fewer may show none."""


@dataclass(frozen=True, slots=True)
class Drop:
    """How far a metric fell on some samples, and how sure that is."""

    samples: int
    mean: float
    error: float
    """The standard error of the mean; NaN: not known."""
    step: float = 0.0
    """The largest change of one sample."""
    at_least: bool = False
    """Whether more may be lost: samples that are likely to change were counted, and no others."""

    @property
    def interval(self) -> Interval | None:
        """Where the drop on all samples of this kind lies, with a confidence of 95 %."""
        if math.isnan(self.error):
            return None
        spread = _Z_975 * self.error
        return Interval(self.mean - spread, self.mean + spread)

    @property
    def drop(self) -> float:
        """The mean, by the name that users of a result know."""
        return self.mean

    def describe(self) -> str:
        """Return the drop in a few words."""
        spread = "" if self.interval is None else f" ({self.interval})"
        least = "at least " if self.at_least else ""
        return f"{least}{self.mean:.3g}{spread} on {counted(self.samples, 'sample')}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return plain_fields(self, "drop", "interval", "samples")

    def verdict(self, limit: float, *, last: bool) -> Verdict:
        """Say whether the drop is within the limit; of the last look the mean decides."""
        if last or self._distance(limit) > BOUND:
            if self.mean > limit:
                return "fail"
            return "pass" if last or self.samples >= MIN_PASS else "open"
        return "open"

    def is_unlikely(self, limit: float, samples: int) -> bool:
        """Whether the drop on all samples, of this number, will hardly be within the limit.

        If the others are like these, their mean lies around that of these, with the error of both:
        that leaves the mean of all a normal distribution around this one (predictive power,
        Spiegelhalter, Freedman and Blackburn, Controlled Clinical Trials 7, 1986).
        """
        spread = self.error * math.sqrt(max(1 - self.samples / samples, 0.0))
        return self.mean - limit > _Z_90 * spread

    def _distance(self, limit: float) -> float:
        """Return how many standard errors lie between the drop and the limit.

        A drop as large as the limit takes so many changed samples at least; where fewer were seen,
        the error that is estimated from them is too small.
        """
        error = self.error
        if self.mean < limit and self.step and math.isfinite(limit):
            error = max(error, math.sqrt(limit * self.step / self.samples))
        return abs(self.mean - limit) / error if error else math.inf

    def is_sure(self, limit: float) -> bool:
        """Whether the limit lies outside the interval."""
        if self.at_least:
            return self.mean > limit
        found = self.interval
        return found is not None and not found.low <= limit <= found.high

    def needed_samples(self, limit: float) -> int | None:
        """Return how many samples would tell on which side of the limit it lies, if any number."""
        distance = abs(self.mean - limit)
        if not distance or math.isnan(self.error):
            return None
        ratio = _Z_975 * self.error / distance
        return math.ceil(self.samples * ratio**2)


def drop_of_pairs(before: npt.ArrayLike, after: npt.ArrayLike) -> Drop:
    """Return by how much the mean of `after` is below that of `before`, from paired scores.

    As if there were one more sample with the largest change: without it, a few equal pairs would
    prove that no sample ever changes.
    """
    one, other = (np.asarray(values, np.float64) for values in (before, after))
    change = one - other
    largest = float(np.abs(change).max()) or float(np.abs(one).max()) or 1.0
    squares = float(np.square(change - change.mean()).sum()) + largest**2
    error = math.sqrt(squares) / change.size
    return Drop(change.size, float(change.mean()), error, largest)


def drop_of_folds(samples: int, whole: float, parts: npt.ArrayLike, score: float) -> Drop:
    """Return the drop of a metric of a whole set, with the error of a jackknife over folds.

    `whole` is the drop on all samples, `parts` the drop without each of the folds in turn. As if
    there were one more fold with the largest change, as for pairs; where none has any, as if one
    sample had lost all of `score`, the metric of the float model.
    """
    left = np.asarray(parts, np.float64)
    squares = (left.size - 1) / left.size * float(np.square(left - left.mean()).sum())
    # The pseudo-values of the jackknife: for a mean, what each fold drops by itself.
    changes = left.size * whole - (left.size - 1) * left
    largest = float(np.abs(changes).max()) / left.size or abs(score) / samples
    return Drop(samples, whole, math.hypot(math.sqrt(squares), largest))


def look_sizes(samples: int) -> tuple[int, ...]:
    """Return after how many samples to look."""
    sizes = (math.ceil(fraction * samples) for fraction in _FRACTIONS)
    return tuple(size for size in sizes if size >= MIN_LOOK or size == samples)
