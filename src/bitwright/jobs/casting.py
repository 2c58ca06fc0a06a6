"""Conversion to float16 or bfloat16: no quantizers, nothing to calibrate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from bitwright._version import TOOL
from bitwright.decide.casting import decide_casts
from bitwright.graph import clone_model, inline_copy, is_float, tensor_slots
from bitwright.jobs.calibration import Calibrated, Calibration, observe_tensors, random_data_notes
from bitwright.jobs.opening import Prepared
from bitwright.numerics.halves import INFINITE, narrow
from bitwright.plan import QuantPlan

_ONLY_STORED = (
    "weights are stored in bfloat16 and computed in float32: ONNX Runtime's CPU provider has no "
    "kernels for bfloat16 (place.must_run=false computes in it, for other runtimes)"
)


def plan_casts(prepared: Prepared, calibration: Calibration) -> tuple[Calibrated, QuantPlan]:
    """Decide which nodes are converted; data, where it is given, shows what float16 cannot hold."""
    recipe, model = prepared.recipe, prepared.model
    seen = Calibrated(data="no data: nothing is calibrated")
    if calibration.data is not None and recipe.weight.name == "float16":
        made = [value for node in model.graph for value in node.outputs]
        values = [v for v in (*model.graph.inputs, *made) if is_float(v)]
        names = [value.name for value in values if value.name and not value.is_initializer()]
        narrowed = replace(prepared, model=_narrow_masks(model))
        seen = observe_tensors(narrowed, names, calibration, detail="extremes")
    # What is empty, as a first cache, has no peak.
    peaks = {n: max(abs(s.low), abs(s.high)) for n, s in seen.sketches.items() if s.finite}
    plan = QuantPlan(
        recipe=recipe,
        fingerprint=prepared.fingerprint,
        tool=TOOL,
        tensors={},
        nodes=decide_casts(model, recipe, peaks, random=seen.random),
        random_data=seen.random,
        notes=[
            *prepared.notes,
            *random_data_notes(seen.random),
            *([_ONLY_STORED] if recipe.casts_weights_only else []),
        ],
    )
    return seen, plan


def _narrow_masks(model: ir.Model) -> ir.Model:
    """Return the model with what stands for infinity as float16 has it.

    Else all that a mask is added to would seem to overflow.
    """
    narrowed = clone_model(model)
    for slot in tensor_slots(narrowed):
        if slot.tensor.dtype == ir.DataType.FLOAT:
            array = inline_copy(slot.tensor).numpy()  # a mapped file would stay in memory
            if np.any(np.isfinite(array) & (np.abs(array) >= INFINITE)):
                slot.put(ir.Tensor(narrow(array, "float16")[0].astype(np.float32)))
    return narrowed
