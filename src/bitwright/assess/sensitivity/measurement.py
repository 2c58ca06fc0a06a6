"""Measures the error of the outputs for sets of nodes that alone are quantized, or float."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy.typing as npt
import onnx

from bitwright.assess.comparison.units import Units
from bitwright.assess.outputs import OutputErrors, TotalError
from bitwright.assess.sensitivity.variants import Key, Kind, Variants
from bitwright.errors import DataError, ModelError
from bitwright.graph import (
    PortableModel,
    carried_model,
    carry_model,
    open_session,
    remove_unused_nodes,
    run_session,
    serialized_size,
)
from bitwright.graph.cloning import to_message
from bitwright.support.engines import LOCAL, Engine

__all__ = ["measure_variants"]

Sample = Mapping[str, npt.NDArray[Any]]

_MAX_NODES = 4000
"""Nodes of one merged graph: the runtime's optimizer takes longer than linear time."""
_MAX_COPIED_BYTES = 64 << 20
"""Bytes up to which copying the constants is cheaper than setting them apart."""


def measure_variants(
    units: Units,
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
    shared = (carry_model(units.float_model), list(samples), providers)
    groups = (_finish(group) for group in _groups(units, kind, sets, memory_budget))
    with engine.open(_group_runner, *shared) as workers:
        for part in workers.map(groups):
            found.update(part)
            on_progress(len(found) - ("quantized" in found))
    return found


def _groups(
    units: Units, kind: Kind, sets: Sequence[Sequence[int]], memory_budget: int
) -> Iterator[Variants]:
    """Yield the variants in graphs whose constants, once for each copy of a node, fit."""
    group = Variants(units, kind)
    added = 0
    for indices in sets:
        group.add(indices)
        added += 1
        if group.weight_bytes > memory_budget or group.node_count > _MAX_NODES:
            yield group
            group = Variants(units, kind)
            added = 0
    if added or not sets:
        yield group


class _Group(NamedTuple):
    """Variants in one graph: the model, and under which names it gives the outputs of each."""

    source: PortableModel | onnx.ModelProto
    names: dict[Key, list[str]]
    output_names: list[str]


def _finish(group: Variants) -> _Group:
    names = {key: [value.name or "" for value in made] for key, made in group.outputs.items()}
    model = group.finish()
    if not model.graph.outputs:
        raise ModelError(
            "the two models have no float output in common; check that the second was made from "
            "the first."
        )
    # Inputs that are outputs as well are dropped: the runtime refuses them.
    model.graph.outputs[:] = [v for v in model.graph.outputs if v.producer() is not None]
    remove_unused_nodes(model)
    small = serialized_size(model) < _MAX_COPIED_BYTES
    source = to_message(model) if small else PortableModel(model)
    return _Group(source, names, list(group.output_names))


def _group_runner(
    float_model: Any,
    samples: Iterable[Sample],
    providers: Sequence[str] | None,
) -> Callable[[_Group], dict[Key, TotalError]]:
    """Return what runs groups of variants on the samples."""
    judged = carried_model(float_model)

    def run(group: _Group) -> dict[Key, TotalError]:
        # Beyond "extended" come layouts for speed, which many nodes pay for when the model is
        # opened. A node that is float here stays so: between integers, the runtime would round its
        # weights.
        session = open_session(
            carried_model(group.source), level="extended", providers=providers, float_weights=True
        )
        fed = {value.name for value in session.get_inputs()}
        errors = {key: OutputErrors(judged) for key in group.names if key != "float"}
        count = 0
        for sample in samples:
            values = run_session(session, {name: a for name, a in sample.items() if name in fed})
            answers = {
                key: dict(zip(group.output_names, map(values.__getitem__, made), strict=True))
                for key, made in group.names.items()
            }
            for key, error in errors.items():
                error.add(sample, answers["float"], answers[key])
            count += 1
        if not count:
            raise DataError("there is no sample to measure on; give at least one.")
        return {key: error.finish().total for key, error in errors.items()}

    return run
