"""Measures the error of the outputs for sets of nodes that alone are quantized, or float."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy.typing as npt

from bitwright.assess.outputs import OutputErrors, TotalError
from bitwright.assess.sensitivity.variants import Key, Kind, StageModel, Variants
from bitwright.errors import DataError, ModelError
from bitwright.graph import carried_model, carry_model, open_session, run_session
from bitwright.support.engines import LOCAL, Engine

__all__ = ["measure_variants"]

Array = npt.NDArray[Any]
Sample = Mapping[str, Array]

_MOST_NODES = 8000
"""Nodes of the variants that are opened at a time: the models beside them are run for each lot."""


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
    sides = [variants.float_stages] + [variants.quantized_stages] * (kind == "without")
    if not any(stage.outputs for stage in sides[0]):
        raise ModelError(
            "the two models have no float output in common; check that the second was made from "
            "the first."
        )
    models = [[_carried(stage) for stage in side] for side in sides]
    shared = (carry_model(variants.float_model), models, list(samples), providers)
    with engine.open(_group_runner, *shared) as workers:
        for part in workers.map(_groups(variants, kind, sets, memory_budget)):
            found.update(part)
            on_progress(len(found) - ("quantized" in found))
    return found


_Group = list[tuple[Key, dict[int, StageModel]]]
"""Variants, each with the stages that are its own."""


def _groups(
    variants: Variants, kind: Kind, sets: Sequence[Sequence[int]], memory_budget: int
) -> Iterator[_Group]:
    """Yield the variants in groups whose constants fit."""
    group: _Group = []
    weights = nodes = 0
    for places in sets:
        made = variants.make(kind, places)
        group.append((tuple(places), {i: _carried(stage) for i, stage in made.items()}))
        weights += sum(stage.weight_bytes for stage in made.values())
        nodes += sum(len(stage.model.graph) for stage in made.values())
        if weights > memory_budget or nodes > _MOST_NODES:
            yield group
            group, weights, nodes = [], 0, 0
    if group or not sets:
        yield group


def _carried(stage: StageModel) -> StageModel:
    return stage._replace(model=carry_model(stage.model))


class _State(NamedTuple):
    """What a model gave on a sample: tensors between its stages, and its outputs, by name."""

    tensors: MutableMapping[str, Array]
    outputs: dict[str, Array]


class _OpenStage:
    """A stage in the runtime."""

    def __init__(self, stage: StageModel, providers: Sequence[str] | None) -> None:
        # Beyond "extended" come layouts for speed, which many nodes pay for when the model is
        # opened. A node that is float here stays so: between integers, the runtime would round its
        # weights.
        self._session = open_session(
            carried_model(stage.model), level="extended", providers=providers, float_weights=True
        )
        self._stage = stage
        self.read = frozenset(value.name for value in self._session.get_inputs())

    def run(self, state: _State) -> _State:
        """Return what it gives to later stages, and the outputs that it makes."""
        given, outputs = self._stage.given, self._stage.outputs
        if not given and not outputs:
            return _State({}, {})
        feeds = {name: state.tensors[name] for name in self.read}
        values = run_session(self._session, feeds)
        return _State(
            {name: values[made] for name, made in given.items()},
            {name: values[made] for name, made in outputs.items()},
        )


def _run_all(stages: Sequence[_OpenStage], sample: Sample) -> _State:
    """Return what a model gives on a sample."""
    tensors, outputs = dict(sample), dict[str, Array]()
    for stage in stages:
        found = stage.run(_State(tensors, outputs))
        tensors |= found.tensors
        outputs |= found.outputs
    return _State(tensors, outputs)


def _run_variant(
    stages: Sequence[_OpenStage], own: Mapping[int, _OpenStage], model: _State
) -> dict[str, Array]:
    """Return the outputs of a variant of a model: what it does not change is that of the model."""
    changed, outputs = dict[str, Array](), dict(model.outputs)
    for place, stage in enumerate(stages):
        if place not in own and changed.keys().isdisjoint(stage.read):
            continue
        found = own.get(place, stage).run(_State(ChainMap(changed, model.tensors), outputs))
        changed |= found.tensors
        outputs |= found.outputs
    return outputs


def _group_runner(
    float_model: Any,
    models: Sequence[Sequence[StageModel]],
    samples: Sequence[Sample],
    providers: Sequence[str] | None,
) -> Callable[[_Group], dict[Key, TotalError]]:
    """Return what runs groups of variants on the samples."""
    judged = carried_model(float_model)
    opened = [[_OpenStage(stage, providers) for stage in stages] for stages in models]

    def run(group: _Group) -> dict[Key, TotalError]:
        own = {
            key: {place: _OpenStage(stage, providers) for place, stage in made.items()}
            for key, made in group
        }
        errors = {key: OutputErrors(judged) for key in own}
        if len(opened) > 1:
            errors["quantized"] = OutputErrors(judged)
        for sample in samples:
            states = [_run_all(stages, sample) for stages in opened]
            for key, error in errors.items():
                outputs = states[-1].outputs
                if key in own:
                    outputs = _run_variant(opened[-1], own[key], states[-1])
                error.add(sample, states[0].outputs, outputs)
        if not samples:
            raise DataError("there is no sample to measure on; give at least one.")
        return {key: error.finish().total for key, error in errors.items()}

    return run
