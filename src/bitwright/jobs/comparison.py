"""A float model made ready to stand beside the quantized one, and the samples for both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from bitwright import graph
from bitwright.assess import Comparison, compare_models
from bitwright.data import ImagePreprocess, RandomData, Samples, TextData, open_data
from bitwright.errors import BitwrightError, DataError
from bitwright.jobs.opening import input_specs
from bitwright.jobs.qat import open_for_plan
from bitwright.jobs.static import Calibration, Job
from bitwright.plan import QuantPlan
from bitwright.recipe import Recipe
from bitwright.support.progress import Progress, show_progress

__all__ = ["Twin", "compare_pair", "open_twin", "recipe_of"]


@dataclass(frozen=True, slots=True)
class Twin:
    """The float model as it was when it was quantized, and where its samples come from."""

    model: ir.Model
    """What tensors are compared with: their names, shapes and sizes are the quantized model's."""
    reference: ir.Model
    """What outputs are compared with: the same before it was made to imitate hardware."""
    samples: Samples | None

    @property
    def exact(self) -> ir.Model | None:
        """The reference, where it is another model."""
        return None if self.reference is self.model else self.reference


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
    quantized = graph.load_model(quantized_model)
    recipe = plan.recipe if plan is not None else recipe_of(quantized)
    reading = Calibration(data=data, limit=limit, preprocess=preprocess)
    twin = open_twin(float_model, recipe, plan, reading, providers)
    assert twin.samples is not None
    with show_progress(progress, "Comparing", twin.samples.len_hint) as report:
        return compare_models(
            twin.model,
            quantized,
            twin.samples,
            exact=twin.exact,
            plan=plan,
            memory_budget=memory_budget,
            providers=providers,
            report=report,
        )


def open_twin(
    source: Any,
    recipe: Recipe | None,
    plan: QuantPlan | None,
    reading: Calibration | None,
    providers: Sequence[str] | None = None,
) -> Twin:
    """Prepare a float model as its quantized twin was, so that both have the same tensors.

    With batch norms folded, nodes rewritten and channels evened out, names, shapes and numbers are
    those that the quantized model has. A model of another tool stands beside the float model as it
    is given. No `reading`: the caller has samples.
    """
    if plan is not None:
        job = open_for_plan(source, plan, providers)
        job.smooth(plan.smoothing)
    elif recipe is not None and recipe.name != "trained":
        job = Job.open(source, recipe, providers)
    else:
        plain = graph.load_model(source)
        return Twin(plain, plain, None if reading is None else _samples_for(plain, reading))
    return Twin(job.model, job.reference, None if reading is None else job.open_data(reading))


def recipe_of(model: ir.Model) -> Recipe | None:
    """Return the recipe that a model of ours was made with; others may say anything there."""
    text = model.metadata_props.get("bitwright.recipe")
    try:
        return None if text is None else Recipe.from_json(text)
    except BitwrightError:
        return None


def _samples_for(model: ir.Model, reading: Calibration) -> Samples:
    specs, data = input_specs(model), reading.data
    if isinstance(data, RandomData):
        return data.samples(specs)
    if isinstance(data, TextData):
        return data.samples(specs, limit=reading.limit)
    return open_data(data, specs, limit=reading.limit, preprocess=reading.preprocess)
