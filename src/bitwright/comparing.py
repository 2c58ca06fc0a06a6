"""A float model made ready to stand beside the quantized one, and the samples for both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from bitwright import graph
from bitwright.assess import Comparison, compare_models
from bitwright.data import ImagePreprocess, RandomData, Samples, open_data
from bitwright.errors import BitwrightError, DataError
from bitwright.pipeline import Calibration, Job, input_specs
from bitwright.plan import QuantPlan
from bitwright.progress import Progress, show_progress
from bitwright.recipe import Recipe

__all__ = ["compare_pair"]


@dataclass(frozen=True, slots=True)
class _Pair:
    plain: ir.Model
    quantized: ir.Model
    samples: Samples


def compare_pair(
    float_model: Any,
    quantized_model: Any,
    *,
    data: Any,
    limit: int | None,
    preprocess: ImagePreprocess | str | None,
    plan: QuantPlan | None,
    providers: Sequence[str] | None,
    memory_budget: int,
    progress: Progress,
) -> Comparison:
    """Open both models and the data, and compare."""
    if memory_budget <= 0:
        raise DataError(f"the memory budget must be positive, not {memory_budget} bytes.")
    if data is None:
        raise DataError(
            "comparing runs both models and needs samples; give data (arrays, files, a folder of "
            "images, a data reader), or ask for random data to try things out."
        )
    calibration = Calibration(data=data, limit=limit, preprocess=preprocess)
    pair = _open(float_model, quantized_model, calibration, plan)
    with show_progress(progress, "Comparing", pair.samples.len_hint) as report:
        return compare_models(
            pair.plain,
            pair.quantized,
            pair.samples,
            plan=plan,
            memory_budget=memory_budget,
            providers=providers,
            report=report,
        )


def _open(
    float_model: Any, quantized_model: Any, calibration: Calibration, plan: QuantPlan | None
) -> _Pair:
    quantized = graph.load_model(quantized_model)
    recipe = plan.recipe if plan is not None else _recipe_of(quantized)
    if recipe is not None and recipe.mode != "weight-only":
        # Prepared as it was for quantizing, its tensors are those that the other model has: names
        # and shapes after rewrites, numbers after equalization.
        job = Job.open(float_model, recipe)
        if plan is not None:
            job.smooth(plan.smoothing)
        return _Pair(job.reference, quantized, job.open_data(calibration))
    plain = graph.load_model(float_model)
    if isinstance(calibration.data, RandomData):
        samples = calibration.data.samples(input_specs(plain))
    else:
        samples = open_data(
            calibration.data,
            input_specs(plain),
            limit=calibration.limit,
            preprocess=calibration.preprocess,
        )
    return _Pair(plain, quantized, samples)


def _recipe_of(model: ir.Model) -> Recipe | None:
    """Return the recipe that a model of ours was made with; others may say anything there."""
    text = model.metadata_props.get("bitwright.recipe")
    if text is None:
        return None
    try:
        return Recipe.from_json(text)
    except BitwrightError:
        return None
