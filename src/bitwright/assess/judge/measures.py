"""Errors of one piece of an output, per sample and relative to what float has there.

An error of 1 is as much as there is to lose: noise as strong as the signal (SQNR 0 dB), class
scores as far off as if the average answer were given to every sample (KL divergence), embeddings
as far off as they are from their mean (1 - cosine). So errors of different kinds compare.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bitwright.assess.judge.kinds import Kind
from bitwright.assess.sums import decibels

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

_MAX_AXIS = 1 << 14
"""A longer axis holds positions, not channels."""
_MAX_CHANNELS = 16
"""Most channels (coordinates of a box, colours) that are judged one by one."""
_MIN_NUMBERS = 8
"""Fewest numbers from which the magnitude of a channel is estimated."""
_MAX_RUNS = 8
_RUN_RATIO = 10.0
"""Neighbours that differ by this factor in size are different things."""
_SILENT = 1e-20
"""Share of the whole output's power below which a part is silence."""
_LOUD = 1e3
"""How many times the power of the median sample a loud one has, as a division by nearly zero makes
it. Beside it, the noise of the others would be nothing."""
_MIN_SCORE = 1e-3
"""Independent scores below are no detection in any benchmark: COCO's evaluation cuts there."""
_MIN_SHARE = 0.1
"""Probabilities below this share of 1 / classes count as that."""
_MAX_LOGIT_SPREAD = 4.0
"""The standard deviation of logits over classes; those of trained networks have 1 to 4."""
_DENSE, _JUDGED = 1 << 14, 1 << 12
"""With more rows in a sample, as pixels of a segmentation, so many of them tell about all."""
_BLOCK = 1 << 20
"""Scores that are judged at once."""
_MIN_CLASS_SPREAD = 0.1
_MIN_SCORE_SPREAD = 1e-5
_MIN_ANGLE_SPREAD = 0.01


class PartErrors(NamedTuple):
    """The errors of one part: a channel, a run of channels, or the whole piece."""

    span: tuple[int, int] | None
    """First index and the one behind the last along the axis; None: the whole piece."""
    errors: Floats
    """One for each sample, relative to the float part's size; infinite where it is lost."""
    figure: float
    """What the kind is measured in, over all samples: SQNR in dB, KL in nats, or cosine."""
    loud: tuple[int, ...] = ()
    """Samples too strong to be part of the figure; each is measured by itself."""


class Measure(Protocol):
    """Gathers errors sample by sample."""

    def add(self, expected: Array, actual: Array) -> None:
        """Add a pair of arrays of one shape."""

    def add_lost(self) -> None:
        """Add a sample for which the quantized model gives another shape."""

    def finish(self) -> list[PartErrors]:
        """Return the errors of the parts, the worst first."""

    @property
    def agreement(self) -> Floats | None:
        """Per sample, the share of rows with the same best class; None: no classes compete."""


def open_measure(kind: Kind, axis: int | None, *, top1: bool = True) -> Measure:
    """Return the measure of a kind; classes, features or channels lie along the axis."""
    if kind == "sqnr":
        return _SignalMeasure(axis)
    if kind == "embedding":
        return _AngleMeasure(-1 if axis is None else axis)
    return _ScoreMeasure(kind, axis, top1)


# Everything else: noise over signal ---------------------------------------------------------


