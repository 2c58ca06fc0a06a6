"""Stages of two models: consecutive cuts whose nodes make a graph that is opened on its own.

What passes from one stage to a later one are tensors of cuts, which the runtime has anyway. A graph
of a few hundred nodes is opened in milliseconds, and one of ten thousand in minutes; and a model
that differs from another in one stage shares all others with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import onnx_ir as ir

from bitwright.assess.comparison.matching import is_float
from bitwright.assess.comparison.merged_graph import Known, MergedGraph
from bitwright.assess.comparison.units import Cut, Units, node_places, nodes_between, outer_inputs

__all__ = [
    "OutputPath",
    "Place",
    "QuantizedTensors",
    "StageGraph",
    "Stages",
    "Tensors",
    "cut_stages",
]


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


class Place(NamedTuple):
    """Where a tensor of a cut is made: the cut, and what the tensor is called between stages."""

    cut: int
    name: str
    passes: bool
    """Whether it goes from one stage to another; else it is made again where it is read."""


@dataclass(frozen=True)
class Stages:
    """Both models in stages: the cuts of each, and the outputs that can be made behind it."""

    units: Units
    cuts: tuple[range, ...]
    """The places of the cuts of each stage."""
    paths: tuple[tuple[OutputPath, ...], ...]
    """The outputs of both models, each with the stage of the last cut that it reads."""

    def __len__(self) -> int:
        return len(self.cuts)

    @cached_property
    def float_places(self) -> dict[ir.Value, Place]:
        """Tensors of the float model that cuts are made of."""
        return {
            cut.float_value: Place(i, f"{i}#float", cut.float_value.dtype is not None)
            for i, cut in enumerate(self.units.cuts)
        }

    @cached_property
    def places(self) -> dict[ir.Value, Place]:
        """The same of the quantized model: numbers, and the integers that they become.

        Numbers that only their quantizer reads are not looked at: the runtime goes from one node's
        integers to the next without them.
        """
        found = {}
        for i, cut in enumerate(self.units.cuts):
            passes = cut.value.dtype is not None
            if cut.has_quantizer:
                found[cut.measured] = Place(i, f"{i}#codes", cut.measured.dtype is not None)
                passes = passes and (len(cut.value.uses()) > 1 or cut.value.is_graph_output())
            found[cut.value] = Place(i, f"{i}#value", passes)
        return found

    @cached_property
    def reads(self) -> tuple[frozenset[int], ...]:
        """The cuts that each cut is made of, in either model."""
        return tuple(
            self._read_in((*cut.float_nodes, *cut.nodes)) - {i}
            for i, cut in enumerate(self.units.cuts)
        )

    @cached_property
    def read_by_stage(self) -> tuple[frozenset[int], ...]:
        """The cuts that each stage may read, its own included.

        What a float node reads of a quantized model may have to be made again, of what that reads.
        """
        found = []
        for places, paths in zip(self.cuts, self.paths, strict=True):
            nodes = [n for path in paths for n in (*path.float_nodes, *path.nodes)]
            own = {p for p in (self._place_of_output(path) for path in paths) if p is not None}
            near = self._read_in(nodes).union(own, *(self.reads[i] for i in places))
            found.append(frozenset(near.union(*(self.reads[i] for i in near))))
        return tuple(found)

    @cached_property
    def given(self) -> tuple[frozenset[int], ...]:
        """The cuts of each stage that a later one may read."""
        later: set[int] = set()
        found = []
        for places, read in zip(reversed(self.cuts), reversed(self.read_by_stage), strict=True):
            found.append(frozenset(i for i in places if i in later))
            later |= read
        return tuple(reversed(found))

    def _place_of_output(self, path: OutputPath) -> int | None:
        place = self.float_places.get(path.float_value)
        return None if place is None else place.cut

    def _read_in(self, nodes: Sequence[ir.Node]) -> frozenset[int]:
        read = {value for node in nodes for value in outer_inputs(node)}
        both = (self.float_places, self.places)
        return frozenset(places[v].cut for places in both for v in read if v in places)


def cut_stages(units: Units, most_nodes: int) -> Stages:
    """Cut two models into stages of at most so many nodes of both, but of one cut at least."""
    edges, nodes = [0], 0
    for i, cut in enumerate(units.cuts):
        own = len(cut.float_nodes) + len(cut.nodes)
        if nodes and nodes + own > most_nodes:
            edges.append(i)
            nodes = 0
        nodes += own
    ends = [*edges[1:], len(units.cuts)]
    ranges = tuple(range(first, end) for first, end in zip(edges, ends, strict=True))
    alone = Stages(units, ranges, ((),) * len(ranges))
    paths: list[list[OutputPath]] = [[] for _ in ranges]
    for path in _output_paths(units):
        last = alone._place_of_output(path)
        read = alone._read_in((*path.float_nodes, *path.nodes))
        last = max(read, default=0) if last is None else last
        paths[next((s for s, places in enumerate(ranges) if last in places), 0)].append(path)
    return Stages(units, ranges, tuple(map(tuple, paths)))


def _output_paths(units: Units) -> Iterator[OutputPath]:
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


class StageGraph(MergedGraph):
    """The graph of one stage in the making; what it reads of earlier stages are inputs of it."""

    def __init__(self, stages: Stages, stage: int) -> None:
        super().__init__(stages.units)
        self.stages = stages
        self.stage = stage
        self.first = stages.cuts[stage].start
        self.floats = _FloatTensors(self)
        self.quantized = QuantizedTensors(self)
        self._stand_ins = self.start(stages.units.quantized)

    @property
    def cuts(self) -> Sequence[tuple[int, Cut]]:
        """The cuts of the stage, with their places."""
        return [(i, self.stages.units.cuts[i]) for i in self.stages.cuts[self.stage]]

    @property
    def paths(self) -> tuple[OutputPath, ...]:
        """The outputs that are made behind the cuts of the stage."""
        return self.stages.paths[self.stage]

    def stand_ins(self, cut: Cut) -> Known:
        """Return what the quantized unit of a cut reads where all before it is float."""
        found = self._stand_ins
        for value in (value for node in cut.nodes for value in outer_inputs(node)):
            place = self.stages.places.get(value)
            border = None if place is None else self.stages.units.cuts[place.cut]
            if border is not None and value is border.value and value not in found:
                found[value] = self.stand_in(border, self.floats[border.float_value], found)
        return found

    @property
    def given(self) -> Iterator[tuple[int, Cut]]:
        """The cuts that a later stage may read, with their places."""
        found = self.stages.given[self.stage]
        return ((i, cut) for i, cut in self.cuts if i in found)

    def given_floats(self) -> dict[str, ir.Value]:
        """Return the tensors of the float model that later stages may read, by name."""
        values = [cut.float_value for _, cut in self.given]
        return _leaving(values, self.stages.float_places, self.floats)

    def given_values(self, leave_out: Collection[int] = ()) -> dict[str, ir.Value]:
        """Return the same of the quantized model, but for some cuts."""
        cuts = [cut for i, cut in self.given if i not in leave_out]
        values = [value for cut in cuts for value in dict.fromkeys((cut.value, cut.measured))]
        return _leaving(values, self.stages.places, self.quantized)


class Tensors(dict[ir.Value, ir.Value]):
    """Tensors of one model in the graph of a stage; those of cuts get there when they are read."""

    def __init__(self, graph: StageGraph, model: ir.Model, places: dict[ir.Value, Place]) -> None:
        super().__init__(graph.start(model))
        self.graph = graph
        self._places = places
        self._in_making: set[ir.Value] = set()

    def __contains__(self, value: object) -> bool:
        if super().__contains__(value):
            return True
        return value in self._places and value not in self._in_making

    def __missing__(self, value: ir.Value) -> ir.Value:
        place = self._places[value]
        if self.passes(place):
            self[value] = self.graph.enter(place.name, value)
        else:
            self._in_making.add(value)
            self.make(self.graph.stages.units.cuts[place.cut], place, value)
            self._in_making.discard(value)
        made = self.get(value)
        assert made is not None
        return made

    def passes(self, place: Place) -> bool:
        """Return whether a tensor comes from an earlier stage."""
        return place.passes and place.cut < self.graph.first

    def make(self, cut: Cut, place: Place, value: ir.Value) -> None:
        """Add the nodes that make a tensor of a cut."""
        raise NotImplementedError


class _FloatTensors(Tensors):
    def __init__(self, graph: StageGraph) -> None:
        super().__init__(graph, graph.stages.units.float_model, graph.stages.float_places)

    def make(self, cut: Cut, place: Place, value: ir.Value) -> None:
        self.graph.add(cut.float_nodes, self)


class QuantizedTensors(Tensors):
    """Tensors of the quantized model."""

    def __init__(self, graph: StageGraph, more: Mapping[ir.Value, Place] | None = None) -> None:
        places = {**graph.stages.places, **more} if more else graph.stages.places
        super().__init__(graph, graph.stages.units.quantized, places)

    def make(self, cut: Cut, place: Place, value: ir.Value) -> None:
        """Add the nodes that make a tensor of a cut, or the quantizer behind it."""
        maker = value.producer()
        assert maker is not None
        self.graph.add((maker,) if value is not cut.value else cut.nodes, self)


def _leaving(
    values: Sequence[ir.Value], places: dict[ir.Value, Place], tensors: Tensors
) -> dict[str, ir.Value]:
    found = {v: place for v in values if (place := places.get(v)) is not None and place.passes}
    return {place.name: tensors[value] for value, place in found.items()}
