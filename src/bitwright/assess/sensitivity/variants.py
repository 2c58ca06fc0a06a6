"""Variants of a model, with one node quantized or all but some, in stages.

A variant differs from the float model, or from the quantized one, in one stage or a few. Those are
graphs of its own; all others are run as they are, on other numbers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Literal

import onnx_ir as ir

from bitwright.assess.comparison.stages import (
    Place,
    QuantizedTensors,
    StageGraph,
    Tensors,
    cut_stages,
)
from bitwright.assess.comparison.units import Cut, Units
from bitwright.assess.sensitivity.staged_model import StagedModel, StageModel
from bitwright.graph import PortableModel, remove_unused_nodes
from bitwright.graph.quantized_ops import DEQUANTIZERS, QUANTIZERS
from bitwright.support.collector import without_collection

__all__ = ["Key", "Kind", "Variants"]

Kind = Literal["alone", "without"]
Key = str | tuple[int, ...]
"""Which variant: "quantized", or the places of its cuts."""

_FEWEST_NODES = 40
"""Nodes of a stage that are worth a run of their own."""


class Variants:
    """Makes the stages of two models, and those in which a variant differs from one of them."""

    def __init__(self, units: Units) -> None:
        nodes = sum(len(cut.float_nodes) + len(cut.nodes) for cut in units.cuts)
        # A variant costs a stage that is opened and a run of those that follow: about as much.
        self._stages = cut_stages(units, max(_FEWEST_NODES, math.isqrt(2 * nodes)))
        self.units = units

    @cached_property
    def float_model(self) -> StagedModel:
        """The float model."""
        graphs = (StageGraph(self._stages, i) for i in range(len(self._stages)))
        return StagedModel([_float_stage(graph) for graph in graphs])

    @cached_property
    def quantized_model(self) -> StagedModel:
        """The quantized model."""
        graphs = (StageGraph(self._stages, i) for i in range(len(self._stages)))
        return StagedModel([_quantized_stage(graph, frozenset()) for graph in graphs])

    @without_collection()
    def make(self, kind: Kind, places: Collection[int]) -> dict[int, StageModel]:
        """Return the stages in which a variant differs: these cuts quantized, or all but these."""
        if kind == "alone":
            (place,) = places
            return self._alone(place)
        return self._without(frozenset(places))

    def _alone(self, place: int) -> dict[int, StageModel]:
        stage = next(i for i, own in enumerate(self._stages.cuts) if place in own)
        graph = StageGraph(self._stages, stage)
        cut = self.units.cuts[place]
        inputs = graph.stand_ins(cut)
        result = graph.add_unit(cut, inputs)
        if cut.codes is not None:
            result = graph.dequantize(cut, result, inputs)
        graph.floats[cut.float_value] = graph.cast(result, cut.float_value.dtype)
        return {stage: _float_stage(graph)}

    def _without(self, places: frozenset[int]) -> dict[int, StageModel]:
        found = zip(self._stages.cuts, self._stages.read_by_stage, strict=True)
        return {
            i: _quantized_stage(StageGraph(self._stages, i), places)
            for i, (own, read) in enumerate(found)
            if not places.isdisjoint(own) or not places.isdisjoint(read)
        }


def _float_stage(graph: StageGraph) -> StageModel:
    for _, cut in graph.cuts:  # in order, so that none waits for a long row of others
        graph.floats[cut.float_value]  # is made by being looked for
    given = graph.given_floats()
    outputs = {}
    for path in graph.paths:
        if path.is_computed:
            graph.add(path.float_nodes, graph.floats)
            outputs[path.name] = graph.floats[path.float_value]
    return _finish(graph, given, outputs)


def _quantized_stage(graph: StageGraph, places: frozenset[int]) -> StageModel:
    """Return a stage of the quantized model in which these cuts are made by float nodes."""
    tensors = _PartlyFloat(graph, places)
    graph.quantized = tensors
    for _, cut in graph.cuts:
        tensors[cut.value]
    given = {
        **graph.given_values(leave_out=places),
        **{_number_name(i): tensors.numbers[c.float_value] for i, c in graph.given if i in places},
    }
    kept = {graph.stages.units.cuts[i].value: i for i in places}
    outputs = {}
    for path in graph.paths:
        if not path.is_computed:
            continue
        origin = graph.stages.units.graph.origin(path.value)
        if origin in kept:  # a float result leaves the model as it is
            cut = graph.stages.units.cuts[kept[origin]]
            outputs[path.name] = tensors.numbers[cut.float_value]
        else:
            graph.add(path.nodes, tensors)
            outputs[path.name] = tensors[path.value]
    return _finish(graph, given, outputs)


def _finish(
    graph: StageGraph, given: Mapping[str, ir.Value], outputs: Mapping[str, ir.Value]
) -> StageModel:
    left = {value: graph.readable(value) for value in (*given.values(), *outputs.values())}
    model = graph.finish(left.values())
    remove_unused_nodes(model)
    inputs = model.graph.inputs
    inputs[:] = [value for value in inputs if value.uses() or value.is_graph_output()]
    return StageModel(
        PortableModel(model),
        {name: left[value].name or "" for name, value in given.items()},
        {name: left[value].name or "" for name, value in outputs.items()},
        len(model.graph),
        graph.weight_bytes,
    )


def _number_name(place: int) -> str:
    """Return what the result of a cut that is float is called between stages."""
    return f"{place}#number"


class _PartlyFloat(QuantizedTensors):
    """Tensors of the quantized model, some of whose cuts are made by float nodes."""

    def __init__(self, graph: StageGraph, float_cuts: frozenset[int]) -> None:
        units = graph.stages.units
        read_by_float = {
            value: Place(i, "", passes=False)
            for i in float_cuts
            for value in _read_by_float(units, units.cuts[i])
        }
        super().__init__(graph, read_by_float)
        self._float_cuts = float_cuts
        self.numbers = _Numbers(self, graph, float_cuts)

    def passes(self, place: Place) -> bool:
        return place.cut not in self._float_cuts and super().passes(place)

    def make(self, cut: Cut, place: Place, value: ir.Value) -> None:
        if place.cut not in self._float_cuts or (value is cut.measured and value is not cut.value):
            super().make(cut, place, value)
            return
        result = self.numbers[cut.float_value]
        if value is cut.value:
            self[value] = self.graph.stand_in(cut, result, self)
        else:
            self[value] = self.graph.cast(result, value.dtype)


class _Numbers(Tensors):
    """Tensors of the quantized model as a float node reads them: before any rounding."""

    def __init__(
        self, quantized: _PartlyFloat, graph: StageGraph, float_cuts: frozenset[int]
    ) -> None:
        places = {
            value: Place(place.cut, _number_name(place.cut), place.passes)
            for value, place in graph.stages.float_places.items()
        }
        super().__init__(graph, graph.stages.units.float_model, places)
        self._quantized = quantized
        self._float_cuts = float_cuts

    def passes(self, place: Place) -> bool:
        return place.cut in self._float_cuts and super().passes(place)

    def make(self, cut: Cut, place: Place, value: ir.Value) -> None:
        if place.cut in self._float_cuts:
            self.graph.add(cut.float_nodes, self)
            return
        result = self._quantized[cut.value]
        if cut.is_integer:
            result = self.graph.dequantize(cut, result, self._quantized)
        result = self.graph.cast(result, value.dtype)
        if not cut.is_integer and (clips := cut.clips):
            first = clips[0].inputs[0]
            assert first is not None
            known = {first: result}
            self.graph.add(clips, known)
            result = known[value]
        self[value] = result


def _read_by_float(units: Units, cut: Cut) -> Iterator[ir.Value]:
    """Yield the dequantized forms of a cut that float nodes read, and nobody else."""
    for use in cut.value.uses():
        for value in use.node.outputs if use.node.op_type in QUANTIZERS else ():
            for reader in (next_use.node for next_use in value.uses()):
                result = reader.outputs[0]
                if reader.op_type in DEQUANTIZERS and not any(
                    units.graph.works_on_integers(end.node) for end in result.uses()
                ):
                    yield result
