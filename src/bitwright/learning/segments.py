"""Cut a graph into segments: consecutive layers whose weights are learned together."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import onnx_ir as ir

from bitwright.decide.ops import op_types
from bitwright.graph import opset_of
from bitwright.recipe import FineTuning
from bitwright.run import Part, cut_model

ACTIVATIONS = op_types(lambda op: op.activation == "whole")
"""What belongs to the layer before it: its error is what the next layer sees."""
ELEMENTWISE = op_types(lambda op: op.activation and op.elementwise)
"""What such activations are made of, where an exporter has no operator for them."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Nodes that are learned together, in graph order, and what passes in and out of them."""

    nodes: tuple[ir.Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def first(self) -> str:
        """The name of the first node."""
        return self.nodes[0].name or ""

    @property
    def reads(self) -> tuple[str, ...]:
        """Everything that its nodes read, constants too."""
        read = (value.name or "" for node in self.nodes for value in node.inputs if value)
        return tuple(dict.fromkeys(read))


def segments_to_learn(
    model: ir.Model, learning: Collection[str], method: FineTuning
) -> list[Segment]:
    """Return the segments that hold the learning nodes, as a method asks for them (needs torch).

    A segment with a node that torch cannot run is cut further.
    """
    from bitwright.learning.torch_graph.language_models import LANGUAGE_OPS
    from bitwright.learning.torch_graph.table import why_not

    opset = opset_of(model)

    def supported(node: ir.Node) -> bool:
        # Those have outputs beside the first, such as caches, which segments do not learn towards.
        return node.op_type not in LANGUAGE_OPS and why_not(node, opset) is None

    return find_segments(
        model,
        learning,
        min_weights=method.min_segment_weights,
        max_weights=method.max_segment_weights,
        layers=method.scope == "layer",
        supported=supported,
    )


def find_segments(
    model: ir.Model,
    learning: Collection[str],
    *,
    min_weights: int = 1,
    max_weights: int = 8,
    layers: bool = False,
    supported: Callable[[ir.Node], bool] = lambda node: True,
) -> list[Segment]:
    """Return the segments that hold the learning nodes of the main graph, by name, in order.

    A segment ends where a single tensor crosses, of those that learning can change at all: what is
    computed beside the layers, such as an attention mask, crosses every cut. Where this makes a
    segment of more than `max_weights` learning nodes, or one with a node that is not `supported`,
    the longest skip connections, such as those from a backbone to a neck, do not count. Elementwise
    nodes behind a segment belong to it. Consecutive segments are joined while they have no more
    than `min_weights` learning nodes together. With `layers`, each learning node is a segment, with
    its activation.
    """
    nodes = list(model.graph)
    flow = _Flow(model, nodes, learning)
    if layers:
        return flow.layers()
    members = flow.learning_between

    def fits(start: int, end: int) -> bool:
        found = members(start, end)
        return not found or (
            len(found) <= max_weights and all(supported(nodes[i]) for i in flow.needed(start, end))
        )

    def belong_together(before: tuple[int, int], behind: tuple[int, int]) -> bool:
        counts = [len(members(*span)) for span in (before, behind)]
        # What has no weights is only joined to lead on to something that has.
        joined = counts[0] > 0 and sum(counts) + (not counts[1]) <= min_weights
        return joined and fits(before[0], behind[1])

    return flow.segments(_joined(flow.spans(fits), belong_together), supported)


def _joined(
    spans: Iterable[tuple[int, int]], together: Callable[[tuple[int, int], tuple[int, int]], bool]
) -> list[tuple[int, int]]:
    """Return spans, those that belong together made one."""
    found: list[tuple[int, int]] = []
    for span in spans:
        if found and together(found[-1], span):
            found[-1] = found[-1][0], span[1]
        else:
            found.append(span)
    return found


class _Flow:
    """Producers and consumers of tensors, by index in the graph."""

    def __init__(
        self, model: ir.Model, nodes: Sequence[ir.Node], learning: Collection[str]
    ) -> None:
        self._nodes = nodes
        names = [node.name or "" for node in nodes]
        self._learning = [index for index, name in enumerate(names) if name in learning]
        # A part for each node also knows what the bodies of If and Loop read.
        parts: list[Part] = cut_model(model, names)
        self._reads = [part.inputs for part in parts]
        self._graph_outputs = {value.name for value in model.graph.outputs}
        self._consumers: dict[str, list[int]] = {}
        for index, read in enumerate(self._reads):
            for name in read:
                self._consumers.setdefault(name, []).append(index)
        self._producer = {v.name or "": i for i, node in enumerate(nodes) for v in node.outputs}
        self._learned: set[str] = set()
        for index, node in enumerate(nodes):
            if names[index] in learning or self._learned.intersection(self._reads[index]):
                self._learned.update(value.name or "" for value in node.outputs)
        # Each edge of a tensor from the node that makes or reads it to the next that reads it.
        self._edges = [
            edge
            for name in self._learned
            for edge in pairwise(
                [self._producer[name], *sorted(set(self._consumers.get(name, ())))]
            )
        ]

    def layers(self) -> list[Segment]:
        """Return each learning node with its activation."""
        pairs = ((index, self.activation_of(index)) for index in self._learning)
        return [self.segment([i for i in pair if i is not None]) for pair in pairs]

    def learning_between(self, start: int, end: int) -> list[int]:
        """Return the learning nodes from one place to another."""
        return self._learning[bisect_left(self._learning, start) : bisect_left(self._learning, end)]

    def spans(self, fits: Callable[[int, int], bool]) -> list[tuple[int, int]]:
        """Return the graph in spans that fit, or are a single node, from place to place."""
        found = []
        count = len(self._nodes)
        pending = [(0, count, count)]
        while pending:
            start, end, longest = pending.pop()
            cuts = self._cut_points(start, end, longest)
            if not cuts and end - start > 1 and not fits(start, end):
                while not cuts:  # at the latest where no edge counts
                    longest = self._next_longest(start, end, longest)
                    cuts = self._cut_points(start, end, longest)
            if cuts:
                parts = zip([start, *cuts], [*cuts, end], strict=True)
                pending += reversed([(first, last, longest) for first, last in parts])
            else:
                found.append((start, end))
        return found

    def _cut_points(self, start: int, end: int, longest: int) -> list[int]:
        """Return the places in a span that at most one tensor crosses; long edges do not count."""
        changes = [0] * (end - start + 1)
        for since, until in self._edges:
            if until - since <= longest and since < end and until > start:
                changes[max(since + 1 - start, 0)] += 1
                if until + 1 <= end:
                    changes[until + 1 - start] -= 1
        crossing = list(accumulate(changes))
        return [place for place in range(start + 1, end) if crossing[place - start] <= 1]

    def _next_longest(self, start: int, end: int, longest: int) -> int:
        """Return the longest edge across a span that is shorter than its longest."""
        lengths = {
            until - since
            for since, until in self._edges
            if until - since <= longest and since + 1 < end and until > start
        }
        return max(lengths - {max(lengths, default=0)}, default=0)

    def segments(
        self, spans: Iterable[tuple[int, int]], supported: Callable[[ir.Node], bool]
    ) -> list[Segment]:
        """Return the spans with learning nodes, each with the elementwise nodes behind it."""
        found: list[list[int]] = []
        for start, end in spans:
            if self.learning_between(start, end):
                found.append(self.needed(start, end))
            elif found and self.continues(found[-1], range(start, end), supported):
                found[-1] += range(start, end)
        return [self.segment(members) for members in found]

    def needed(self, start: int, end: int) -> list[int]:
        """Return the nodes of a span that learning changes, and those that they need in it."""
        kept: set[int] = set()
        for index in reversed(range(start, end)):
            made = {value.name or "" for value in self._nodes[index].outputs}
            wanted = any(kept.intersection(self._consumers.get(name, ())) for name in made)
            if wanted or made & self._learned:
                kept.add(index)
        return sorted(kept)

    def continues(
        self, segment: Sequence[int], places: Iterable[int], supported: Callable[[ir.Node], bool]
    ) -> bool:
        """Whether nodes behind a segment take what it gives further, and what was there before it.

        What else they read must be known before the segment is learned, and may not change.
        """
        made = {value.name or "" for i in segment for value in self._nodes[i].outputs}
        for place in places:
            node, read = self._nodes[place], set(self._reads[place])
            if node.op_type not in ELEMENTWISE or not supported(node):
                return False
            changing = self._learned & read
            if not changing or changing - made:
                return False
            if any(self._producer.get(name, -1) > segment[0] for name in read - made):
                return False
            made.update(value.name or "" for value in node.outputs)
        return True

    def activation_of(self, index: int) -> int | None:
        """Return the activation behind a node, if it is the only consumer of its result."""
        names = [value.name or "" for value in self._nodes[index].outputs]
        readers = {reader for name in names for reader in self._consumers.get(name, ())}
        if len(readers) != 1 or self._graph_outputs.intersection(names):
            return None
        reader = readers.pop()
        return reader if self._nodes[reader].op_type in ACTIVATIONS else None

    def segment(self, members: Sequence[int]) -> Segment:
        """Return these nodes with their inputs and outputs."""
        inside = set(members)
        made = {v.name or "" for i in members for v in self._nodes[i].outputs}
        inputs = dict.fromkeys(n for i in members for n in self._reads[i] if n not in made)
        outputs = [
            name
            for i in members
            for name in (v.name or "" for v in self._nodes[i].outputs)
            if name in self._graph_outputs
            or any(r not in inside for r in self._consumers.get(name, ()))
        ]
        # Outputs that learning cannot change are not compared.
        targets = tuple(name for name in outputs if name in self._learned)
        return Segment(tuple(self._nodes[i] for i in members), tuple(inputs), targets)
