"""Variants of a model, with one node quantized or all but some, merged into one graph.

What two variants have in common is in the graph once. A variant that differs at one node shares
all that comes before it: with n nodes, all variants together cost about n / 2 runs, not n.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from bitwright.assess.comparison.matching import is_float
from bitwright.assess.comparison.merged_graph import Known, MergedGraph
from bitwright.assess.comparison.units import Cut, Units, node_places, nodes_between, outer_inputs
from bitwright.graph.quantized_ops import DEQUANTIZERS, QUANTIZERS

__all__ = ["Key", "Kind", "Variants"]

Kind = Literal["alone", "without"]
Key = str | tuple[int, ...]
"""Which variant: "float", "quantized", or the places of its cuts."""


@dataclass(frozen=True, slots=True)
class _OutputPath:
    """An output of both models, and the nodes that lead to it from the last cuts."""

    float_value: ir.Value
    float_nodes: tuple[ir.Node, ...]
    value: ir.Value
    nodes: tuple[ir.Node, ...]


class Variants:
    """One merged graph in the making: variants are added until it is large enough."""

    def __init__(self, units: Units, kind: Kind) -> None:
        self._units = units
        self._kind = kind
        self._merged = MergedGraph(units)
        self._paths = _paths(units)
        self._float: Known = self._merged.start(units.float_model)
        self._quantized: Known = self._merged.start(units.quantized)
        self._merged.add(units.float_model.graph, self._float)
        if kind == "without":
            self._merged.add(units.quantized.graph, self._quantized)
        else:
            # What a quantized unit reads among float ones.
            for cut in units.cuts:
                value = self._float[cut.float_value]
                self._quantized[cut.value] = self._merged.stand_in(cut, value, self._quantized)
        self._started = self._merged.weight_bytes
        self.outputs: dict[Key, tuple[ir.Value, ...]] = {
            "float": tuple(self._float[path.float_value] for path in self._paths)
        }
        if kind == "without":
            self.outputs["quantized"] = tuple(self._quantized[t.value] for t in self._paths)

    @property
    def weight_bytes(self) -> int:
        """What the constants weigh that were added with the variants."""
        return self._merged.weight_bytes - self._started

    @property
    def node_count(self) -> int:
        """How many nodes the merged graph has."""
        return self._merged.node_count

    @property
    def output_names(self) -> list[str]:
        """What the outputs of a variant are called in the model."""
        return [path.float_value.name or "" for path in self._paths]

    def add(self, indices: Sequence[int]) -> None:
        """Add a variant: with only these cuts quantized, or with all but these."""
        cuts = [self._units.cuts[index] for index in indices]
        if self._kind == "alone":
            made = tuple(value for cut in cuts for value in self._quantized_only(cut))
        else:
            made = tuple(self._without(cuts))
        self.outputs[tuple(indices)] = made

    def finish(self) -> ir.Model:
        """Return the merged model; its outputs are those of all variants."""
        return self._merged.finish(value for values in self.outputs.values() for value in values)

    def _quantized_only(self, cut: Cut) -> Iterator[ir.Value]:
        result = self._merged.add_unit(cut, self._quantized)
        if cut.codes is not None:
            result = self._merged.dequantize(cut, result, self._quantized)
        changed: Known = {cut.float_value: self._merged.cast(result, cut.float_value.dtype)}
        for other in self._units.cuts:
            if (
                other is not cut
                and _reads(other.float_nodes, changed)
                and other.float_value not in changed
            ):
                changed[other.float_value] = self._follow(
                    other.float_nodes, other.float_value, changed, self._float
                )
        for path in self._paths:
            yield self._follow(path.float_nodes, path.float_value, changed, self._float)

    def _without(self, cuts: Sequence[Cut]) -> Iterator[ir.Value]:
        """Yield the outputs of the quantized model with these cuts made by float nodes."""
        numbers: Known = self._merged.start(self._units.float_model)
        changed: Known = {}
        for cut in self._units.cuts:
            if cut in cuts:
                read = cut.float_inputs - numbers.keys() - {cut.float_value}
                for other in self._units.cuts:
                    if other.float_value in read:
                        value = changed.get(other.value, self._quantized[other.value])
                        numbers[other.float_value] = self._numbers(other, value)
                self._merged.add(cut.float_nodes, numbers)
                result = numbers[cut.float_value]
                changed[cut.value] = self._merged.stand_in(cut, result, self._quantized)
                for value in self._read_by_float(cut):
                    changed[value] = self._merged.cast(result, value.dtype)
            elif _reads(cut.nodes, changed) and cut.value not in changed:
                changed[cut.value] = self._follow(cut.nodes, cut.value, changed, self._quantized)
        kept = {cut.value: cut for cut in cuts}
        for path in self._paths:
            origin = self._units.graph.origin(path.value)
            if origin in kept:
                yield numbers[kept[origin].float_value]  # a float result leaves the model as it is
            else:
                yield self._follow(path.nodes, path.value, changed, self._quantized)

    def _read_by_float(self, cut: Cut) -> Iterator[ir.Value]:
        """Yield the dequantized forms of a cut that float nodes read, and nobody else."""
        graph = self._units.graph
        for use in cut.value.uses():
            for value in use.node.outputs if use.node.op_type in QUANTIZERS else ():
                for reader in (next_use.node for next_use in value.uses()):
                    result = reader.outputs[0]
                    if reader.op_type in DEQUANTIZERS and not any(
                        graph.works_on_integers(end.node) for end in result.uses()
                    ):
                        yield result

    def _numbers(self, cut: Cut, value: ir.Value) -> ir.Value:
        """Return a cut of the quantized model as a float node reads it: before any rounding."""
        if cut.is_integer:
            value = self._merged.dequantize(cut, value, self._quantized)
        value = self._merged.cast(value, cut.float_value.dtype)
        if not cut.is_integer and (clips := cut.clips):
            first = clips[0].inputs[0]
            assert first is not None
            known: Known = {first: value}
            self._merged.add(clips, known)
            value = known[cut.float_value]
        return value

    def _follow(
        self, nodes: Sequence[ir.Node], value: ir.Value, changed: Known, base: Known
    ) -> ir.Value:
        """Return a tensor after a change before it."""
        if value in changed:
            return changed[value]
        if not _reads(nodes, changed):
            return base[value]
        own = {output for node in nodes for output in node.outputs}
        borders = {
            v: base[v] for node in nodes for v in outer_inputs(node) if v in base and v not in own
        }
        known: Known = ChainMap({}, changed, borders)
        self._merged.add(nodes, known)
        return known[value]


def _reads(nodes: Sequence[ir.Node], changed: Known) -> bool:
    return any(value in changed for node in nodes for value in outer_inputs(node))


def _paths(units: Units) -> list[_OutputPath]:
    float_borders = {*units.float_model.graph.inputs, *(cut.float_value for cut in units.cuts)}
    borders = {*units.quantized.graph.inputs, *(cut.value for cut in units.cuts)}
    float_places, places = node_places(units.float_model), node_places(units.quantized)
    given = {value.name: value for value in units.quantized.graph.outputs}
    paths = []
    for output in units.float_model.graph.outputs:
        other = given.get(output.name)
        if other is None or not is_float(output):
            continue
        if output.producer() is None or other.producer() is None:
            continue
        paths.append(
            _OutputPath(
                output,
                ()
                if output in float_borders
                else tuple(nodes_between(output, float_borders, float_places)),
                other,
                () if other in borders else tuple(nodes_between(other, borders, places)),
            )
        )
    return paths