class _SignalMeasure:
    """Noise over signal of each run of channels, or of each channel where they are few."""

    agreement = None

    def __init__(self, axis: int | None) -> None:
        self._axis = axis
        self._noise: list[Floats] = []
        self._signal: list[Floats] = []
        self._counts: list[int] = []
        """Numbers in a channel, for each sample."""

    def add(self, expected: Array, actual: Array) -> None:
        wanted, given = _finite_pair(_rows(expected, self._axis), _rows(actual, self._axis))
        with np.errstate(over="ignore", invalid="ignore"):
            difference = wanted - given
            self._noise.append(np.einsum("ci,ci->c", difference, difference))
        self._signal.append(np.einsum("ci,ci->c", wanted, wanted))
        self._counts.append(wanted.shape[1])

    def add_lost(self) -> None:
        self._noise.append(np.array([np.inf]))
        self._signal.append(np.zeros(1))
        self._counts.append(0)

    def finish(self) -> list[PartErrors]:
        sizes = {
            values.size for values, count in zip(self._noise, self._counts, strict=True) if count
        }
        if len(sizes) != 1:  # the number of channels varies: then they are one
            counts = np.array(self._counts) * [values.size for values in self._noise]
            noise, signal = (
                np.array([[values.sum()] for values in sums])
                for sums in (self._noise, self._signal)
            )
        else:
            counts = np.array(self._counts)
            shape = (len(counts), *sizes)
            noise, signal = (
                np.array([np.broadcast_to(values, shape[1:]) for values in sums])
                for sums in (self._noise, self._signal)
            )
        total = signal.sum()
        power = signal.sum(axis=0)
        usual = ~_find_loud(signal.mean(axis=1) / np.maximum(counts, 1))
        runs = [(0, power.size)]
        if counts.sum() >= _MIN_NUMBERS and power.size <= _MAX_AXIS:
            few = power.size <= _MAX_CHANNELS
            runs = [(n, n + 1) for n in range(power.size)] if few else find_runs(power)
        found = []
        for start, stop in runs:
            width, part = stop - start, noise[:, start:stop].sum(axis=1)
            strength, numbers = signal[:, start:stop].sum(axis=1), np.maximum(counts * width, 1)
            own = float(power[start:stop].sum() if usual.all() else strength[usual].sum())
            if own <= _SILENT * total and usual.all():
                # Silence has no size of its own; noise there is measured by the rest.
                own = float(total) * width / power.size
            size = own / max(int(counts[usual].sum()) * width, 1)
            means, own_sizes = part / numbers, np.where(usual, size or np.nan, strength / numbers)
            errors = np.where(means == 0, 0.0, np.divide(means, own_sizes))
            span = None if len(runs) == 1 else (start, stop)
            figure = decibels(own, float(part[usual].sum()))
            loud = tuple(np.flatnonzero(~usual).tolist())
            found.append(PartErrors(span, _or_lost(errors), figure, loud))
        return sorted(found, key=lambda part: part.figure)


def _find_loud(strength: Floats) -> npt.NDArray[np.bool_]:
    """Return which samples, of three at least, are far stronger than the median one."""
    finite = strength[np.isfinite(strength)]
    usual = float(np.median(finite)) if len(finite) >= 3 else 0.0
    loud = np.isfinite(strength) & (strength > _LOUD * usual)
    return loud if usual > 0 else np.zeros_like(loud)


def find_runs(power: Floats) -> list[tuple[int, int]]:
    """Return the runs of indices along an axis that are of about one size, by their energies.

    A new run begins where the next index differs tenfold in size from the run so far. Where that
    gives many runs, channels just vary, and all are one.
    """
    sizes = np.sqrt(np.maximum(power, 0.0))
    floor = float(sizes.max(initial=0.0)) * math.sqrt(_SILENT)
    starts, gathered, count = [0], 0.0, 0
    for index, size in enumerate(np.maximum(sizes, floor or 1.0)):
        mean = math.exp(gathered / count) if count else float(size)
        if not 1 / _RUN_RATIO < size / mean < _RUN_RATIO:
            starts.append(index)
            gathered, count = 0.0, 0
        gathered += math.log(size)
        count += 1
    if len(starts) > _MAX_RUNS:
        starts = [0]
    return list(zip(starts, [*starts[1:], sizes.size], strict=True))


# Class scores: KL divergence -----------------------------------------------------------------


