"""Conversion to float16 or bfloat16: no quantizers, nothing to calibrate."""

from __future__ import annotations

import onnx_ir as ir

from bitwright._version import TOOL
from bitwright.decide.casting import decide_casts
from bitwright.jobs.calibration import Calibrated, Calibration, observe_tensors, random_data_notes
from bitwright.jobs.opening import Prepared
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
    return seen, plan
