"""Fine-tuning as a step of a job: between its plan and what it writes."""

from __future__ import annotations

from bitwright.errors import DataError
from bitwright.jobs.calibration import Calibration, Evaluation
from bitwright.jobs.compute import Compute
from bitwright.jobs.fine_tuning.sequence import fine_tune
from bitwright.jobs.opening import Prepared
from bitwright.jobs.output import Planned
from bitwright.learning.reports import notes_of
from bitwright.plan import QuantPlan

__all__ = ["fine_tune_weights"]


def fine_tune_weights(
    prepared: Prepared, plan: QuantPlan, calibration: Calibration, compute: Compute
) -> Planned:
    """Learn the weights of a model for its plan.

    The samples that the result is measured on are not learned from. Data is read twice.
    """
    method = plan.recipe.fine_tune
    assert method is not None
    if calibration.data is None:
        raise DataError(
            f"recipe {plan.recipe.name!r} fine-tunes weights and needs calibration data; give "
            "data, or take a recipe without fine_tune."
        )
    split = calibration.split(prepared.model)
    tuned = fine_tune(
        prepared.model,
        plan,
        method,
        split,
        device=compute.device,
        providers=prepared.providers,
        work=compute.work,
        progress=calibration.progress,
    )
    return Planned(
        tuned.plan.with_notes(notes_of(tuned.reports)), tuned.constants, Evaluation.of(split)
    )
