"""The outputs that two models have in common, and the nodes that make them behind the last cuts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from bitwright.assess.comparison.matching import is_float
from bitwright.assess.comparison.units import Units, node_places, nodes_between
from bitwright.graph.subgraphs import outer_inputs

__all__ = ["OutputPath", "output_paths"]


@dataclass(frozen=True, slots=True)
class OutputPath:
    """An output of both models, and the nodes that lead to it from the last cuts."""

    float_value: ir.Value
    float_nodes: tuple[ir.Node, ...]
    value: ir.Value
    nodes: tuple[ir.Node, ...]

    @property
    def name(self) -> str:
        """What the output is called in both models."""
        return self.float_value.name or ""

    @property
    def is_computed(self) -> bool:
        """Whether it is no input of either model as it is."""
        return self.float_value.producer() is not None and self.value.producer() is not None


def output_paths(units: Units) -> list[list[OutputPath]]:
    """Return the outputs of both models behind each cut, the last that they are made of."""
    float_cuts = {cut.float_value: place for place, cut in enumerate(units.cuts)}
    cuts = {v: place for place, cut in enumerate(units.cuts) for v in (cut.measured, cut.value)}
    found: list[list[OutputPath]] = [[] for _ in range(max(len(units.cuts), 1))]
    for path in _paths(units):
        last = float_cuts.get(path.float_value)
        if last is None:
            read = {v for node in (*path.float_nodes, *path.nodes) for v in outer_inputs(node)}
            places = [known[value] for known in (float_cuts, cuts) for value in read & known.keys()]
            last = max(places, default=0)
        found[last].append(path)
    return found


def _paths(units: Units) -> Iterator[OutputPath]:
    float_borders = {*units.float_model.graph.inputs, *(cut.float_value for cut in units.cuts)}
    borders = {*units.quantized.graph.inputs, *(cut.value for cut in units.cuts)}
    float_places, places = node_places(units.float_model), node_places(units.quantized)
    given = {value.name: value for value in units.quantized.graph.outputs}
    for output in units.float_model.graph.outputs:
        other = given.get(output.name)
        if other is None or not is_float(output):
            continue
        yield OutputPath(
            output,
            ()
            if output in float_borders
            else tuple(nodes_between(output, float_borders, float_places)),
            other,
            () if other in borders else tuple(nodes_between(other, borders, places)),
        )
