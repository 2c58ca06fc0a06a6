"""From a plan to the result: the quantized model emitted, run, and measured against float."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from bitwright import graph
from bitwright._version import __version__
from bitwright.assess import Judgement, OutputComparison, compare_outputs, fit_sample
from bitwright.assess.outputs import ComparedOutputs
from bitwright.data import RandomData
from bitwright.decide.scales.unsigned import shift_to_unsigned
from bitwright.emit import EMITTERS, QUARK_DOMAIN, VENDOR_DOMAIN
from bitwright.emit.forms import write_forms
from bitwright.errors import DataError, ModelError, RecipeError
from bitwright.jobs.calibration import NO_SAMPLES, Evaluation
from bitwright.jobs.decision_log import log_decisions
from bitwright.jobs.opening import Prepared
from bitwright.jobs.result import Result
from bitwright.plan import QuantPlan
from bitwright.prepare.widen_float16 import simulate_float16
from bitwright.rounding.bias_correction import add_to_bias, find_biased_layers, multiply_channels
from bitwright.run import IN_MEMORY_LIMIT, Session, try_opening
from bitwright.support import Array, logged
from bitwright.verification.runtime import note_other_cpu, note_rounded

Run = Callable[[Mapping[str, Any]], dict[str, Any]]

TRAINED = "bitwright.trained"
"""The metadata of models whose scales come from training: float models have no such recipe."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and the constants that are rounded by it in place of the model's own."""

    plan: QuantPlan
    constants: Mapping[str, Array] = field(default_factory=dict)
    """Weights and biases that learned."""
    evaluation: Evaluation = NO_SAMPLES
    """Samples that nothing was learned from."""


@dataclass(frozen=True, slots=True)
class Written:
    """A quantized model, with the plan that tells how it came out."""

    model: ir.Model
    plan: QuantPlan
    session: Any = None
    """None: it cannot be run here, as the plan's notes say."""
    optimized: bool = True
    """Whether the session has the runtime's optimizations; without: as the plan's notes say."""
    compared: ComparedOutputs | None = None
    """What it gave beside the float model, where deciding about it has measured that already."""


@logged("write the quantized graph")
def emit_model(prepared: Prepared, planned: Planned, *, measured: bool = True) -> Written:
    """Write a plan into the model, open it as users will, and note what the runtime changes.

    A large model that is not to be `measured` is written without: it is in memory nowhere as a
    whole.
    """
    if prepared.float_size > graph.MAX_HELD_BYTES and not measured:
        plan, quantized = _emit(prepared, planned, checked=True)
        return Written(quantized, plan.with_notes([TOO_LARGE]))
    written = open_quantized(prepared, planned)
    if written.session is None or not written.optimized:
        return written
    plan = note_rounded(written.plan, written.model, prepared.providers)
    return replace(written, plan=note_other_cpu(plan, written.model, prepared.providers))


TOO_LARGE = "not run beside the float model, which is too large to be open twice"


def open_quantized(prepared: Prepared, planned: Planned, *, checked: bool = True) -> Written:
    """Write a plan into the model, and open it as users will.

    What is only tried out need not be `checked` beside what the runtime refuses.
    """
    plan, quantized = _emit(prepared, planned, checked=checked)
    nodes = quantized.graph.all_nodes()
    vendors = [node for node in nodes if node.domain in (VENDOR_DOMAIN, QUARK_DOMAIN)]
    left = {node.op_type for node in vendors if node.op_identifier() not in quantized.functions}
    if bare := sorted(left):  # what the model leaves to the runtime
        note = (
            f"not run or measured here: {' and '.join(bare)} have no body "
            "(place.portable is off), so only a runtime that knows them can run the model"
        )
        return Written(quantized, plan.with_notes([note]))
    try:
        if "cast" in (plan.recipe.mode, plan.recipe.float16):  # products of the runtime's may crash
            try_opening(quantized, IN_MEMORY_LIMIT)
        session = Session(quantized, providers=prepared.providers)
    except ModelError:
        shifted = shift_to_unsigned(plan)
        if shifted is None and plan.recipe.place.must_run:
            raise
        if shifted is None:
            return _open_plainly(prepared, plan, quantized)
        plan, quantized = _emit(prepared, Planned(shifted, planned.constants), checked=checked)
        session = Session(quantized, providers=prepared.providers)
    return Written(quantized, plan, session)


def _open_plainly(prepared: Prepared, plan: QuantPlan, quantized: ir.Model) -> Written:
    """Open a model without optimizations: they fuse float8 to products that have no kernel."""
    try:
        session = Session(quantized, level="disabled", providers=prepared.providers)
    except ModelError:
        return Written(quantized, plan.with_notes([_NOT_OPENED]))
    return Written(quantized, plan.with_notes([_OPENED_PLAINLY]), session, optimized=False)


_NOT_OPENED = (
    "not run or measured here: ONNX Runtime's CPU provider does not open the model; run it on a "
    "provider that has these types"
)

_OPENED_PLAINLY = (
    "measured without optimizations: ONNX Runtime's CPU provider does not open the model at its "
    "default optimization level; run it there without, or on a provider that has these types"
)


