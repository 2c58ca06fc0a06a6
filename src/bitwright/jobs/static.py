"""The pipeline: a float model and calibration data in, a quantized model out, stage by stage.

    load -> prepare -> equalize -> observe -> decide -> round -> emit -> assess

Each stage takes frozen values and returns a new one; nothing else happens to the model. What loads,
prepares and equalizes it is `open_model`, once for all that a job does with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from bitwright._version import TOOL
from bitwright.decide.layout.dynamic import lay_out_dynamic
from bitwright.decide.layout.entries import Layout
from bitwright.decide.layout.static import lay_out
from bitwright.decide.planner import decide
from bitwright.jobs.calibration import (
    EVALUATION_SAMPLES,
    Calibrated,
    Calibration,
    Evaluation,
    calibrate,
    keep_data,
    random_data_notes,
    unseen_samples,
)
from bitwright.jobs.opening import ON_CPU, Compute, Prepared
from bitwright.jobs.output import Planned, assess_model, emit_model
from bitwright.jobs.placing import place_by_cost, plan_all_float
from bitwright.jobs.result import Result
from bitwright.jobs.smoothing import smooth_activations
from bitwright.plan import QuantPlan
from bitwright.recipe import Recipe
from bitwright.support.logs import logged


@dataclass(frozen=True, slots=True)
class Decided:
    """A prepared model, what was observed of it, and what was decided."""

    prepared: Prepared
    calibrated: Calibrated
    plan: QuantPlan


def quantize_static(
    prepared: Prepared, calibration: Calibration, compute: Compute = ON_CPU
) -> Result:
    """Quantize weights and activations, or convert types; data gives ranges where it must.

    The model was opened before: loaded, prepared, and its weights equalized.
    """
    _check_compute(prepared.recipe, compute)
    calibration = keep_for_passes(prepared, calibration)
    decided = plan_static(prepared, calibration)  # equalize activations, observe, decide
    planned = round_weights(decided, calibration, compute)  # round: learn, correct biases
    measured = calibration.data is not None
    written = emit_model(decided.prepared, planned, measured=measured)  # round to integers, emit
    seen = decided.calibrated
    evaluation = seen.evaluation or planned.evaluation or unseen_samples(prepared, calibration)
    return assess_model(decided.prepared, written, evaluation, seen.data)  # assess


def plan_static(prepared: Prepared, calibration: Calibration) -> Decided:
    """Decide everything about a prepared model."""
    if prepared.recipe.mode == "cast":
        from bitwright.jobs.casting import plan_casts  # few recipes ask for it

        return Decided(prepared, *plan_casts(prepared, calibration))
    if prepared.recipe.mode == "dynamic":  # each run measures its own activations
        layout = lay_out_dynamic(prepared.model, prepared.recipe, keep_float=prepared.keep_float)
    else:
        layout = lay_out(prepared.model, prepared.recipe, keep_float=prepared.keep_float)
        if (plan := plan_all_float(prepared, calibration, layout)) is not None:
            calibrated = Calibrated(data="no data: nothing of it is in integers")
            return Decided(prepared, calibrated, _noted(prepared, plan, calibration.is_random))
    prepared, layout, smoothing = smooth_activations(prepared, layout, calibration)  # equalize
    calibrated = calibrate(prepared, layout, calibration)  # observe
    plan = decide_layout(prepared, layout, calibrated)  # decide
    return Decided(prepared, calibrated, msgspec.structs.replace(plan, smoothing=dict(smoothing)))


def make_static_plan(prepared: Prepared, calibration: Calibration) -> QuantPlan:
    """Decide everything, and write nothing."""
    calibration = keep_for_passes(prepared, calibration, learning=False)
    decided = plan_static(prepared, calibration)
    # Where weights are chosen by data, the biases wait for them: until the plan is applied.
    if _chooses_weights(prepared.recipe):
        return decided.plan
    return round_weights(decided, calibration, ON_CPU).plan


def apply_static(
    prepared: Prepared, plan: QuantPlan, calibration: Calibration, compute: Compute
) -> Result:
    """Quantize a prepared model as a plan says; data only measures the result, unless it learns."""
    _check_compute(plan.recipe, compute)
    planned = Planned(plan)
    if _chooses_weights(plan.recipe):
        calibration = keep_data(prepared, calibration)
        decided = Decided(prepared, Calibrated(), plan)
        planned = round_weights(decided, calibration, compute)
    elif calibration.data is not None:
        limited = replace(calibration, limit=calibration.limit or EVALUATION_SAMPLES)
        planned = Planned(plan, evaluation=Evaluation(list(limited.open(prepared.model))))
    written = emit_model(prepared, planned, measured=bool(planned.evaluation))
    return assess_model(prepared, written, planned.evaluation)


@logged("round weights")
def round_weights(decided: Decided, calibration: Calibration, compute: Compute) -> Planned:
    """Let weights learn and correct the biases, each where the recipe asks for it."""
    planned = Planned(decided.plan)
    recipe = decided.plan.recipe
    if recipe.fine_tune is not None:
        from bitwright.jobs.fine_tuning.sequence import fine_tune_weights  # needs torch

        planned = fine_tune_weights(decided.prepared, decided.plan, calibration, compute)
    elif recipe.rounding == "gptq":
        from bitwright.jobs.second_moments import round_by_second_moments  # for few recipes, too

        planned = round_by_second_moments(decided.prepared, decided.plan, calibration)
    if recipe.bias_correction != "off":
        from bitwright.jobs.bias_correction import correct_biases  # few recipes ask for it

        planned = correct_biases(decided.prepared, planned, decided.calibrated, calibration)
    return planned


@logged("decide")
def decide_layout(prepared: Prepared, layout: Layout, calibrated: Calibrated) -> QuantPlan:
    """Return the plan for a layout, with the notes on how it came about."""
    plan = decide(
        prepared.model,
        layout,
        calibrated.sketches,
        prepared.recipe,
        fingerprint=prepared.fingerprint,
        tool=TOOL,
    )
    plan = place_by_cost(prepared, layout, plan, calibrated)
    return _noted(prepared, plan, calibrated.random)


def _noted(prepared: Prepared, plan: QuantPlan, random: bool) -> QuantPlan:
    notes = [*prepared.notes, *random_data_notes(random), *plan.notes]
    return msgspec.structs.replace(plan, notes=notes, random_data=random)


def _check_compute(recipe: Recipe, compute: Compute) -> None:
    """Refuse what cannot be computed before hours of other work, not after it."""
    if recipe.fine_tune is None:
        compute.refuse_for_plain_rounding()
        return
    from bitwright.learning.reports import require_torch

    require_torch(compute.device)


def _chooses_weights(recipe: Recipe) -> bool:
    """Whether the integers of weights depend on data, so that a plan does not have them."""
    return recipe.fine_tune is not None or recipe.rounding == "gptq"


def keep_for_passes(
    prepared: Prepared, calibration: Calibration, *, learning: bool = True
) -> Calibration:
    """Return the data in a form that as many passes can read as the recipe takes."""
    recipe = prepared.recipe
    learns = _chooses_weights(recipe)
    corrects = recipe.bias_correction != "off" and (learning or not learns)
    if recipe.equalizes_by_data or corrects or (learning and learns):
        return keep_data(prepared, calibration)
    return calibration
