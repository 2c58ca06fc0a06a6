"""The effort levels, and what they cannot be asked for."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Literal, get_args

from bitwright.data import Sample
from bitwright.errors import DataError, RecipeError, did_you_mean
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.fine_tuning.segment import require_torch
from bitwright.recipe import Recipe

__all__ = [
    "EFFORTS",
    "MIN_JUDGED",
    "MIN_SAMPLES",
    "Effort",
    "check_effort",
    "has_few",
    "refuse_few",
    "standard_effort",
]

Effort = Literal["low", "standard", "medium", "high"]
EFFORTS: tuple[str, ...] = get_args(Effort)

MIN_SAMPLES = 8
"""Samples that there must be: two halves that judge each other, and one to measure with."""
MIN_JUDGED = 18
"""From so many samples on, half of all but the holdout are eight, which a bootstrap needs."""


def check_effort(effort: str, recipe: Recipe, calibration: Calibration) -> None:
    """Refuse what no effort can do anything about, before any work is done."""
    if effort not in EFFORTS:
        raise RecipeError(f"unknown effort {effort!r}.{did_you_mean(effort, EFFORTS)}")
    if recipe.mode != "static":
        reason = {
            "dynamic": "each run of it measures its own ranges",
            "cast": "it has no ranges",
            "weight-only": "it has no ranges of activations, and `rounding`, `awq` and `refine` "
            "say how hard its weights are worked on",
        }[recipe.mode]
        raise RecipeError(
            f"effort is for recipes that calibrate activations, and {recipe.name!r} is "
            f"{recipe.mode}: {reason}; leave effort out."
        )
    if effort == "low":
        return
    if recipe.fine_tune is not None and effort != "high":
        raise RecipeError(
            f"recipe {recipe.name!r} fine-tunes, which is a step of effort 'high'; ask for that, "
            "or leave out one of the two."
        )
    if calibration.data is None:
        raise DataError(
            f"effort {effort!r} chooses by the error on samples and needs data; give data (arrays, "
            "files, a folder of images, a data reader)."
        )
    if calibration.sketches is not None:
        raise RecipeError(
            f"sketches are of one model, and effort {effort!r} tries several; leave them out."
        )
    if effort == "high":
        require_torch()


def standard_effort(recipe: Recipe, calibration: Calibration) -> Effort:
    """Return what effort 'standard' comes to: 'low' where there is nothing to compare by."""
    comparable = (
        recipe.mode == "static"
        and recipe.fine_tune is None
        and recipe.place.portable
        and calibration.data is not None
        and calibration.sketches is None
        and not calibration.is_random
    )
    return "standard" if comparable else "low"


def has_few(samples: Iterable[Sample]) -> bool:
    """Whether half of the samples are too few for a bootstrap."""
    return sum(1 for _ in islice(samples, MIN_JUDGED)) < MIN_JUDGED


def refuse_few(samples: Iterable[Sample]) -> None:
    """Refuse to choose by samples that are too few to be parted."""
    count = sum(1 for _ in islice(samples, MIN_SAMPLES))
    if count < MIN_SAMPLES:
        raise DataError(
            f"effort needs {MIN_SAMPLES} samples, to calibrate with some, choose by others and "
            f"measure with the rest, and there are {count}; give more, or leave effort out."
        )
