"""What is to be tuned, and what cannot be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bitwright.data import Transform
from bitwright.errors import DataError, RecipeError, TargetError
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.improve.effort import Effort, check_effort
from bitwright.jobs.improve.metrics import Metric
from bitwright.jobs.tuning.goal import Goal
from bitwright.recipe import Recipe
from bitwright.support.engines import LOCAL, Engine

__all__ = ["TuneRequest", "check_request"]


@dataclass(frozen=True, kw_only=True)
class TuneRequest:
    """What is to be tuned, by which samples and metric, and where the result goes."""

    source: Any
    output: Path | None
    recipe: Recipe
    target: str | None = None
    data: Any
    eval_data: Any
    labels: Any
    metric: Callable[[bool], Metric]
    """Gives the metric, once it is known whether there are labels."""
    goal: Goal
    effort: Effort | None = None
    limit: int | None = None
    eval_limit: int | None = None
    transform: Transform = None
    work: Path | None = None
    memory_budget: int = 512 << 20
    engine: Engine = LOCAL
    providers: Sequence[str] | None = None
    external_data: bool | None = None
    report: Callable[[str], None] = field(default=lambda line: None)


def check_request(request: TuneRequest) -> None:
    """Refuse what cannot be tuned, before any work is done."""
    recipe = request.recipe
    if recipe.mode in ("dynamic", "cast"):
        what = "dynamic" if recipe.mode == "dynamic" else "without quantizers"
        raise RecipeError(
            f"tuning is for recipes that calibrate activations or store weights in blocks, and "
            f"{recipe.name!r} is {what}; take a static one, such as int8."
        )
    if recipe.fine_tune is not None:
        raise RecipeError(
            f"recipe {recipe.name!r} fine-tunes, and tuning makes many models of one plan; leave "
            "fine_tune out."
        )
    if recipe.rewrite.channels_last:
        raise RecipeError(
            "tuning feeds models as they are given, and rewrite.channels_last changes their "
            "inputs; leave it out, and apply the plan that was found with it."
        )
    if recipe.mode == "weight-only" and request.goal.purpose == "speed":
        raise RecipeError(
            f"recipe {recipe.name!r} stores weights in blocks, and a token takes as long as "
            "reading them: tune it for size."
        )
    if request.effort is not None:
        check_effort(request.effort, recipe, Calibration(request.data))
    if request.target not in (None, "cpu") and request.goal.purpose == "speed":
        raise TargetError(
            f"speed is measured with ONNX Runtime on this machine, which says nothing of "
            f"{request.target}; tune for size, or for the target cpu."
        )
    if request.data is None:
        raise DataError(
            "tuning calibrates and needs data; give data (arrays, files, a folder of images, a "
            "data reader)."
        )
