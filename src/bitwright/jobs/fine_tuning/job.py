"""Fine-tuning as a step of a job: between its plan and what it writes."""

from __future__ import annotations

from pathlib import Path

from bitwright.data import split_holdout
from bitwright.errors import DataError
from bitwright.jobs.fine_tuning.sequence import fine_tune
from bitwright.jobs.static import Calibration, Job
from bitwright.learning.reports import notes_of
from bitwright.plan import QuantPlan

__all__ = ["tune_job"]


def tune_job(
    job: Job,
    plan: QuantPlan,
    calibration: Calibration,
    *,
    device: str = "cpu",
    work: str | Path | None = None,
) -> QuantPlan:
    """Learn the weights of a job for its plan; the job writes what was learned.

    The samples that the result is measured on are not learned from. Data is read twice.
    """
    method = plan.recipe.fine_tune
    assert method is not None
    if calibration.data is None:
        raise DataError(
            f"recipe {plan.recipe.name!r} fine-tunes weights and needs calibration data; give "
            "data, or take a recipe without fine_tune."
        )
    samples = job.open_data(calibration)
    stream = split_holdout(samples) if calibration.holdout else split_holdout(samples, most=0)
    tuned = fine_tune(
        job.model,
        plan,
        method,
        stream,
        device=device,
        providers=job.providers,
        work=work,
        progress=calibration.progress,
    )
    if not job.samples:
        job.samples, job.samples_are_unseen = stream.evaluation, bool(stream.holdout)
    job.constants.update(tuned.constants)
    return tuned.plan.with_notes(notes_of(tuned.reports))
