"""Effort for dynamic recipes: smoothing by data, kept where it brings outputs closer to float.

Each run measures its own ranges, so that samples can only say which channels are outliers beside
the others. Their factors are those of three folds, judged on the fourth; what is written has the
factors of all.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from bitwright.assess.judge.noise import Noise
from bitwright.data import split_samples
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.improve.loop import Attempt, Trail, improve
from bitwright.jobs.opening import Prepared
from bitwright.jobs.output import Planned, open_quantized
from bitwright.jobs.static import plan_static
from bitwright.recipe import Recipe, SmoothQuant

MAX_JUDGED = 8
"""Number of samples of the last fold that a recipe is judged on."""
ALPHA = 0.5
"""Strength of the smoothing: "auto" goes by the step of one scale for a whole activation."""
MIN_GAIN = 0.5
"""Decibels that smoothing has to gain: where nothing stands out it moves a tenth up or down, and a
factor that no norm takes costs a Mul. The 3-layer MiniLM gains 1.6."""


@dataclass(frozen=True, slots=True)
class DynamicCandidate:
    """A recipe, and the mean noise over signal of its model's outputs in dB: lower is better."""

    recipe: Recipe
    loss: float


class _Maker:
    """Makes the model of a recipe by three folds, and judges it on the fourth."""

    def __init__(self, prepared: Prepared, kept: Calibration) -> None:
        split = split_samples(kept.data)
        self._prepared = prepared
        self._folds = replace(kept, data=split.but_last, holdout=False)
        last = replace(kept, data=split.folds[-1], holdout=False)
        self._judged = list(islice(last.open(prepared.model), MAX_JUDGED))
        self._noise = Noise(prepared.reference)
        self._expected = [
            self._noise.keep(sample, prepared.reference_session.run(sample))
            for sample in self._judged
        ]

    def make(self, recipe: Recipe) -> DynamicCandidate:
        """Write the model of a recipe, and compare its outputs with float's."""
        decided = plan_static(replace(self._prepared, recipe=recipe), self._folds)
        written = open_quantized(decided.prepared, Planned(decided.plan), checked=False)
        assert written.session is not None  # dynamic models have operators of the runtime only
        losses = [
            self._noise.decibels(expected, written.session.run(sample))
            for expected, sample in zip(self._expected, self._judged, strict=True)
        ]
        return DynamicCandidate(recipe, float(np.mean(losses)))


def smoothings(
    trail: Trail[DynamicCandidate],
) -> Generator[Attempt[Recipe], Trail[DynamicCandidate], None]:
    """Propose to move outliers of channels into the weights."""
    assert trail.best is not None  # the recipe as it is
    smoothed = trail.best.recipe.replace(smooth=SmoothQuant(alpha=ALPHA))
    yield Attempt(smoothed, "SmoothQuant")


def improve_dynamic(prepared: Prepared, kept: Calibration) -> Trail[DynamicCandidate]:
    """Return what was tried on a dynamic recipe, with data that can be read again."""
    make = _Maker(prepared, kept).make
    return improve(prepared.recipe, [smoothings], make, lambda a, b: a.loss - b.loss >= MIN_GAIN)
