"""Variants of a model in which one node is quantized, or all but some, merged into one graph.

What two variants have in common is in the graph once. A variant that differs at one node shares
all that comes before it: with n nodes, all variants together cost about n / 2 runs, not n.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from bitwright.assess.comparison.merged_graph import Known, MergedGraph
from bitwright.assess.comparison.side_by_side import float_in_place
from bitwright.assess.comparison.units import Cut, Units, nodes_between, outer_inputs
from bitwright.graph.quantized_ops import DEQUANTIZERS, QUANTIZERS

__all__ = ["Key", "Kind", "Variants"]

Kind = Literal["alone", "without"]
Key = str | tuple[int, ...]
"""Which variant: "float", "quantized", or the places of its cuts."""


@dataclass(frozen=True, slots=True)
class _Tail:
    """An output of both models, and the nodes that lead to it from the last cuts."""

    plain: ir.Value
    plain_nodes: tuple[ir.Node, ...]
    value: ir.Value
    nodes: tuple[ir.Node, ...]


class Variants:
    """One merged graph in the making: variants are added until it is large enough."""

    def __init__(self, units: Units, kind: Kind) -> None:
        self._units = units
        self._kind = kind
        self._merged = MergedGraph(units)
        self._tails = _tails(units)
        self._plain: Known = self._merged.start(units.plain)
        self._quantized: Known = self._merged.start(units.quantized)
        self._merged.add(units.plain.graph, self._plain)
        if kind == "without":
            self._merged.add(units.quantized.graph, self._quantized)
        else:
            # What a quantized unit reads among float ones.
            for cut in units.cuts:
                value = self._plain[cut.plain]
                self._quantized[cut.value] = self._in_place(cut, value, self._quantized)
        self._started = self._merged.weight_bytes
        self.outputs: dict[Key, tuple[ir.Value, ...]] = {
            "float": tuple(self._plain[tail.plain] for tail in self._tails)
        }
        if kind == "without":
            self.outputs["quantized"] = tuple(self._quantized[t.value] for t in self._tails)

    @property
    def weight_bytes(self) -> int:
        """What the constants weigh that were added with the variants."""
        return self._merged.weight_bytes - self._started

    @property
    def node_count(self) -> int:
        """How many nodes the merged graph has."""
        return self._merged.node_count

    def add(self, indices: Sequence[int]) -> None:
        """Add a variant: with only these cuts quantized, or with all but these."""
        cuts = [self._units.cuts[index] for index in indices]
        if self._kind == "alone":
            made = tuple(value for cut in cuts for value in self._alone(cut))
        else:
            made = tuple(self._without(cuts))
        self.outputs[tuple(indices)] = made

    def finish(self) -> ir.Model:
        """Return the merged model; its outputs are those of all variants."""
        return self._merged.finish(value for values in self.outputs.values() for value in values)

    def _alone(self, cut: Cut) -> Iterator[ir.Value]:
        known: Known = dict(self._quantized)
        del known[cut.value]
        self._merged.add(cut.nodes, known)
        result = self._merged.measured(cut, known)
        if cut.codes is not None:
            result = self._merged.dequantize(cut, result, known)
        changed: Known = {cut.plain: self._merged.cast(result, cut.plain.dtype)}
        for other in self._units.cuts:
            if (
                other is not cut
                and _reads(other.plain_nodes, changed)
                and other.plain not in changed
            ):
                changed[other.plain] = self._follow(
                    other.plain_nodes, other.plain, changed, self._plain
                )
        for tail in self._tails:
            yield self._follow(tail.plain_nodes, tail.plain, changed, self._plain)

    def _without(self, cuts: Sequence[Cut]) -> Iterator[ir.Value]:
        """Yield the outputs of the quantized model with these cuts made by float nodes."""
        numbers: Known = self._merged.start(self._units.plain)
        changed: Known = {}
        for cut in self._units.cuts:
            if cut in cuts:
                read = cut.plain_inputs
                for other in self._units.cuts:
                    if other.plain in read and other.plain not in numbers and other is not cut:
                        value = changed.get(other.value, self._quantized[other.value])
                        numbers[other.plain] = self._numbers(other, value)
                self._merged.add(cut.plain_nodes, numbers)
                changed[cut.value] = self._in_place(cut, numbers[cut.plain], self._quantized)
                for value in self._read_by_float(cut):
                    changed[value] = self._merged.cast(numbers[cut.plain], value.dtype)
            elif _reads(cut.nodes, changed) and cut.value not in changed:
                changed[cut.value] = self._follow(cut.nodes, cut.value, changed, self._quantized)
        kept = {cut.value: cut for cut in cuts}
        for tail in self._tails:
            origin = self._units.graph.origin(tail.value)
            if origin in kept:
                yield numbers[kept[origin].plain]  # a float result leaves the model as it is
            else:
                yield self._follow(tail.nodes, tail.value, changed, self._quantized)

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
        value = self._merged.cast(value, cut.plain.dtype)
        if not cut.is_integer and (clips := cut.clips):
            first = clips[0].inputs[0]
            assert first is not None
            known: Known = {first: value}
            self._merged.add(clips, known)
            value = known[cut.plain]
        return value

    def _in_place(self, cut: Cut, value: ir.Value, known: Known) -> ir.Value:
        return float_in_place(self._merged, cut, value, known)

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


def _tails(units: Units) -> list[_Tail]:
    plain_borders = {*units.plain.graph.inputs, *(cut.plain for cut in units.cuts)}
    borders = {*units.quantized.graph.inputs, *(cut.value for cut in units.cuts)}
    given = {value.name: value for value in units.quantized.graph.outputs}
    tails = []
    for output in units.plain.graph.outputs:
        other = given.get(output.name)
        is_float = output.dtype is not None and output.dtype.is_floating_point()
        if other is None or not is_float or output.producer() is None or other.producer() is None:
            continue
        tails.append(
            _Tail(
                output,
                () if output in plain_borders else tuple(nodes_between(output, plain_borders)),
                other,
                () if other in borders else tuple(nodes_between(other, borders)),
            )
        )
    return tails
