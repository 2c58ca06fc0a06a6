"""Channels of zeros that tensors between integer convolutions get, for kernels that want more.

Tensors that nodes tie together channel by channel (elementwise, pools, depthwise convolutions) get
equally many; all who read or write one of them must be known to work channel by channel. Behind a
Concat, the zeros stand where its inputs have them. `padded_channels` says how many are worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import OPERATORS
from bitwright.decide.ops.integer_kernels import is_depthwise, padded_channels
from bitwright.graph.constants import constant_of, input_at, is_constant
from bitwright.support.array_types import Array

_PAIR = ("QuantizeLinear", "DequantizeLinear")


class Convolved(NamedTuple):
    """Groups and channels of an integer convolution."""

    group: int
    channels_in: int
    channels_out: int


class Layout(NamedTuple):
    """Where the channels of a tensor are among those with zeros."""

    size: int
    """How many there are with the zeros."""
    positions: Array

    @property
    def is_padded(self) -> bool:
        """Whether there are zeros."""
        return self.size > len(self.positions)

    def fill(self, array: Array, number: float) -> Array:
        """Return an array with a row for every channel, the added ones of one number."""
        wide = np.full((self.size, *array.shape[1:]), number, array.dtype)
        wide[self.positions] = array
        return wide


@dataclass
class _Group:
    """Tensors that have their channels in common."""

    values: list[ir.Value]
    channels: int = 0
    depthwise: bool = False
    is_fixed: bool = False
    """Whether somebody reads or writes them who needs the channels as they are."""
    parts: list[ir.Value] = field(default_factory=list)
    """What the Concat reads that writes one of them; all of what several read, if it is fixed."""

    @property
    def padded(self) -> int:
        """Number of channels to read and write them with, where these are no parts."""
        if self.is_fixed or not self.channels:
            return self.channels
        return padded_channels(self.channels, depthwise=self.depthwise)


@dataclass
class ChannelTies:
    """Which tensors must have equally many channels, and how many that is."""

    _groups: dict[ir.Value, _Group] = field(default_factory=dict)

    @classmethod
    def of_nodes(
        cls, nodes: Iterable[ir.Node], convolved: Callable[[ir.Node], Convolved | None]
    ) -> ChannelTies:
        """Return the ties of nodes, of which some run as integer convolutions."""
        ties = cls()
        for node in nodes:
            ties._add(node, convolved(node))
        ties._fix_parts()
        return ties

    def _of(self, value: ir.Value) -> _Group:
        """Return the group of a tensor."""
        if value not in self._groups:
            self._groups[value] = _Group([value])
            edge = value.is_graph_input() or value.is_graph_output() or is_constant(value)
            self._groups[value].is_fixed = edge or value.shape is None or len(value.shape) < 3
        return self._groups[value]

    def padded(self) -> Iterator[tuple[ir.Value, int]]:
        """Return the tensors that get more channels, and how many they have then."""
        for value, group in self._groups.items():
            if group.channels and (layout := self.layout(value)).is_padded:
                yield value, layout.size

    def size(self, value: ir.Value | None) -> int:
        """Return how many channels a tensor is to have; 0: that is not known."""
        return self.layout(value).size if value in self._groups else 0

    def layout(self, value: ir.Value) -> Layout:
        """Return where the channels of a tensor are to be."""
        group = self._of(value)
        if group.is_fixed or not group.parts:
            return Layout(group.padded, np.arange(group.channels))
        layouts = [self.layout(part) for part in group.parts]
        starts = accumulate((layout.size for layout in layouts), initial=0)
        positions = [start + one.positions for start, one in zip(starts, layouts, strict=False)]
        return Layout(sum(one.size for one in layouts), np.concatenate(positions))

    def _fix_parts(self) -> None:
        """Keep the channels of parts where those of the whole are kept."""
        waiting = [group for group in self._groups.values() if group.is_fixed]
        for group in waiting:
            parts = [part for part in map(self._of, group.parts) if not part.is_fixed]
            for part in parts:
                part.is_fixed = True
            waiting += parts

    def _add(self, node: ir.Node, conv: Convolved | None) -> None:
        """Take in what a node says about the tensors that it reads and writes."""
        if conv is not None and self._add_conv(node, conv):
            return
        values = [value for value in (*node.inputs, *node.outputs) if value is not None]
        tied = _tied(node)
        if tied is not None:
            self._tie(tied)
        elif not self._join(node, values):
            for value in values:
                self._of(value).is_fixed = True

    def _join(self, node: ir.Node, values: Sequence[ir.Value]) -> bool:
        """Take in a Concat of channels; return whether the node is one."""
        found = [_channels(value) for value in values]
        ranks = {rank for rank, _ in filter(None, found)}
        if node.op_type != "Concat" or node.domain or None in found or len(ranks) > 1:
            return False
        if node.attributes.get_int("axis", 0) % ranks.pop() != 1:
            return False
        for value, (_, channels) in zip(values, filter(None, found), strict=True):
            self._of(value).channels = channels
        *parts, whole = values
        self._of(whole).parts = parts
        return True

    def _add_conv(self, node: ir.Node, conv: Convolved) -> bool:
        depthwise = is_depthwise(*conv)
        source, result = node.inputs[0], node.outputs[0]
        if source is None or (conv.group > 1 and not depthwise):
            return False
        if depthwise:
            self._tie([source, result])
        for value, channels in ((source, conv.channels_in), (result, conv.channels_out)):
            group = self._of(value)
            group.channels = channels
            group.depthwise |= depthwise
        return True

    def _tie(self, values: Iterable[ir.Value]) -> None:
        groups = {id(group): group for value in values for group in [self._of(value)]}
        first, *others = groups.values()
        for other in others:
            first.values += other.values
            first.channels = max(first.channels, other.channels)
            first.depthwise |= other.depthwise
            first.is_fixed |= other.is_fixed or bool(first.parts and other.parts)
            first.parts = [*first.parts, *other.parts]
            for value in other.values:
                self._groups[value] = first


def _tied(node: ir.Node) -> list[ir.Value] | None:
    """Return the tensors that a node works on channel by channel; None where it does something
    else with them, or where that is not known."""
    rule, source = OPERATORS.get(node.op_type), input_at(node, 0)
    if node.domain or source is None or len(node.outputs) != 1:
        return None
    result = node.outputs[0]
    if node.op_type in _PAIR:
        scale = constant_of(node.inputs[1])
        return [source, result] if scale is not None and scale.size == 1 else None
    if rule is None or not (rule.elementwise or rule.pool):
        return None
    if rule.elementwise != "broadcast":
        return [source, result]
    read = [value for value in node.inputs if value is not None and not _is_single(value)]
    channels = {_channels(value) for value in (*read, result)}
    return [*read, result] if len(channels) == 1 and None not in channels else None


def _is_single(value: ir.Value) -> bool:
    """Whether a value is one number, which is the same for every channel."""
    return value.shape is not None and all(size == 1 for size in value.shape)


def _channels(value: ir.Value) -> tuple[int, int] | None:
    """Return the rank and the number of channels of a value."""
    if value.shape is None or len(value.shape) < 3 or not isinstance(value.shape[1], int):
        return None
    return len(value.shape), value.shape[1]
