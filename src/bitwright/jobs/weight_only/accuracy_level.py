"""The accuracy level of n-bit products, chosen by what it costs on samples.

At level 4 MatMulNBits rounds what it reads to int8, which is faster on CPUs, token by token above
all, and moves the answers a little. How fast it is here is not asked: the same model and data give
the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import msgspec
import onnx_ir as ir

from bitwright.graph.constants import input_at
from bitwright.jobs.calibration import Evaluation
from bitwright.jobs.opening import Prepared
from bitwright.jobs.output import Written
from bitwright.jobs.weight_only.answers import answer_loss, compare_answers, show_figures
from bitwright.plan import QuantPlan
from bitwright.support.wording import counted, show_percent

MAX_ADDED_LOSS = 0.05
"""The part of the loss that level 4 may add to it; of a KL divergence that is about a tenth."""

Emit = Callable[[QuantPlan], Written]


def choose_accuracy_level(
    prepared: Prepared, plan: QuantPlan, emit: Emit, evaluation: Evaluation
) -> Written:
    """Write a plan at level 4 where the answers stay as they are without it.

    The plan of the result has the level that was chosen, and a note that gives both losses.
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
    floats, ints = compare_answers(prepared, (written, fast), evaluation.samples)
    before, after = answer_loss(floats.judgement), answer_loss(ints.judgement)
    taken = after <= (1 + MAX_ADDED_LOSS) * before
    chosen, compared = (fast, ints) if taken else (written, floats)
    note = (
        f"accuracy level {4 if taken else 0} of 4-bit products: int8 inputs change the loss from "
        f"{show_percent(before)} to {show_percent(after)} %"
        f"{show_figures(floats.judgement, ints.judgement)} on "
        f"{counted(len(evaluation.samples), 'sample')}, "
        f"{'within' if taken else 'beyond'} the {100 * MAX_ADDED_LOSS:.0f} % that they may add"
    )
    return replace(chosen, plan=chosen.plan.with_notes([note]), compared=compared)


def with_accuracy_level(plan: QuantPlan, level: int | None) -> QuantPlan:
    """Return a plan whose recipe has this level."""
    recipe = plan.recipe.replace(weights={"accuracy_level": level})
    return msgspec.structs.replace(plan, recipe=recipe)


def _can_choose(model: ir.Model) -> bool:
    """Whether level 4 is the faster of two kernels of any product."""
    return any(
        node.op_type == "MatMulNBits"
        and node.attributes.get_int("accuracy_level", 0) != 4
        and not _has_float_zero_points(node)
        for node in model.graph.all_nodes()
    )


def _has_float_zero_points(node: ir.Node) -> bool:
    zeros = input_at(node, 3)
    return zeros is not None and zeros.dtype != ir.DataType.UINT8


def _why_not_measured(written: Written, evaluation: Evaluation) -> str | None:
    if any(node.op_type == "QMoE" for node in written.model.graph.all_nodes()):
        return "QMoE has it from ONNX Runtime 1.31 on only; set weights.accuracy_level for it"
    if written.session is None:
        return "the model was not run here"
    return None if evaluation else "there are no real samples to measure it by"
