"""When a candidate is better: tests of losses on the same samples, pair by pair.

Against another candidate, by a bootstrap of what the judge sees in the outputs; against a limit, by
a sequential test of a user's metric, which ends as soon as it may.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bitwright.assess.judge import Difference, compare_losses
from bitwright.assess.judge.sequential import Drop, Verdict

__all__ = ["MIN_GAIN", "Score", "Scored", "describe_gain", "is_surely_better", "surely_better"]

MIN_GAIN = 0.1
"""The share of the loss that must go where samples are too few for a bootstrap."""


class Scored(Protocol):
    """A candidate with a loss for each sample that it was not made from."""

    @property
    def losses(self) -> npt.NDArray[np.float64]:
        """From 0, as float, to 1, nothing in common."""


def is_surely_better(before: Scored, after: Scored) -> bool:
    """Whether one candidate has less loss than another on the same samples, and not by chance."""
    return surely_better(compare_losses(before.losses, after.losses))


def surely_better(found: Difference) -> bool:
    """Whether a change is worth keeping: by chance alone it would not have helped so many samples.

    However large, a mean gain that few samples make is lost again on others.
    """
    if found.better is None:
        return found.samples > 1 and found.gain >= MIN_GAIN
    return found.is_sure


def describe_gain(name: str, found: Difference, *, kept: bool) -> str:
    """Return what a change did to the loss, as a sentence."""
    before, after = (f"{100 * loss:.3g} %" for loss in (found.before, found.after))
    sure = "" if found.better is None else f" (better in {100 * found.better:.0f} % of resamples)"
    return f"{name}: output error {before} -> {after}{sure}, {'kept' if kept else 'not kept'}"


@dataclass(frozen=True, slots=True)
class Score:
    """How far a metric falls with a candidate, and whether that is within the limit."""

    drop: Drop
    verdict: Verdict
    """"open": not all samples were looked at, as time ran out."""

    @property
    def passes(self) -> bool:
        """Whether it is within the limit."""
        return self.verdict == "pass"

    def decided(self, limit: float) -> Score:
        """Return the score with a verdict: of what was looked at, the mean decides."""
        if self.verdict != "open":
            return self
        return Score(self.drop, "pass" if self.drop.mean <= limit else "fail")
