"""Variants of a model, with one node quantized or all but some, in parts.

Each tensor that variants may replace is in the merged graph twice: as the model makes it and as the
variant does. A variant is a choice among those. It differs from the model in the parts that read
the other one; all others are run as they are, on other numbers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import onnx_ir as ir

from bitwright.assess.comparison.merged_graph import Known, MergedGraph
from bitwright.assess.comparison.units import Cut, Units, output_paths
from bitwright.graph import DEQUANTIZERS, QUANTIZERS, PortableModel, outer_inputs
from bitwright.run import Extractor, Part, PartChain, PartModel
from bitwright.support.collector import without_collection

Kind = Literal["alone", "without"]
Key = str | tuple[int, ...]
"""Which variant: "quantized", or the places of its cuts."""

_MIN_NODES = 40
"""Nodes of a part that are worth a run of their own."""


class Variants:
    """Makes the parts of two models, and those in which a variant differs from one of them."""

    def __init__(self, units: Units) -> None:
        self.units = units

    @property
    def float_model(self) -> PartChain:
        """The float model."""
        return self._float.chain

    @property
    def quantized_model(self) -> PartChain:
        """The quantized model."""
        return self._quantized.chain

    @without_collection()
    def make(self, kind: Kind, places: Collection[int]) -> dict[int, PartModel]:
        """Return the parts in which a variant differs: these cuts quantized, or all but these."""
        model = self._float if kind == "alone" else self._quantized
        return model.choose([model.choices[place] for place in places])

    @cached_property
    def _float(self) -> _ModelWithChoices:
        return _make_float(self.units, self._new_graph())

    @cached_property
    def _quantized(self) -> _ModelWithChoices:
        return _make_quantized(self.units, self._new_graph())

    def _new_graph(self) -> MergedGraph:
        nodes = sum(len(cut.float_nodes) + len(cut.nodes) for cut in self.units.cuts)
        # A variant costs a part that is opened and a run of those that follow: about as much.
        return MergedGraph(self.units, most_nodes(nodes))


def most_nodes(nodes: int) -> int:
    """Return how many nodes of both models are in a part, by the number of nodes in all."""
    return max(_MIN_NODES, math.isqrt(2 * nodes))


class _Choice(NamedTuple):
    """What a cut is in a variant, by the names of tensors."""

    replaced: dict[str, str]
    """The tensors in whose place others are read."""
    outputs: dict[str, str]
    """The outputs of the model that are another tensor."""


def _make_float(units: Units, graph: MergedGraph) -> _ModelWithChoices:
    """Return the float model, in which the quantized unit of each cut can be chosen."""
    choices, outputs = [], {}
    for place, paths in enumerate(output_paths(units)):
        for cut in units.cuts[place : place + 1]:
            graph.begin(cut)
            expected = graph.add_float(cut)
            inputs = graph.stand_ins(cut)
            result = graph.add_unit(cut, inputs)
            if cut.codes is not None:
                result = graph.dequantize(cut, result, inputs)
            result = graph.cast(result, cut.float_value.dtype)
            choices.append(_Choice({_name(expected): _name(result)}, {}))
        for path in paths:
            if path.is_computed:
                graph.add(path.float_nodes, graph.floats)
                outputs[path.name] = graph.readable(graph.floats[path.float_value])
    return _ModelWithChoices(graph, outputs, choices)


def _make_quantized(units: Units, graph: MergedGraph) -> _ModelWithChoices:
    """Return the quantized model, in which the float unit of each cut can be chosen."""
    choices: list[_Choice] = []
    outputs: dict[str, ir.Value] = {}
    numbers: Known = dict(graph.floats)
    results: dict[ir.Value, tuple[_Choice, ir.Value]] = {}
    read_by_float: list[tuple[_Choice, ir.Value, ir.Value]] = []
    for place, paths in enumerate(output_paths(units)):
        for cut in units.cuts[place : place + 1]:
            graph.begin(cut)
            graph.add_quantized(cut)
            known = {value: numbers[value] for value in cut.float_inputs if value in numbers}
            graph.add(cut.float_nodes, known)
            result = known[cut.float_value]
            numbers[cut.float_value] = _number(graph, cut)
            stand_in = graph.stand_in(cut, result, graph.quantized)
            choice = _Choice({_name(numbers[cut.float_value]): _name(result)}, {})
            choice.replaced[_name(graph.quantized[cut.value])] = _name(stand_in)
            choices.append(choice)
            results[cut.value] = choice, result
            for value in _read_by_float(units, cut):
                read_by_float.append((choice, value, graph.cast(result, value.dtype)))
        for path in paths:
            if path.is_computed:
                graph.add(path.nodes, graph.quantized)
                outputs[path.name] = graph.readable(graph.quantized[path.value])
                origin = units.graph.source_of(path.value)
                if origin in results:  # a float result leaves the model as it is
                    choice, result = results[origin]
                    choice.outputs[path.name] = _name(graph.readable(result))
    for choice, value, number in read_by_float:
        if value in graph.quantized:
            choice.replaced[_name(graph.quantized[value])] = _name(number)
    return _ModelWithChoices(graph, outputs, choices)


def _number(graph: MergedGraph, cut: Cut) -> ir.Value:
    """Return a cut of the quantized model as a float node reads it: through its pair."""
    result = graph.quantized[cut.measured]
    if cut.codes is not None:
        result = graph.dequantize(cut, result, graph.quantized)
    return graph.cast(result, cut.float_value.dtype)


class _ModelWithChoices:
    """A model in parts, some of whose tensors another one can be chosen for."""

    def __init__(
        self, graph: MergedGraph, outputs: Mapping[str, ir.Value], choices: list[_Choice]
    ) -> None:
        model, self._parts = graph.finish(outputs.values())
        self.choices = choices
        self._extractor = Extractor(model)
        starts = {part.first: place for place, part in enumerate(self._parts)}
        self._part_of: dict[str, int] = {}
        current = 0
        for node in model.graph:
            current = starts.get(node.name or "", current)
            self._part_of.update((_name(value), current) for value in node.outputs)
        self._outputs: list[dict[str, str]] = [{} for _ in self._parts]
        for output, value in outputs.items():
            self._outputs[self._part_of[_name(value)]][output] = _name(value)
        self._passing = {name for part in self._parts for name in part.inputs}
        models = [self._extract(place, _Choice({}, {})) for place in range(len(self._parts))]
        self.chain = PartChain(models)
        self._readers: dict[str, set[int]] = defaultdict(set)
        """Tensor -> the parts that make it and read it."""
        for place, part in enumerate(models):
            for node in part.source.model.graph:
                for read in outer_inputs(node):
                    if not read.is_graph_input():
                        self._readers[_name(read)].add(place)

    def choose(self, choices: Collection[_Choice]) -> dict[int, PartModel]:
        """Return the parts that differ where these tensors are chosen."""
        chosen = _Choice({}, {})
        for choice in choices:
            chosen.replaced.update(choice.replaced)
            chosen.outputs.update(choice.outputs)
        others = {*chosen.replaced.values(), *chosen.outputs.values()}
        differing = {self._part_of[name] for name in others}
        differing.update(*(self._readers[old] for old in chosen.replaced))
        found: dict[int, PartModel] = {}
        needed: dict[int, set[str]] = defaultdict(set)
        for place in sorted(differing, reverse=True):
            earlier = sorted(name for name in others if self._part_of[name] < place)
            found[place] = self._extract(place, chosen, earlier, sorted(needed[place]))
            read = {_name(value) for value in found[place].source.model.graph.inputs}
            for name in read.intersection(earlier):
                needed[self._part_of[name]].add(name)
        return found

    def _extract(
        self, place: int, choice: _Choice, earlier: Sequence[str] = (), needed: Sequence[str] = ()
    ) -> PartModel:
        """Return a part as it is for a choice.

        `earlier` are tensors of earlier parts that it may read besides, `needed` those that later
        ones do.
        """
        part = self._parts[place]
        replaced = {old: new for old, new in choice.replaced.items() if old not in part.inputs}
        passing = [*(name for name in part.outputs if name in self._passing), *needed]
        outputs = {
            name: choice.outputs.get(name, made) for name, made in self._outputs[place].items()
        }
        wanted = tuple(dict.fromkeys([*passing, *outputs.values()]))
        inputs = (*part.inputs, *earlier)
        model = self._extractor.extract(Part(part.first, inputs, wanted), replaced=replaced)
        model.graph.inputs[:] = [
            value for value in model.graph.inputs if value.uses() or value.is_graph_output()
        ]
        return PartModel(
            PortableModel(model),
            {name: replaced.get(name, name) for name in passing},
            {name: replaced.get(made, made) for name, made in outputs.items()},
        )


def _name(value: ir.Value) -> str:
    return value.name or ""


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
