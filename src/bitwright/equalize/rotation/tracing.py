"""The trace of a rotation: tensors, constants and caches that change with one rotated tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import onnx_ir as ir

from bitwright.equalize.rotation.operands import Refused, Span, constant_behind, describe, width_of
from bitwright.graph.constants import input_at


class Slot(NamedTuple):
    """An input or an output of a node."""

    place: int
    is_output: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """The gains, and the offsets, that products behind them take over."""

    node: ir.Node
    gains: int
    offsets: int | None
    """The inputs of the node that these are."""
    products: tuple[ir.Node, ...]


@dataclass(slots=True, eq=False)
class Tracing:
    """Tensors, constants and caches that change with one rotated tensor."""

    block: int
    """The size of what is rotated: the last axis of each tensor is made of such blocks."""
    spans: dict[ir.Value, Span] = field(default_factory=dict)
    edits: dict[tuple[ir.Node, int], list[tuple[int, Span]]] = field(default_factory=dict)
    """Constant input of a node -> along which axes it is rotated."""
    folds: list[Fold] = field(default_factory=list)
    keep_mean: bool = False
    """Whether R has to keep the mean of what it rotates."""
    reads: int = 0
    """Products with a constant that read what is rotated."""
    writes: int = 0
    """Products with a constant that make it."""
    caches: set[ir.Value] = field(default_factory=set)
    """Inputs of the model, and the outputs that are to be fed to them in the next run."""
    todo: list[ir.Value] = field(default_factory=list)

    def visit(self, value: ir.Value, span: Span) -> None:
        """Add a tensor to the rotated ones."""
        if value in self.spans:
            if self.spans[value] != span:
                raise Refused(f"the parts of {value.name!r} are read in different ways")
            return
        if (span.stop - span.start) % self.block:
            raise Refused(f"{value.name!r} is not made of blocks of {self.block}")
        self.spans[value] = span
        self.todo.append(value)

    def whole(self, value: ir.Value | None) -> Span:
        """Return the span of a whole last axis."""
        width = width_of(value)
        if width is None or width % self.block:
            name = None if value is None else value.name
            raise Refused(f"the width of {name!r} is unknown, or none of its own")
        return Span(0, width)

    def link_input(self, node: ir.Node, index: int, span: Span) -> None:
        """Rotate an input of a node: a constant, or a computed tensor."""
        value = input_at(node, index)
        if value is None:
            raise Refused(f"{describe(node)} has no input {index}")
        if constant_behind(value) is not None:
            self.edit(node, index, -1, span)
        else:
            self.visit(value, span)

    def link(self, node: ir.Node, index: int, span: Span) -> None:
        """Rotate an input of a node, and with it the result."""
        self.link_input(node, index, span)
        self.visit(node.outputs[0], span)

    def link_summand(self, node: ir.Node, index: int, span: Span) -> None:
        """Rotate the other summand of a rotated sum."""
        value, result = node.inputs[index], node.outputs[0]
        width = width_of(value)
        if width is not None and width == width_of(result):
            self.link_input(node, index, span)
        elif width == 1 and span == self.whole(result):
            self.keep_mean = True  # the same number for all channels, which R has to leave alone
        else:
            raise Refused(f"{describe(node)} adds a tensor of another width")

    def note_cache(self, past: ir.Value | None, present: ir.Value) -> None:
        """Note a cache: an output of the model that extends one of its inputs."""
        if past is not None and past.is_graph_input() and present.is_graph_output():
            self.caches |= {past, present}

    def edit(self, node: ir.Node, index: int, axis: int, span: Span) -> None:
        """Rotate a constant along an axis."""
        steps = self.edits.setdefault((node, index), [])
        if (axis, span) not in steps:
            steps.append((axis, span))


Rule = Callable[[Tracing, ir.Node, Slot, Span], None]
"""What an operator does when the tensor at one of its slots is rotated there."""


def expect(
    node: ir.Node, slot: Slot, *, inputs: tuple[int, ...], outputs: tuple[int, ...] = (0,)
) -> None:
    """Refuse what is rotated at another place of a node."""
    if slot.place not in (outputs if slot.is_output else inputs):
        verb = "makes" if slot.is_output else "reads"
        raise Refused(f"{describe(node)} {verb} it at place {slot.place}")
