"""Measures the error of the outputs for sets of nodes that alone are quantized, or float."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from bitwright.assess.outputs import OutputErrors, TotalError
from bitwright.assess.sensitivity.variants import Key, Kind, Variants
from bitwright.errors import DataError, ModelError
from bitwright.graph import carried_model, carry_model
from bitwright.run import Answer, OpenPart, PartChain, PartModel
from bitwright.support import LOCAL, Array, Engine, free_graphs, sparing_what_is_there

Sample = Mapping[str, Array]

_MOST_NODES = 8000
"""Nodes of the variants that are opened at a time."""
_KEPT_BYTES = 64 << 20
"""Bytes of what the models beside them give, which each lot needs."""


def measure_variants(
    variants: Variants,
    kind: Kind,
    sets: Sequence[Sequence[int]],
    samples: Iterable[Sample],
    *,
    memory_budget: int,
    providers: Sequence[str] | None = None,
    engine: Engine = LOCAL,
    on_progress: Callable[[int], None] = lambda done: None,
) -> dict[Key, TotalError]:
    """Return the error of the outputs for each set of cuts, quantized alone or left float.

    Each variant is computed on every sample; nothing is estimated. Of the kind "without",
    "quantized" has the error when all are quantized. `engine` says where groups of variants run.
    """
    found: dict[Key, TotalError] = {}
    models = [variants.float_model, *([variants.quantized_model] if kind == "without" else [])]
    if not models[0].has_outputs:
        raise ModelError(
            "the two models have no float output in common; check that the second was made from "
            "the first."
        )
    shared = (carry_model(variants.units.float_model), models, list(samples), providers)
    free_graphs(len(variants.units.quantized.graph))  # before garbage is spared, too
    with sparing_what_is_there(), engine.open(_group_runner, *shared) as workers:
        for measured in workers.map(_groups(variants, kind, sets, memory_budget)):
            found.update(measured)
            on_progress(len(found) - ("quantized" in found))
    return found


_Group = list[tuple[Key, dict[int, PartModel]]]
"""Variants, each with the parts that are its own."""


def _groups(
    variants: Variants, kind: Kind, sets: Sequence[Sequence[int]], memory_budget: int
) -> Iterator[_Group]:
    """Yield the variants in groups whose constants fit."""
    group: _Group = []
    weights = nodes = 0
    for places in sets:
        made = variants.make(kind, places)
        group.append((tuple(places), made))
        weights += sum(part.weight_bytes for part in made.values())
        nodes += sum(part.node_count for part in made.values())
        if weights > memory_budget or nodes > _MOST_NODES:
            yield group
            group, weights, nodes = [], 0, 0
    if group or not sets:
        yield group


def _group_runner(
    float_model: Any,
    models: Sequence[PartChain],
    samples: Sequence[Sample],
    providers: Sequence[str] | None,
) -> Callable[[_Group], dict[Key, TotalError]]:
    """Return what runs groups of variants on the samples."""
    judged = carried_model(float_model)
    kept: list[list[Answer]] = []

    def answer(place: int, sample: Sample) -> list[Answer]:
        """Return what the models give for a sample; of the first ones it is kept, where small."""
        if place < len(kept):
            return kept[place]
        found = [model.run(sample, providers) for model in models]
        fits = sum(one.nbytes for answers in (*kept, found) for one in answers) <= _KEPT_BYTES
        if fits and place == len(kept):
            kept.append(found)
        return found

    def run(group: _Group) -> dict[Key, TotalError]:
        own = {
            key: {place: OpenPart(part, providers) for place, part in made.items()}
            for key, made in group
        }
        errors = {key: OutputErrors(judged) for key in own}
        if len(models) > 1:
            errors["quantized"] = OutputErrors(judged)
        for place, sample in enumerate(samples):
            answers = answer(place, sample)
            for key, error in errors.items():
                outputs = answers[-1].outputs
                if key in own:
                    outputs = models[-1].run_variant(own[key], answers[-1])
                error.add(sample, answers[0].outputs, outputs)
        if not samples:
            raise DataError("there is no sample to measure on; give at least one.")
        return {key: error.finish().total for key, error in errors.items()}

    return run
