"""Weight-only quantization: plan, round layer by layer, emit; data only where a method needs it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bitwright import graph
from bitwright._version import TOOL
from bitwright.data import HoldoutSplit
from bitwright.decide.layout.weight_only import plan_weights
from bitwright.emit import EMITTERS, emit_blocks
from bitwright.emit.nbits import NVFP4_VALUES
from bitwright.errors import DataError
from bitwright.jobs.calibration import NO_SAMPLES, Calibration, Evaluation, unseen_samples
from bitwright.jobs.compute import ON_CPU, Compute
from bitwright.jobs.opening import Prepared
from bitwright.jobs.output import Written, assess_model, sign_model
from bitwright.jobs.result import Result
from bitwright.jobs.smoothing import apply_factors
from bitwright.jobs.static import random_data_notes
from bitwright.jobs.weight_only.accuracy_level import choose_accuracy_level
from bitwright.jobs.weight_only.lazy import can_round_lazily, keep_in_memory, round_lazily
from bitwright.jobs.weight_only.mixed_bits import mix_bits
from bitwright.jobs.weight_only.rotation import choose_rotation
from bitwright.jobs.weight_only.sequence import find_scaling, round_weights
from bitwright.learning.reports import notes_of, require_torch
from bitwright.numerics.arrays import NUMPY, Arrays, arrays_on
from bitwright.numerics.nbits import LazyBlocks
from bitwright.plan import QuantPlan
from bitwright.recipe import Nearest
from bitwright.rounding.store import BlockStore
from bitwright.run import open_session
from bitwright.support.logs import logged
from bitwright.support.progress import ProgressLines
from bitwright.support.wording import counted

__all__ = ["make_weight_only_plan", "plan_weight_only", "quantize_weight_only", "write_weight_only"]

MAX_MEASURED_BYTES = 1 << 30
"""Size of the float model up to which the result is run beside it."""


def quantize_weight_only(
    prepared: Prepared, calibration: Calibration, compute: Compute = ON_CPU
) -> Result:
    """Quantize weights in blocks; activations stay float."""
    if prepared.recipe.fine_tune is not None:
        require_torch(compute.device)  # before hours of other work, not after it
    prepared = _weigh_by_data(prepared, calibration)
    calibration = _keep_for_passes(prepared, calibration)
    prepared, plan = plan_weight_only(prepared, calibration, compute)
    return write_weight_only(prepared, plan, calibration, compute)


def make_weight_only_plan(prepared: Prepared, calibration: Calibration) -> QuantPlan:
    """Decide everything, and write nothing."""
    prepared = _weigh_by_data(prepared, calibration)
    return plan_weight_only(prepared, _keep_for_passes(prepared, calibration))[1]


@logged("decide about weights")
def plan_weight_only(
    prepared: Prepared, calibration: Calibration, compute: Compute = ON_CPU
) -> tuple[Prepared, QuantPlan]:
    """Decide about every weight; the model that is returned is rotated, and scaled by AWQ."""
    runs = prepared.float_size <= MAX_MEASURED_BYTES
    attempt = partial(_round_to_nearest, compute=compute) if runs else None
    prepared, rotation = choose_rotation(prepared, calibration, attempt)
    plan = _decide(prepared)
    awq = prepared.recipe.weights.awq
    if awq is not None and awq.scale:
        scaling = find_scaling(
            prepared.model,
            plan,
            _calibration_pass(prepared, calibration),
            xp=_arrays(compute),
            providers=prepared.providers,
            progress=_progress(calibration),
        )
        if scaling:
            prepared = apply_factors(prepared, scaling)
            plan = msgspec.structs.replace(_decide(prepared), smoothing=scaling)
    if prepared.recipe.weights.mixed is not None:
        plan = mix_bits(
            prepared.model,
            plan,
            lambda: _calibration_pass(prepared, calibration),
            providers=prepared.providers,
            progress=_progress(calibration),
        )
    random = calibration.is_random and prepared.recipe.weights.needs_data
    notes = [*prepared.notes, *random_data_notes(random), *plan.notes]
    return prepared, msgspec.structs.replace(
        plan, rotation=rotation, notes=notes, random_data=random
    )


def write_weight_only(
    prepared: Prepared, plan: QuantPlan, calibration: Calibration, compute: Compute = ON_CPU
) -> Result:
    """Round every weight, emit the model, prove that it runs, and measure it."""
    needs_data = plan.recipe.weights.needs_data or plan.recipe.fine_tune is not None
    calibration = _keep_for_passes(prepared, calibration)
    split = _calibration_pass(prepared, calibration) if needs_data else None
    weights, plan = _round(prepared, plan, split, calibration, compute)
    if prepared.float_size <= MAX_MEASURED_BYTES:
        weights = {name: keep_in_memory(blocks) for name, blocks in weights.items()}
    if split is not None and split.count:
        evaluation = Evaluation.of(split)
        data = f"{counted(split.count, 'sample')} of {split.description}"
    else:  # none was needed: products inside bodies are rounded to the nearest, too
        evaluation, data = unseen_samples(prepared, calibration), "no data"
    if plan.recipe.weights.accuracy_level == "auto":
        written = choose_accuracy_level(
            prepared,
            plan,
            lambda chosen: _emit(prepared, chosen, weights),
            NO_SAMPLES if calibration.is_random else evaluation,
        )
    else:
        written = _emit(prepared, plan, weights)
    return assess_model(prepared, written, evaluation, data)


@logged("round weights")
def _round(
    prepared: Prepared,
    plan: QuantPlan,
    split: HoldoutSplit | None,
    calibration: Calibration,
    compute: Compute,
) -> tuple[Mapping[str, LazyBlocks], QuantPlan]:
    """Return the rounded weights, or what rounds them, and the plan with what there is to note."""
    xp, progress = _arrays(compute), _progress(calibration)
    learns = plan.recipe.fine_tune is not None
    if compute.work is None and not learns and can_round_lazily(plan):
        return round_lazily(prepared.model, plan, xp=xp, progress=progress), plan
    store = BlockStore(compute.work, job=_job_name(prepared, plan, compute))
    notes = round_weights(
        prepared.model,
        plan,
        split,
        store,
        xp=xp,
        providers=prepared.providers,
        engine=calibration.engine,
        progress=progress,
    )
    plan = plan.with_notes(notes)
    if learns:
        store, plan = _fine_tune(prepared, plan, store, calibration, compute)
    return {name: store.lazy(name, xp=xp) for name in plan.weights}, plan


def _round_to_nearest(prepared: Prepared, compute: Compute) -> Written:
    """Return a model as it is without data: what two float models can be told apart by."""
    options = prepared.recipe.weights
    overrides = {
        name: msgspec.structs.replace(override, rounding=None)
        for name, override in options.overrides.items()
    }
    plain = msgspec.structs.replace(
        options, rounding=Nearest(), awq=None, refine=0, output="float", overrides=overrides
    )
    recipe = prepared.recipe.replace(weights=plain, fine_tune=None)
    plan = _decide(replace(prepared, recipe=recipe))
    return _emit(prepared, plan, round_lazily(prepared.model, plan, xp=_arrays(compute)))


@logged("write the quantized graph")
def _emit(prepared: Prepared, plan: QuantPlan, weights: Mapping[str, LazyBlocks]) -> Written:
    quantized = graph.clone_model(prepared.model)
    emit = EMITTERS["weight-only", plan.recipe.weights.output]
    notes = emit(quantized, plan, weights)
    sign_model(quantized, plan)
    plan = plan.with_notes(notes)
    if plan.recipe.weights.output == "nvfp4":
        plan = plan.with_notes([_FLOAT_ACTIVATIONS])
    if prepared.float_size > MAX_MEASURED_BYTES:
        note = "not run beside the float model, which is too large to be open twice"
        return Written(quantized, plan.with_notes([note]))
    if plan.recipe.weights.output == "nvfp4":
        return Written(
            quantized, plan.with_notes([_IN_FLOAT]), _open_values(prepared, plan, weights)
        )
    session = open_session(quantized, providers=prepared.providers)
    return Written(quantized, plan, session)


_FLOAT_ACTIVATIONS = (
    "float4 is for weights only: activations stay float, and the model is smaller, but not faster; "
    "for products in float4 TensorRT quantizes activations at run time, by an operator of its own "
    "(TRT_FP4DynamicQuantize) that is not written here"
)

_IN_FLOAT = (
    "measured with the same numbers in float32: ONNX Runtime's CPU provider has no float4, and "
    "does not open the model"
)


def _open_values(prepared: Prepared, plan: QuantPlan, weights: Mapping[str, LazyBlocks]) -> Any:
    """Return a session of the model with the numbers that its float4 weights stand for."""
    model = graph.clone_model(prepared.model)
    readers = {name: planned.nodes for name, planned in plan.weights.items()}
    emit_blocks(model, weights, readers=readers, output=NVFP4_VALUES)
    return open_session(model, providers=prepared.providers)


def _fine_tune(
    prepared: Prepared,
    plan: QuantPlan,
    rounded: BlockStore,
    calibration: Calibration,
    compute: Compute,
) -> tuple[BlockStore, QuantPlan]:
    """Learn the roundings; return where they are, and the plan that tells of it."""
    from bitwright.jobs.weight_only.fine_tuning import tune_weights  # needs torch

    folder = None if compute.work is None else Path(compute.work) / "tuned"
    tuned = BlockStore(folder, job=_job_name(prepared, plan, compute))
    reports = tune_weights(
        prepared.model,
        plan,
        _calibration_pass(prepared, calibration),
        rounded,
        tuned,
        device=compute.device,
        providers=prepared.providers,
        progress=_progress(calibration),
    )
    rounded.close()
    return tuned, plan.with_notes(notes_of(reports))


def _decide(prepared: Prepared) -> QuantPlan:
    return plan_weights(
        prepared.model, prepared.recipe, fingerprint=prepared.fingerprint, tool=TOOL
    )


def _weigh_by_data(prepared: Prepared, calibration: Calibration) -> Prepared:
    """Let data that is given weigh errors, where the recipe leaves that open."""
    weights = prepared.recipe.weights
    rounding = weights.rounding
    if calibration.data is None or calibration.is_random or weights.bits >= 8:
        return prepared
    if not isinstance(rounding, Nearest) or rounding.weighted is not None or not rounding.clip:
        return prepared
    rounding = msgspec.structs.replace(rounding, weighted=True)
    weights = msgspec.structs.replace(weights, rounding=rounding)
    return replace(prepared, recipe=prepared.recipe.replace(weights=weights))


def _keep_for_passes(prepared: Prepared, calibration: Calibration) -> Calibration:
    """Return the data in a form that as many passes can read as the recipe takes."""
    recipe = prepared.recipe
    weights = recipe.weights
    scales = weights.awq is not None and weights.awq.scale
    measures = weights.mixed is not None and weights.mixed.needs_data
    several = scales or measures or recipe.fine_tune is not None or weights.rotate == "auto"
    if calibration.data is not None and several:
        return calibration.keep(prepared.model)
    return calibration


def _calibration_pass(prepared: Prepared, calibration: Calibration) -> HoldoutSplit:
    if calibration.data is None:
        raise DataError(
            f"recipe {prepared.recipe.name!r} weighs errors by what each layer reads and needs "
            "calibration data",
            remedy="give data, or take a recipe that needs none (int4-rtn)",
            command="give --data PATH, or take a recipe that needs none (--recipe int4-rtn)",
        )
    return calibration.split(prepared.model)


def _arrays(compute: Compute) -> Arrays:
    return NUMPY if compute.device == "cpu" else arrays_on(compute.device)


def _progress(calibration: Calibration) -> Callable[[int, int], None] | None:
    if callable(calibration.progress):
        return calibration.progress
    return ProgressLines("Weights") if calibration.progress else None


def _job_name(prepared: Prepared, plan: QuantPlan, compute: Compute) -> str:
    """Return what a folder of weights must belong to: this model, plan and data."""
    if compute.work is None:
        return ""
    digest = hashlib.sha256(prepared.content_fingerprint.encode())
    chosen = (plan.weights, plan.smoothing, plan.recipe.weights, plan.recipe.fine_tune)
    digest.update(msgspec.json.encode(chosen))
    return digest.hexdigest()
