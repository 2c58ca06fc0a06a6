"""Comparison of a float and a quantized model: both opened with the same tensors, and run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from bitwright import graph
from bitwright.assess import Comparison, compare_models
from bitwright.data import ImagePreprocess, Samples
from bitwright.errors import BitwrightError, DataError
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.opening import open_model
from bitwright.jobs.output import TRAINED
from bitwright.jobs.qat import open_for_plan
from bitwright.plan import QuantPlan
from bitwright.recipe import Recipe
from bitwright.support.progress import Progress, show_progress

__all__ = ["FloatSide", "compare_pair", "open_float_side", "recipe_of"]


@dataclass(frozen=True, slots=True)
class FloatSide:
    """The float model as it was when it was quantized, and where its samples come from."""

    model: ir.Model
    """What tensors are compared with: their names, shapes and sizes are the quantized model's."""
    reference: ir.Model
    """What outputs are compared with: the same before it was made to simulate hardware."""
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
    calibration = Calibration(data=data, limit=limit, preprocess=preprocess)
    found = open_float_side(float_model, quantized, plan, calibration, providers)
    assert found.samples is not None
    with show_progress(progress, "Comparing", found.samples.len_hint) as report:
        return compare_models(
            found.model,
            quantized,
            found.samples,
            exact=found.exact,
            plan=plan,
            memory_budget=memory_budget,
            providers=providers,
            on_progress=report,
        )


def open_float_side(
    source: Any,
    quantized: ir.Model,
    plan: QuantPlan | None,
    calibration: Calibration | None,
    providers: Sequence[str] | None = None,
) -> FloatSide:
    """Prepare a float model as the quantized one was, so that both have the same tensors.

    With batch norms folded, nodes rewritten and channels equalized, names, shapes and numbers are
    those that the quantized model has. A model of another tool, or one that was trained with
    quantizers, stands beside the float model as it is given. No `calibration`: the caller has
    samples.
    """
    recipe = None if TRAINED in quantized.metadata_props else recipe_of(quantized)
    if plan is not None:
        prepared = open_for_plan(source, plan, providers)
        model, reference = prepared.model, prepared.reference
    elif recipe is not None:
        prepared = open_model(source, recipe, providers)
        model, reference = prepared.model, prepared.reference
    else:
        model = reference = graph.load_model(source)
    return FloatSide(model, reference, None if calibration is None else calibration.open(model))


def recipe_of(model: ir.Model) -> Recipe | None:
    """Return the recipe that a model of ours was made with; others may say anything there."""
    text = model.metadata_props.get("bitwright.recipe")
    try:
        return None if text is None else Recipe.from_json(text)
    except BitwrightError:
        return None
