"""Comparison of a float and a quantized model: both opened with the same tensors, and run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import onnx_ir as ir

from bitwright import graph
from bitwright.assess import Comparison, PairRun, compare_models, find_coverage, open_units
from bitwright.data import Sample, SampleReferences, Samples, Transform, read_sample
from bitwright.decide.ranges.known import saturation_points
from bitwright.emit.caches import with_float_caches
from bitwright.errors import BitwrightError, DataError
from bitwright.graph.decisions import Decisions
from bitwright.jobs.calibration import GIVE_DATA, Calibration
from bitwright.jobs.opening import Prepared, open_model
from bitwright.jobs.output import TRAINED
from bitwright.jobs.qat import open_for_plan
from bitwright.plan import QuantPlan
from bitwright.recipe import Recipe
from bitwright.support import Engine, Progress, free_graphs, logged, open_engine, show_progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring(Calibration):
    """The samples that models are run on, and the means to run them."""

    samples: Sequence[Sample] | None = None
    """Samples as the quantized model takes them, instead of data."""
    providers: Sequence[str] | None = None

    @classmethod
    @contextmanager
    def connected(
        cls,
        data: Any,
        limit: int | None,
        transform: Transform,
        memory_budget: int,
        providers: Sequence[str] | None,
        engine: Engine | str | None,
        progress: Progress,
    ) -> Iterator[Measuring]:
        """Give the samples of a verb, and what runs models on them while its engine is there."""
        chosen = open_engine(engine)
        with chosen.connect():
            yield cls(
                data,
                limit,
                transform,
                memory_budget=memory_budget,
                progress=progress,
                providers=providers,
                engine=chosen,
            )

    def check(self, purpose: str) -> None:
        """Refuse what nothing can be measured with."""
        if self.memory_budget <= 0:
            raise DataError(f"the memory budget must be positive, not {self.memory_budget} bytes.")
        if self.limit is not None and self.limit < 1:
            raise DataError(f"at least one sample is needed, not {self.limit}.")
        if self.data is None and self.samples is None:
            raise DataError(f"{purpose} and needs samples", **GIVE_DATA)

    @property
    def calibration(self) -> Calibration:
        """How the samples are read."""
        return self if self.samples is None else Calibration(self.samples)

    @property
    def pair_run(self) -> PairRun:
        """Where the two models run side by side."""
        return PairRun(
            memory_budget=self.memory_budget, providers=self.providers, engine=self.engine
        )


def compare_pair(
    float_model: Any, quantized_model: Any, plan: QuantPlan | None, measuring: Measuring
) -> Comparison:
    """Open both models and the data, and compare."""
    measuring.check("comparing runs both models")
    quantized = load_quantized(quantized_model)
    found = open_float_side(float_model, quantized, plan, measuring)
    samples = measuring.calibration.refer(found.model)
    return compare_with(found, quantized, samples, plan, measuring)


def load_quantized(source: Any) -> ir.Model:
    """Load a quantized model; caches that it keeps in integers are float for its callers."""
    model = graph.load_model(source)
    with_float_caches(model)
    return model


@logged("compare models")
def compare_with(
    side: Prepared,
    quantized: ir.Model,
    samples: Samples | SampleReferences | Sequence[Sample],
    plan: QuantPlan | None,
    measuring: Measuring,
) -> Comparison:
    """Run a float model and a quantized one on the same samples."""
    total = len(samples) if isinstance(samples, Sequence) else samples.len_hint
    waiting: Iterator[Any] = iter(samples)  # a source may be read only once
    first = list(islice(waiting, 1))
    coverage = None
    if first:  # before both models are open: the runtime opens this one whole
        sample = read_sample(first[0])
        coverage = find_coverage(quantized, sample, providers=measuring.providers)
        free_graphs(len(quantized.graph))
    with show_progress(measuring.progress, "Comparing", total) as report:
        found = compare_models(
            open_units(side.model, quantized),
            chain(first, waiting),
            measuring.pair_run,
            exact=side.before_simulation,
            plan=plan,
            saturation_of=saturation_points,
            on_progress=report,
        )
    decided = Decisions.read(quantized)
    nodes = found.nodes
    if plan is None and decided is not None:
        whys = [decided.why(node.op) if node.action == "float" else None for node in nodes]
        nodes = [replace(node, reason=why) for node, why in zip(nodes, whys, strict=True)]
    return replace(found, nodes=nodes, coverage=coverage, decided=decided)


def open_float_side(
    source: Any, quantized: ir.Model, plan: QuantPlan | None, measuring: Measuring
) -> Prepared:
    """Prepare a float model as the quantized one was, so that both have the same tensors.

    With batch norms folded, nodes rewritten and channels equalized, names, shapes and numbers are
    those that the quantized model has. A model of another tool, or one that was trained with
    quantizers, stands beside the float model as it is given.
    """
    recipe = None if TRAINED in quantized.metadata_props else recipe_of(quantized)
    if plan is not None:
        return open_for_plan(source, plan, measuring.providers)
    if recipe is not None:
        return open_model(source, recipe, measuring.providers)
    return Prepared(model=graph.load_model(source), recipe=Recipe(), source=source, float_size=0)


def recipe_of(model: ir.Model) -> Recipe | None:
    """Return the recipe that a model of ours was made with; others may say anything there."""
    text = model.metadata_props.get("bitwright.recipe")
    try:
        return None if text is None else Recipe.from_json(text)
    except BitwrightError:
        return None
