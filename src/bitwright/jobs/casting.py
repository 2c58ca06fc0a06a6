"""Conversion to float16 or bfloat16: no quantizers, nothing to calibrate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from bitwright._version import TOOL
from bitwright.assess import compare_outputs
from bitwright.assess.outputs import ComparedOutputs
from bitwright.decide.casting import decide_casts
from bitwright.jobs.calibration import (
    Calibrated,
    Calibration,
    Evaluation,
    measured_samples,
    observe_tensors,
    unseen_samples,
)
from bitwright.jobs.compute import ON_CPU, Compute
from bitwright.jobs.opening import Prepared
from bitwright.jobs.output import Planned, Written, assess_model, open_quantized
from bitwright.jobs.result import Result
from bitwright.jobs.static import random_data_notes
from bitwright.plan import QuantPlan
from bitwright.run import run_session

__all__ = ["apply_casts", "make_cast_plan", "quantize_casts"]

_ONLY_STORED = (
    "weights are stored in bfloat16 and computed in float32: ONNX Runtime's CPU provider has no "
    "kernels for bfloat16 (place.must_run=false computes in it, for other runtimes)"
)


def quantize_casts(
    prepared: Prepared, calibration: Calibration, compute: Compute = ON_CPU
) -> Result:
    """Convert a model; data, where it is given, shows what float16 cannot hold, and measures."""
    compute.refuse_for_plain_rounding()
    plan, seen = _plan(prepared, calibration)
    evaluation = seen.evaluation
    if not evaluation.samples:
        evaluation = unseen_samples(prepared, calibration)
    return _write(prepared, plan, evaluation, seen.data)


def make_cast_plan(prepared: Prepared, calibration: Calibration) -> QuantPlan:
    """Decide everything, and write nothing."""
    return _plan(prepared, calibration)[0]


def apply_casts(
    prepared: Prepared, plan: QuantPlan, calibration: Calibration, compute: Compute
) -> Result:
    """Convert a prepared model as a plan says; data only measures the result."""
    compute.refuse_for_plain_rounding()
    samples = [] if calibration.data is None else measured_samples(prepared, calibration)
    return _write(prepared, plan, Evaluation(samples))


def _plan(prepared: Prepared, calibration: Calibration) -> tuple[QuantPlan, Calibrated]:
    recipe, model = prepared.recipe, prepared.model
    seen = Calibrated(data="no data: nothing is calibrated")
    if calibration.data is not None and recipe.weight.name == "float16":
        made = [value for node in model.graph for value in node.outputs]
        values = [v for v in (*model.graph.inputs, *made) if v.dtype == ir.DataType.FLOAT]
        names = [value.name for value in values if value.name and not value.is_initializer()]
        seen = observe_tensors(prepared, names, calibration, detail="extremes")
    peaks = {name: max(abs(one.low), abs(one.high)) for name, one in seen.sketches.items()}
    plan = QuantPlan(
        recipe=recipe,
        fingerprint=prepared.fingerprint,
        tool=TOOL,
        tensors={},
        nodes=decide_casts(model, recipe, peaks),
        random_data=seen.random,
        notes=[
            *prepared.notes,
            *random_data_notes(seen.random),
            *([_ONLY_STORED] if recipe.casts_weights_only else []),
        ],
    )
    return plan, seen


def _write(
    prepared: Prepared, plan: QuantPlan, evaluation: Evaluation, data: str = "no data"
) -> Result:
    written = open_quantized(prepared, Planned(plan))
    if written.session is not None and not plan.recipe.float_io:
        written = replace(written, compared=_run_beside_float(prepared, written, evaluation))
    return assess_model(prepared, written, evaluation, data)


def _run_beside_float(
    prepared: Prepared, written: Written, evaluation: Evaluation
) -> ComparedOutputs:
    """Feed a model whose inputs are half floats with the samples of the float32 one."""
    types = {value.name: value.dtype for value in written.model.graph.inputs}

    def run_narrow(feeds: Mapping[str, Any]) -> dict[str, Any]:
        given = {
            name: np.asarray(array, None if (kind := types.get(name)) is None else kind.numpy())
            for name, array in feeds.items()
        }
        found = run_session(written.session, given)
        return {
            name: array.astype(np.float32) if array.dtype == np.float16 else array
            for name, array in found.items()
        }

    return compare_outputs(
        lambda feeds: run_session(prepared.reference_session, feeds),
        run_narrow,
        evaluation.samples,
        model=prepared.reference,
    )
