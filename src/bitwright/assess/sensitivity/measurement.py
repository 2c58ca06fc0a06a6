"""Measures the error of the outputs for sets of nodes that alone are quantized, or float."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from bitwright.assess.comparison.units import Units
from bitwright.assess.outputs import OutputErrors, TotalError
from bitwright.assess.sensitivity.variants import Key, Kind, Variants
from bitwright.errors import DataError, ModelError
from bitwright.graph import open_session, remove_unused_nodes, run_session, serialized_size

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
    on_progress: Callable[[int], None] = lambda done: None,
) -> dict[Key, TotalError]:
    """Return the error of the outputs for each set of cuts, quantized alone or left float.

    Each variant is computed on every sample; nothing is estimated. Of the kind "without",
    "quantized" has the error when all are quantized.
    """
    found: dict[Key, TotalError] = {}
    for group in _groups(units, kind, sets, memory_budget):
        found.update(_run(units, group, samples, providers))
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


def _run(
    units: Units, group: Variants, samples: Iterable[Sample], providers: Sequence[str] | None
) -> dict[Key, TotalError]:
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
    source = ir.to_proto(model) if small else model
    # Beyond "extended" come layouts for speed, which many nodes pay for when the model is opened.
    # A node that is float here stays so: between integers, the runtime would round its weights.
    session = open_session(source, level="extended", providers=providers, float_weights=True)
    fed = {value.name for value in session.get_inputs()}
    errors = {key: OutputErrors(units.float_model) for key in names if key != "float"}
    count = 0
    for sample in samples:
        values = run_session(session, {name: a for name, a in sample.items() if name in fed})
        answers = {
            key: dict(zip(group.output_names, map(values.__getitem__, made), strict=True))
            for key, made in names.items()
        }
        for key, error in errors.items():
            error.add(sample, answers["float"], answers[key])
        count += 1
    if not count:
        raise DataError("there is no sample to measure on; give at least one.")
    return {key: error.finish().total for key, error in errors.items()}
