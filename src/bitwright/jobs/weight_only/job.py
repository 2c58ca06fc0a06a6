"""Weight-only quantization: plan, round layer by layer, emit; data only where a method needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from bitwright import graph
from bitwright.data import HoldoutSplit
from bitwright.emit import EMITTERS, emit_blocks
from bitwright.emit.casts import narrow_caches
from bitwright.emit.nbits import NVFP4_VALUES
from bitwright.jobs.calibration import (
    NO_SAMPLES,
    Calibration,
    Evaluation,
    random_data_notes,
    unseen_samples,
)
from bitwright.jobs.opening import ON_CPU, Compute, Prepared
from bitwright.jobs.output import TOO_LARGE, Written, assess_model, sign_model
from bitwright.jobs.result import Result
from bitwright.jobs.smoothing import apply_factors
from bitwright.jobs.weight_only.answers import choose_accuracy_level
from bitwright.jobs.weight_only.mixed_bits import mix_bits
from bitwright.jobs.weight_only.prompts import OUTPUT, with_rows
from bitwright.jobs.weight_only.rotation import choose_rotation
from bitwright.jobs.weight_only.rounding import can_round_lazily, keep_in_memory, round_lazily
from bitwright.jobs.weight_only.sequence import find_scaling, round_weights
from bitwright.jobs.weight_only.work import WeightWork
from bitwright.learning.reports import notes_of, require_torch
from bitwright.numerics.nbits import LazyBlocks
from bitwright.plan import QuantPlan
from bitwright.recipe import Nearest
from bitwright.rounding.store import BlockStore
from bitwright.run import Session
from bitwright.support import counted, logged


def quantize_weight_only(
    prepared: Prepared, calibration: Calibration, compute: Compute = ON_CPU
) -> Result:
    """Quantize weights in blocks; activations stay float."""
    if prepared.recipe.fine_tune is not None:
        require_torch(compute.device)  # before hours of other work, not after it
    work = _weigh_by_data(WeightWork(prepared, calibration, compute)).for_passes()
    prepared, plan = _plan(work)
    return write_weight_only(prepared, plan, work.calibration, compute)


def make_weight_only_plan(prepared: Prepared, calibration: Calibration) -> QuantPlan:
    """Decide everything, and write nothing."""
    return _plan(_weigh_by_data(WeightWork(prepared, calibration)).for_passes())[1]


@logged("decide about weights")
def _plan(work: WeightWork) -> tuple[Prepared, QuantPlan]:
    """Decide about every weight; the model that is returned is rotated, and scaled by AWQ."""
    runs = work.prepared.float_size <= graph.MAX_HELD_BYTES
    prepared, rotation = choose_rotation(work, _round_to_nearest if runs else None)
    work = replace(work, prepared=prepared)
    plan = work.decide()
    awq = prepared.recipe.weights.awq
    if awq is not None and awq.scale and (scaling := find_scaling(work, plan)):
        prepared = apply_factors(prepared, scaling)
        work = replace(work, prepared=prepared)
        plan = msgspec.structs.replace(work.decide(), smoothing=scaling)
    if prepared.recipe.weights.mixed is not None:
        plan = mix_bits(work, plan)
    random = work.calibration.is_random and prepared.recipe.weights.needs_data
    notes = [*prepared.notes, *work.notes, *random_data_notes(random), *plan.notes]
    return prepared, msgspec.structs.replace(
        plan, rotation=rotation, notes=notes, random_data=random
    )


def write_weight_only(
    prepared: Prepared, plan: QuantPlan, calibration: Calibration, compute: Compute = ON_CPU
) -> Result:
    """Round every weight, emit the model, prove that it runs, and measure it."""
    work = WeightWork(prepared, calibration, compute).for_passes()
    needs_data = plan.recipe.weights.needs_data or plan.recipe.fine_tune is not None
    split = work.samples() if needs_data else None
    weights, plan = _round(work, plan, split)
    if prepared.float_size <= graph.MAX_HELD_BYTES:
        weights = {name: keep_in_memory(blocks) for name, blocks in weights.items()}
    if split is not None and split.count:
        evaluation = Evaluation.of(split)
        data = f"{counted(split.count, 'sample')} of {split.description}"
    else:  # none was needed: products inside bodies are rounded to the nearest, too
        evaluation, data = unseen_samples(prepared, work.calibration), "no data"
    if plan.recipe.weights.accuracy_level == "auto":
        written = choose_accuracy_level(
            prepared,
            plan,
            lambda chosen: _emit(prepared, chosen, weights),
            NO_SAMPLES if calibration.is_random else evaluation,
            split if split is not None and split.holdout else (),
        )
    else:
        written = _emit(prepared, plan, weights)
    if plan.recipe.weights.output == OUTPUT:
        written = with_rows(prepared, written, evaluation)
    return assess_model(prepared, written, evaluation, data)


@logged("round weights")
def _round(
    work: WeightWork, plan: QuantPlan, split: HoldoutSplit | None
) -> tuple[Mapping[str, LazyBlocks], QuantPlan]:
    """Return the rounded weights, or what rounds them, and the plan with what there is to note."""
    folder, learns = work.compute.work, plan.recipe.fine_tune is not None
    if folder is None and not learns and can_round_lazily(plan):
        return round_lazily(work, plan), plan
    store = BlockStore(folder, job=work.store_name(plan))
    plan = plan.with_notes(round_weights(work, plan, split, store))
    if learns:
        from bitwright.jobs.weight_only.fine_tuning import tune_weights  # needs torch

        learned = None if folder is None else Path(folder) / "tuned"
        tuned = BlockStore(learned, job=work.store_name(plan))
        plan = plan.with_notes(notes_of(tune_weights(work, plan, store, tuned)))
        store.close()
        store = tuned
    return {name: store.lazy(name, xp=work.xp) for name in plan.weights}, plan


def _round_to_nearest(work: WeightWork) -> Written:
    """Return a model as it is without data: what two float models can be told apart by."""
    options = work.prepared.recipe.weights
    overrides = {
        name: msgspec.structs.replace(override, rounding=None)
        for name, override in options.overrides.items()
    }
    plain = msgspec.structs.replace(
        options, rounding=Nearest(), awq=None, refine=0, output="float", overrides=overrides
    )
    recipe = work.prepared.recipe.replace(weights=plain, fine_tune=None)
    # Nothing of it is told: it is only tried.
    tried = replace(work, calibration=replace(work.calibration, progress=False))
    plan = replace(tried, prepared=replace(work.prepared, recipe=recipe)).decide()
    return _emit(work.prepared, plan, round_lazily(tried, plan))


@logged("write the quantized graph")
def _emit(prepared: Prepared, plan: QuantPlan, weights: Mapping[str, LazyBlocks]) -> Written:
    quantized = graph.clone_model(prepared.model)
    output, readers = plan.recipe.weights.output, plan.weights.items()
    notes = EMITTERS["weight-only", output](quantized, plan, weights)
    if plan.recipe.float_io == "all-but-caches":
        narrow_caches(quantized)
    sign_model(quantized, plan)
    plan = plan.with_notes([*notes, *([_FLOAT_ACTIVATIONS] if output == "nvfp4" else [])])
    if prepared.float_size > graph.MAX_HELD_BYTES:
        return Written(quantized, plan.with_notes([TOO_LARGE]))
    runnable = quantized
    if output == "nvfp4":  # run with the numbers that its weights stand for
        plan = plan.with_notes([_IN_FLOAT])
        runnable = graph.clone_model(prepared.model)
        nodes = {name: planned.nodes for name, planned in readers}
        emit_blocks(runnable, weights, readers=nodes, output=NVFP4_VALUES)
    return Written(quantized, plan, Session(runnable, providers=prepared.providers))


_FLOAT_ACTIVATIONS = (
    "float4 is for weights only: activations stay float, and the model is smaller, but not faster; "
    "for products in float4 TensorRT quantizes activations at run time, by an operator of its own "
    "(TRT_FP4DynamicQuantize) that is not written here"
)

_IN_FLOAT = (
    "measured with the same numbers in float32: ONNX Runtime's CPU provider has no float4, and "
    "does not open the model"
)


def _weigh_by_data(work: WeightWork) -> WeightWork:
    """Let data that is given weigh errors, where the recipe leaves that open."""
    prepared, calibration = work.prepared, work.calibration
    weights = prepared.recipe.weights
    rounding = weights.rounding
    if calibration.data is None or calibration.is_random or weights.bits >= 8:
        return work
    if not isinstance(rounding, Nearest) or rounding.weighted is not None or not rounding.clip:
        return work
    recipe = prepared.recipe.replace(weights={"rounding": {"weighted": True}})
    return replace(work, prepared=replace(prepared, recipe=recipe))
