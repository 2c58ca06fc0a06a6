"""The modes of a recipe, and the job that carries each of them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bitwright.decide.left_float import leave_float
from bitwright.decide.validation import check_plan
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.opening import ON_CPU, Compute, Prepared, open_model
from bitwright.jobs.result import Result
from bitwright.jobs.static import apply_static, make_static_plan, quantize_static
from bitwright.plan import QuantPlan
from bitwright.recipe import Recipe

Providers = Sequence[str] | None


class Mode(NamedTuple):
    """What can be done in one mode of a recipe."""

    quantize: Callable[[Prepared, Calibration, Compute], Result]
    make_plan: Callable[[Prepared, Calibration], QuantPlan]
    apply: Callable[[Prepared, QuantPlan, Calibration, Compute], Result]


def _weight_only() -> Mode:
    from bitwright.jobs.weight_only import job  # loads what other modes do without

    return Mode(job.quantize_weight_only, job.make_weight_only_plan, job.write_weight_only)


_PIPELINE = Mode(quantize_static, make_static_plan, apply_static)

MODES: dict[str, Callable[[], Mode]] = {
    "static": lambda: _PIPELINE,
    "dynamic": lambda: _PIPELINE,
    "cast": lambda: _PIPELINE,
    "weight-only": _weight_only,
}


def mode_of(recipe: Recipe) -> Mode:
    """Return how a recipe is carried out."""
    mode = MODES[recipe.mode]()
    return mode if recipe.cache is None else _with_caches(mode)


def _with_caches(mode: Mode) -> Mode:
    """Return a mode whose results keep caches in integers, observed on what they cache."""
    from bitwright.jobs.caches import with_windows, write_caches  # few recipes ask for it

    def quantize(prepared: Prepared, calibration: Calibration, compute: Compute) -> Result:
        work, recipe = with_windows(prepared, calibration, known=False), prepared.recipe
        reads = recipe.weights.needs_data or recipe.fine_tune is not None
        made = mode.quantize(prepared, work.calibration if reads else calibration, compute)
        return write_caches(work, made)

    def apply(
        prepared: Prepared, plan: QuantPlan, calibration: Calibration, compute: Compute
    ) -> Result:
        made = mode.apply(prepared, plan, calibration, compute)
        return write_caches(with_windows(prepared, calibration, known=bool(plan.caches)), made)

    return Mode(quantize, mode.make_plan, apply)


def quantize_model(
    source: Any,
    recipe: Recipe,
    calibration: Calibration,
    providers: Providers = None,
    compute: Compute = ON_CPU,
) -> Result:
    """Quantize a model as a recipe says."""
    prepared = open_model(source, recipe, providers)
    return mode_of(recipe).quantize(prepared, calibration, compute)


def apply_to_model(
    plan: QuantPlan,
    source: Any,
    calibration: Calibration,
    providers: Providers = None,
    compute: Compute = ON_CPU,
) -> Result:
    """Quantize a model as a plan says."""
    from bitwright.jobs.qat import open_for_plan

    prepared = open_for_plan(source, plan, providers)
    check_plan(prepared.model, plan, fingerprint=prepared.fingerprint)
    plan = leave_float(prepared.model, plan)
    return mode_of(plan.recipe).apply(prepared, plan, calibration, compute)