@logged("compare with float")
def assess_model(
    prepared: Prepared, written: Written, evaluation: Evaluation, data: str = "no data"
) -> Result:
    """Run the quantized model beside the float one, and return all that is known of it."""
    outputs: list[OutputComparison] = []
    judgement: Judgement | None = None
    try:
        if written.session is not None:
            outputs, judgement = _run_beside_float(prepared, written, evaluation)
    except ModelError:
        if written.plan.recipe.place.must_run:
            raise
        written = Written(written.model, written.plan.with_notes([_NOT_OPENED]))
    plan = written.plan.with_notes(_note_lost_outputs(outputs))
    log_decisions(plan)
    return Result(
        model=written.model,
        plan=plan,
        outputs=outputs,
        samples=0 if written.session is None else len(evaluation.samples),
        samples_are_unseen=evaluation.unseen,
        data=data,
        float_size=prepared.float_size,
        source=prepared.source,
        evaluation=tuple(evaluation.samples),
        judgement=judgement if outputs else None,
    )


LOST_LOSS = 3**-0.5
"""The loss at which the error of a part has half the power of the part itself: 3 dB."""


def _note_lost_outputs(outputs: Sequence[OutputComparison]) -> list[str]:
    judged = [(output.name, output.judged.worst) for output in outputs if output.judged is not None]
    return [
        f"output {name!r}{'' if part.span is None else f', {part.where},'} has little in common "
        f"with that of the float model ({part.show_figure()}): do not use this model before "
        "`compare` has shown where it is lost"
        for name, part in judged
        if part.loss > LOST_LOSS or math.isnan(part.figure) or part.figure == -math.inf
    ]


def _run_beside_float(
    prepared: Prepared, written: Written, evaluation: Evaluation
) -> ComparedOutputs:
    if written.compared is not None:
        return written.compared
    recipe = written.plan.recipe
    run: Run = written.session.run
    rounding = graph.clone_model(written.model)
    halved = "cast" in (recipe.mode, recipe.float16)
    ran = written.model
    if halved and simulate_float16(rounding).changed:
        ran = rounding
        run = Session(ran, providers=prepared.providers).run
    if recipe.float_io is not True:
        run = _with_half_inputs(run, ran)
    elif not evaluation.samples:
        _try_out(prepared, run)
    return compare_outputs(
        lambda feeds: prepared.reference_session.run(feeds),
        run,
        evaluation.samples,
        model=prepared.reference,
    )


def _with_half_inputs(run: Run, model: ir.Model) -> Run:
    """Return what feeds a model whose inputs are half floats with samples of the float32 one."""

    def run_narrow(feeds: Mapping[str, Any]) -> dict[str, Any]:
        found = run(fit_sample(feeds, model))
        return {n: a.astype(np.float32) if a.dtype == np.float16 else a for n, a in found.items()}

    return run_narrow


def _try_out(prepared: Prepared, run: Run) -> None:
    """Run the result on a random sample, where the user gave none and shapes allow it."""
    try:
        sample = next(iter(RandomData(count=1).samples(prepared.inputs)))
    except DataError:
        return
    try:
        run(sample)
    except ModelError:
        # A sample may be no fit, such as a token beyond the vocabulary: then float fails too.
        try:
            prepared.reference_session.run(sample)
        except ModelError:
            return
        raise


def _emit(prepared: Prepared, planned: Planned, *, checked: bool) -> tuple[QuantPlan, ir.Model]:
    """Return the quantized model, and the plan with what its writing had to note."""
    plan = planned.plan
    quantized = float_model_to_round(prepared, planned)
    emitter = EMITTERS.get((plan.recipe.mode, plan.recipe.format))
    if emitter is None:
        raise RecipeError(
            f"{plan.recipe.mode} models cannot be written as {plan.recipe.format} yet."
        )
    notes = [*(emitter(quantized, plan, prepared.rounding) or ())]
    if plan.recipe.is_placed_by_cost:
        notes += write_forms(quantized)
    prepared.defaults.show(quantized)
    if checked:
        sign_model(quantized, plan)
    else:
        graph.stamp_versions(quantized)
    return plan.with_notes(notes), quantized


def float_model_to_round(prepared: Prepared, planned: Planned) -> ir.Model:
    """Return a copy of the float model with the constants that are rounded for the result."""
    plan = planned.plan
    model = graph.clone_model(prepared.model)
    initializers = model.graph.initializers
    for name, array in planned.constants.items():
        initializers[name].const_value = ir.tensor(array, name=name)
    # A layer that fell back to float since has no rounding to make up for.
    quantized = {name for name, node in plan.nodes.items() if node.action == "quantize"}
    biased, _ = find_biased_layers(model, quantized) if plan.bias_shifts else ([], {})
    for layer in biased:
        name, weight = layer.bias.name or "", layer.weight.name or ""
        tensor, shift = initializers[name].const_value, plan.bias_shifts.get(name)
        if tensor is not None and shift is not None:
            array = add_to_bias(tensor.numpy(), np.asarray(shift))
            initializers[name].const_value = ir.tensor(array, name=name)
        tensor, gain = initializers[weight].const_value, plan.weight_gains.get(weight)
        if tensor is not None and gain is not None:
            axis = plan.tensors[plan.nodes[layer.node.name or ""].inputs[1] or ""].axis
            array = multiply_channels(tensor.numpy(), np.asarray(gain), axis)
            initializers[weight].const_value = ir.tensor(array, name=weight)
    return model


def sign_model(quantized: ir.Model, plan: QuantPlan) -> None:
    """Say in a model which tool made it and how, and check that it is well formed."""
    graph.forget_invented_sizes(quantized)
    quantized.producer_name, quantized.producer_version = "bitwright", __version__
    quantized.metadata_props["bitwright.version"] = __version__
    quantized.metadata_props["bitwright.recipe"] = plan.recipe.to_json(indent=0)
    plan.decisions().write(quantized)
    if plan.trained:
        quantized.metadata_props[TRAINED] = "true"
    graph.stamp_versions(quantized)
    graph.check_model(quantized)
