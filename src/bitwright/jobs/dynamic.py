"""Dynamic quantization: weights in 8 bits now, activations at every run; no data is needed."""

from __future__ import annotations

from bitwright.decide.layout.dynamic import lay_out_dynamic
from bitwright.jobs.calibration import Calibration, calibrate, unseen_samples
from bitwright.jobs.compute import ON_CPU, Compute
from bitwright.jobs.opening import Prepared
from bitwright.jobs.output import Planned, assess_model, emit_model
from bitwright.jobs.result import Result
from bitwright.jobs.static import Decided, decide_layout
from bitwright.plan import QuantPlan

__all__ = ["make_dynamic_plan", "plan_dynamic", "quantize_dynamic"]


def quantize_dynamic(
    prepared: Prepared, calibration: Calibration, compute: Compute = ON_CPU
) -> Result:
    """Quantize weights; each run quantizes its own activations. Data only measures the result."""
    compute.refuse_for_plain_rounding()
    decided = plan_dynamic(prepared, calibration)
    written = emit_model(decided.prepared, Planned(decided.plan))
    evaluation = unseen_samples(decided.prepared, calibration)
    return assess_model(decided.prepared, written, evaluation, decided.calibrated.data)


def make_dynamic_plan(prepared: Prepared, calibration: Calibration) -> QuantPlan:
    """Decide everything, and write nothing."""
    return plan_dynamic(prepared, calibration).plan


def plan_dynamic(prepared: Prepared, calibration: Calibration) -> Decided:
    """Decide everything about a prepared model."""
    layout = lay_out_dynamic(prepared.model, prepared.recipe)
    calibrated = calibrate(prepared, layout, calibration)
    return Decided(prepared, calibrated, decide_layout(prepared, layout, calibrated))