class _ScoreMeasure:
    """KL divergence of class scores, relative to what they tell samples apart by."""

    def __init__(self, kind: Kind, axis: int | None, top1: bool) -> None:
        self._kind, self._axis, self._top1 = kind, axis, top1
        self._kl: list[float] = []
        self._agreeing: list[float] = []
        self._rows = 0
        self._entropy = 0.0
        self._sum: Floats = np.zeros(1)
        self._classes = 1

    def add(self, expected: Array, actual: Array) -> None:
        wanted, given = (_answers(values, self._axis) for values in (expected, actual))
        if self._top1 and wanted.size and wanted.shape[1] > 1:
            self._agreeing.append(float(np.mean(wanted.argmax(axis=1) == given.argmax(axis=1))))
        if len(wanted) > _DENSE:
            some = np.linspace(0, len(wanted) - 1, _JUDGED).astype(np.intp)
            wanted, given = wanted[some], given[some]
        if self._kind == "sigmoid":
            wanted, given = wanted.reshape(-1, 1), given.reshape(-1, 1)
        heat = _heat(wanted) if self._kind == "logits" else 1.0
        self._classes = wanted.shape[1]
        if self._sum.size != self._classes:
            self._sum = np.zeros(self._classes)
        kl = 0.0
        # A language model's answers are long: some of them at a time stay in the caches.
        step = max(1, _BLOCK // max(1, self._classes))
        for start in range(0, len(wanted), step):
            block = slice(start, start + step)
            kl += self._add_block(wanted[block], given[block], heat)
        self._kl.append(kl / len(wanted) if wanted.size else 0.0)
        self._rows += len(wanted)

    def _add_block(self, wanted: Array, given: Array, heat: float) -> float:
        """Add some answers, and return the sum of their divergences."""
        quick = _weigh_logits(wanted, given, heat) if self._kind == "logits" else None
        if quick is not None:
            self._entropy += quick.entropy
            self._sum += quick.shares
            return quick.kl
        wanted, given = (values.astype(np.float64) for values in (wanted, given))
        if self._kind == "sigmoid":
            p, q = (np.clip(values, _MIN_SCORE, 1 - _MIN_SCORE) for values in (wanted, given))
            kl, entropy = binary_kl(p, q), -_plogp(p) - _plogp(1 - p)
        else:
            (p, log_p), (_, log_q) = (self._shares(values / heat) for values in (wanted, given))
            with np.errstate(invalid="ignore"):
                kl, entropy = _expect(p, log_p - log_q), -_expect(p, log_p)
            kl = np.maximum(kl, 0.0)
        self._entropy += float(entropy.sum())
        self._sum += p.sum(axis=0)
        return float(kl.sum())

    def add_lost(self) -> None:
        self._kl.append(np.inf)
        if self._top1:
            self._agreeing.append(0.0)

    def _shares(self, values: Floats) -> tuple[Floats, Floats]:
        """Return probabilities and their logarithms, rows by classes."""
        if self._kind == "logits":
            return softmax(values)
        shares = np.maximum(values, _MIN_SHARE / values.shape[1])
        shares /= shares.sum(axis=1, keepdims=True)
        return shares, np.log(shares)

    @property
    def agreement(self) -> Floats | None:
        return np.array(self._agreeing) if self._agreeing else None

    def finish(self) -> list[PartErrors]:
        errors = np.array(self._kl)
        mean = self._sum / max(self._rows, 1)
        if self._kind == "sigmoid":
            of_mean, least = float((-_plogp(mean) - _plogp(1 - mean)).sum()), _MIN_SCORE_SPREAD
        else:
            most = math.log(max(self._classes, 2))
            of_mean = float(-_plogp(mean[None]).sum())
            # One answer has no average to stand out from: then the most that can be told counts.
            least = most if self._rows < 2 else _MIN_CLASS_SPREAD * most
        spread = max(of_mean - self._entropy / max(self._rows, 1), least)
        figure = float(errors.mean()) if errors.size else 0.0
        return [PartErrors(None, _or_lost(errors / spread), figure)]


class _Weighed(NamedTuple):
    """Sums over rows of logits."""

    kl: float
    entropy: float
    shares: Floats


def _weigh_logits(wanted: Array, given: Array, heat: float) -> _Weighed | None:
    """Return what rows of logits sum up to, or None where some are infinite or no numbers.

    A language model gives hundreds of millions of logits. Probabilities that are not divided by
    their sums take half as many passes over them: of weights w = exp(x) with the sum Z, KL is
    sum(w * (x - y)) / Z - log(Z) + log(Z of y).
    """
    with np.errstate(invalid="ignore", over="ignore"):
        logits, weights, total = _unnormalized(wanted, heat)
        others, _, other_total = _unnormalized(given, heat)
        inner = np.einsum("rc,rc->r", weights, logits)
        logits -= others
        apart = np.einsum("rc,rc->r", weights, logits)
    kl = apart / total + np.log(other_total / total)
    entropy = np.log(total) - inner / total
    if not (np.isfinite(kl).all() and np.isfinite(entropy).all()):
        return None
    return _Weighed(float(np.maximum(kl, 0.0).sum()), float(entropy.sum()), (1 / total) @ weights)


def _unnormalized(logits: Array, heat: float) -> tuple[Floats, Floats, Floats]:
    """Return logits below their largest, their exponentials, and the sums of these."""
    shifted = np.divide(logits, heat, dtype=np.float64)
    shifted -= shifted.max(axis=1, keepdims=True, initial=-np.inf)
    weights = np.exp(shifted)
    return shifted, weights, weights.sum(axis=1)


def _heat(logits: Array) -> float:
    """Return what logits are divided by: 1, unless they are so large that one class has it all.

    Then KL would only see errors that are larger than the gap to the second class.
    """
    if not logits.size:
        return 1.0
    spread = 0.0
    for row in logits:
        values = row.astype(np.float64)
        if not math.isfinite(values.sum()):
            values[~np.isfinite(values)] = 0.0
        values -= values.mean()
        # Not by BLAS: its threads take longer to wake up than a row takes.
        spread += math.sqrt(np.einsum("c,c->", values, values) / values.size)
    return max(1.0, spread / len(logits) / _MAX_LOGIT_SPREAD)


def softmax(logits: Floats) -> tuple[Floats, Floats]:
    """Return the probabilities that rows of logits stand for, and their logarithms."""
    top = logits.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        shifted = logits - np.where(np.isfinite(top), top, 0.0)
        shares = np.exp(shifted)
        total = shares.sum(axis=1, keepdims=True)
        shares /= total
        shifted -= np.log(total)
    return shares, shifted


def _expect(shares: Floats, values: Floats) -> Floats:
    """Return the means of values over classes; what has no probability does not count."""
    terms = np.where(shares > 0, shares * values, 0.0)
    return terms.sum(axis=1)  # type: ignore[no-any-return]


def binary_kl(p: Floats, q: Floats) -> Floats:
    """Return KL(p | q) in nats of independent scores strictly between 0 and 1."""
    terms = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    return np.maximum(terms, 0.0)


def _plogp(values: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(values > 0, values * np.log(values), 0.0)
    return terms.sum(axis=1) if terms.ndim > 1 else terms


# Embeddings: cosine --------------------------------------------------------------------------


class _AngleMeasure:
    """1 - cosine of vectors, relative to what it is between them and their mean."""

    agreement = None

    def __init__(self, axis: int) -> None:
        self._axis = axis
        self._angles: list[float] = []
        self._directions: Floats = np.zeros(1)
        self._rows = 0

    def add(self, expected: Array, actual: Array) -> None:
        pair = _finite_pair(_rows(expected, self._axis), _rows(actual, self._axis))
        wanted, given = (_unit(values.T) for values in pair)
        both_zero = ~wanted.any(axis=1) & ~given.any(axis=1)
        distance = 1 - np.einsum("rf,rf->r", wanted, given)
        self._angles.append(
            float(np.where(both_zero, 0.0, distance).mean()) if distance.size else 0.0
        )
        self._rows += len(wanted)
        if self._directions.shape != wanted.shape[1:]:
            self._directions = np.zeros(wanted.shape[1:])
        self._directions += wanted.sum(axis=0)

    def add_lost(self) -> None:
        self._angles.append(np.inf)

    def finish(self) -> list[PartErrors]:
        # The mean of 1 - cosine between unit vectors and the direction of their mean.
        spread = 1 - float(np.linalg.norm(self._directions)) / max(self._rows, 1)
        size = max(spread, _MIN_ANGLE_SPREAD) if self._rows > 1 else 1.0
        angles = np.maximum(np.array(self._angles), 0.0)
        return [PartErrors(None, _or_lost(angles / size), 1 - float(angles.mean()))]


# Arrays --------------------------------------------------------------------------------------


def _rows(values: Array, axis: int | None) -> Floats:
    """Return what lies along the axis as rows, and everything else as columns."""
    array = np.asarray(values, np.float64)
    if axis is None or array.ndim == 0:
        return array.reshape(1, -1)
    return np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)


def _answers(values: Array, axis: int | None) -> Array:
    """Return the scores of each answer as a row, in the type that they have."""
    values = np.asarray(values)
    if axis is None or values.ndim == 0:
        return values.reshape(-1, 1)
    return np.moveaxis(values, axis, -1).reshape(-1, values.shape[axis])


def _finite_pair(expected: Floats, actual: Floats) -> tuple[Floats, Floats]:
    """Return both without what is not finite in float; where only `actual` is not, it is lost."""
    if np.isfinite(expected).all():
        return expected, actual
    same = (expected == actual) | (np.isnan(expected) & np.isnan(actual))
    finite = np.isfinite(expected)
    actual = np.where(finite, actual, np.where(same, 0.0, np.inf))
    return np.where(finite, expected, 0.0), actual


def _unit(values: Floats) -> Floats:
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return values / np.where(lengths > 0, lengths, 1.0)


def _or_lost(errors: Floats) -> Floats:
    return np.where(np.isnan(errors), np.inf, errors)
