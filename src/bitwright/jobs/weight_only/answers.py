"""What a rounded model loses of the float model's answers, to choose between ways to round it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from bitwright.assess import Judgement, OutputJudgement, combine_losses
from bitwright.assess.outputs import ComparedOutputs, OutputErrors
from bitwright.data import Sample
from bitwright.jobs.opening import Prepared
from bitwright.jobs.output import Written


def compare_answers(
    prepared: Prepared, models: Sequence[Written], samples: Sequence[Sample]
) -> list[ComparedOutputs]:
    """Run models beside the float one, which runs once for all."""
    errors = [OutputErrors(prepared.reference) for _ in models]
    # The answers of one model are weighed, on one core, while the next one runs.
    with ThreadPoolExecutor(1) as weighing:
        last: Future[None] | None = None
        for sample in samples:
            expected = prepared.reference_session.run(sample)
            for each, written in zip(errors, models, strict=True):
                found = written.session.run(sample)
                if last is not None:
                    last.result()
                last = weighing.submit(each.add, sample, expected, found)
        if last is not None:
            last.result()
    return [each.finish() for each in errors]


def answer_loss(judgement: Judgement) -> float:
    """Return the mean loss of the scores of classes, or of all outputs where there are none."""
    losses = combine_losses([output.losses for output in _answers(judgement)])
    return float(np.mean(losses)) if losses.size else 0.0


def show_figures(before: Judgement, after: Judgement) -> str:
    """Return the KL divergence of the first scores of two models, where there are scores."""
    first = next((output for output in _answers(before) if output.agreements is not None), None)
    other = None if first is None else after.output(first.name)
    if first is None or other is None:
        return ""
    return f" ({first.worst.show_figure()} -> {other.worst.figure:.3g})"


def _answers(judgement: Judgement) -> list[OutputJudgement]:
    """Return the outputs with scores of classes, which would else be few beside caches; or all."""
    scores = [output for output in judgement.outputs if output.agreements is not None]
    return scores or list(judgement.outputs)
