"""What a rounded model loses of the float model's answers, to choose between ways to round it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir

from bitwright.assess import Judgement, OutputJudgement, combine_losses
from bitwright.assess.outputs import ComparedOutputs, OutputErrors
from bitwright.data import Sample, read_sample
from bitwright.data.token_inputs import find_maker, fixed_length
from bitwright.graph.constants import input_at
from bitwright.jobs.calibration import Evaluation
from bitwright.jobs.opening import Prepared
from bitwright.jobs.output import Written
from bitwright.plan import QuantPlan
from bitwright.support.wording import counted, show_percent


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


# The accuracy level of n-bit products, chosen by what it costs on samples ----------------------
#
# At level 4 MatMulNBits rounds what it reads to int8, which is faster on CPUs, above all token by
# token, and moves the answers a little. How fast it is here is not asked: the same model and data
# give the same bytes.


MAX_ADDED_LOSS = 0.05
"""The part of the loss that level 4 may add to it; of a KL divergence that is about a tenth."""

_MIN_SAMPLES, _TOKENS = 16, 128
"""Samples to choose by, and tokens of each: rounding inputs does not depend on those before."""

Emit = Callable[[QuantPlan], Written]


def choose_accuracy_level(
    prepared: Prepared,
    plan: QuantPlan,
    emit: Emit,
    evaluation: Evaluation,
    calibrated: Iterable[Any] = (),
) -> Written:
    """Write a plan at level 4 where the answers stay as they are without it.

    The plan of the result has the level that was chosen, and a note that gives both losses. Where
    few samples are left to evaluate, those that were `calibrated` with are taken, too.
    """
    written = emit(with_accuracy_level(plan, None))
    if not _can_choose(written.model):
        return written
    reason = _why_not_measured(written, evaluation)
    if reason is not None:
        note = f"accuracy level 4 of 4-bit products, faster token by token, was not tried: {reason}"
        return replace(written, plan=written.plan.with_notes([note]))
    with ThreadPoolExecutor(1) as opening:
        # The float model is large, and opened on one core: meanwhile another is written.
        opening.submit(lambda: prepared.reference_session)
        fast = emit(with_accuracy_level(plan, 4))
    samples = [*evaluation.samples]
    more = map(read_sample, islice(calibrated, max(0, _MIN_SAMPLES - len(samples))))
    if added := [*more]:
        samples = [_shorten(sample, prepared) for sample in (*samples, *added)]
    floats, ints = compare_answers(prepared, (written, fast), samples)
    before, after = answer_loss(floats.judgement), answer_loss(ints.judgement)
    taken = after <= (1 + MAX_ADDED_LOSS) * before
    chosen, compared = (fast, ints) if taken else (written, floats)
    note = (
        f"accuracy level {4 if taken else 0} of 4-bit products: int8 inputs change the loss from "
        f"{show_percent(before)} to {show_percent(after)} %"
        f"{show_figures(floats.judgement, ints.judgement)} on "
        f"{counted(len(samples), 'sample')}, "
        f"{'within' if taken else 'beyond'} the {100 * MAX_ADDED_LOSS:.0f} % that they may add"
    )
    plan = chosen.plan.with_notes([note])
    return replace(chosen, plan=plan, compared=None if added else compared)


def _shorten(sample: Sample, prepared: Prepared) -> Sample:
    """Return the first tokens of a sample, where the model leaves open how many there are."""
    if fixed_length(prepared.inputs) or any(find_maker(name) is None for name in sample):
        return sample
    return {n: a[:, :_TOKENS] if np.ndim(a) == 2 else a for n, a in sample.items()}


def with_accuracy_level(plan: QuantPlan, level: int | None) -> QuantPlan:
    """Return a plan whose recipe has this level."""
    recipe = plan.recipe.replace(weights={"accuracy_level": level})
    return msgspec.structs.replace(plan, recipe=recipe)


def _can_choose(model: ir.Model) -> bool:
    """Whether level 4 is the faster of two kernels of any product."""
    return any(
        node.op_type == "MatMulNBits"
        and node.attributes.get_int("accuracy_level", 0) != 4
        and ((zeros := input_at(node, 3)) is None or zeros.dtype == ir.DataType.UINT8)
        for node in model.graph.all_nodes()
    )


def _why_not_measured(written: Written, evaluation: Evaluation) -> str | None:
    if any(node.op_type == "QMoE" for node in written.model.graph.all_nodes()):
        return "QMoE has it from ONNX Runtime 1.31 on only; set weights.accuracy_level for it"
    if written.session is None:
        return "the model was not run here"
    return None if evaluation else "there are no real samples to measure it by"
