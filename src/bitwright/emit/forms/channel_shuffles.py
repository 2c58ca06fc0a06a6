"""Channel shuffles between integer convolutions as columns of zeros in those that read them.

    T[:, i] = S[:, order[i]]              what Reshape, Transpose, Reshape, Slice make of a tensor S
    Conv(T, W) = Conv(S, W')              with W'[:, order[i]] = W[:, i], and zeros in between
    Depthwise(T, W)[:, i] = Depthwise(S, W')[:, order[i]]         with W'[order[i]] = W[i]
    Concat(T, y) = Concat(Conv(S, E), y)  with E[i, order[i]] = 1, scale 1: the same bytes

ONNX Runtime's integer convolutions keep images in NHWC (`onnxruntime/core/optimizer/
nhwc_transformer.cc`), so that bytes are brought to NCHW for the Reshape, transposed, and brought
back: a third of ShuffleNetV2's time in integers. Conditions: what moves the bytes has the scale of
S on all pairs, and is read by convolutions and by Concats of channels alone; a depthwise one reads
all channels, and dense ones read its result; `is_faster_unshuffled`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops.integer_kernels import is_depthwise, is_faster_unshuffled
from bitwright.emit.forms.layers import IntegerConv, integer_conv, store
from bitwright.emit.qlinear_graph import PairGraph
from bitwright.emit.quantized import Quantized
from bitwright.graph import MOVES, ChannelReader, channel_readers, constant_of, input_at, maker_of
from bitwright.support.array_types import Array

_PAIR = ("QuantizeLinear", "DequantizeLinear")


def write_channel_shuffles(model: ir.Model) -> int:
    """Let convolutions read tensors in front of channel shuffles; return how many shuffles."""
    graph = PairGraph(model)
    transposes = [node for node in model.graph.all_nodes() if node.op_type == "Transpose"]
    return sum(_write(graph, node) for node in transposes if not node.domain)


def _write(graph: PairGraph, transpose: ir.Node) -> bool:
    first = _first_move(graph, transpose)
    source = None if first is None else first.inputs[0]
    numbers = graph.operand(source)
    if first is None or source is None or numbers is None:
        return False
    shuffle = _Shuffle(graph, source, numbers)
    readers = [*channel_readers(first, shuffle.passes)]
    known = [reader for reader in readers if reader and reader.node.graph is transpose.graph]
    zeros = [count for reader in known if (count := shuffle.zeros(reader)) is not None]
    if len(zeros) < len(readers) or not is_faster_unshuffled(shuffle.channels, sum(zeros)):
        return False
    for reader in known:
        shuffle.change(reader)
    return True


def _first_move(graph: PairGraph, node: ir.Node) -> ir.Node | None:
    """Return the first of the nodes that move what this one moves, behind a pair."""
    value = node.inputs[0]
    numbers = graph.operand(value)
    quantizer = None if numbers is None else numbers.value.producer()
    if quantizer is not None and quantizer.op_type == "QuantizeLinear":
        value = quantizer.inputs[0]
    maker = None if value is None else value.producer()
    if maker is not None and maker.op_type in MOVES and not maker.domain:
        before = _first_move(graph, maker)
        source = None if before is None else graph.operand(before.inputs[0])
        if numbers is None or (source is not None and numbers.means_the_same_as(source)):
            return before
    return None if numbers is None else node


@dataclass(frozen=True, slots=True)
class _Shuffle:
    """A tensor whose channels are moved, and what those that read them afterwards become."""

    graph: PairGraph
    source: ir.Value
    numbers: Quantized
    _picked: dict[bytes, ir.Value] = field(default_factory=dict)

    @property
    def channels(self) -> int:
        assert self.source.shape is not None
        return int(self.source.shape[1])  # type: ignore[arg-type]  # the moves are known by it

    def passes(self, node: ir.Node) -> bool:
        """Whether a node is half of a pair that means the same."""
        found = self.graph.quantized(node, node.inputs[0]) if node.op_type in _PAIR else None
        return found is not None and found.means_the_same_as(self.numbers)

    def zeros(self, reader: ChannelReader) -> int | None:
        """Return how many zeros a reader's form multiplies a pixel; None: it has no form."""
        node, order, graph = reader.node, reader.order, self.graph
        if node.op_type == "Concat":
            operand, rank = graph.operand(node.inputs[reader.place]), len(self.source.shape or ())
            joins_channels = node.attributes.get_int("axis", 0) % rank == 1
            is_integer = operand is not None and graph.result(node.outputs[0]) is not None
            return len(order) * self.channels if is_integer and joins_channels else None
        conv = integer_conv(graph, node) if reader.place == 0 else None
        if conv is None:
            return None
        if conv.group == 1:
            return (self.channels - len(order)) * conv.weight.codes[:, 0].size
        depthwise = is_depthwise(conv.group, conv.channels_in, conv.channels_out)
        is_whole = depthwise and len(order) == self.channels
        return 0 if is_whole and self._convolutions_behind(node) is not None else None

    def change(self, reader: ChannelReader) -> None:
        """Let a node read the tensor in front of the shuffle."""
        node, order = reader.node, reader.order
        if node.op_type == "Concat":
            node.replace_input_with(reader.place, self._pick(node, reader))
            return
        conv = integer_conv(self.graph, node)
        assert conv is not None
        node.replace_input_with(0, self.source)
        if conv.group == 1:
            self._spread_columns(conv, order)
            return
        _reorder_rows(self.graph, node, np.argsort(order))
        for behind in self._convolutions_behind(node) or ():
            self._spread_columns(behind, order)

    def _convolutions_behind(self, node: ir.Node) -> list[IntegerConv] | None:
        """Return the dense convolutions that read an integer result; None: so do others."""
        result = self.graph.result(node.outputs[0])
        assert result is not None  # as it is an integer one
        values = [use.node.outputs[0] for use in result.value.uses()]
        uses = [use for value in values for use in value.uses()]
        convs = [integer_conv(self.graph, use.node) for use in uses if use.idx == 0]
        dense = [conv for conv in convs if conv is not None and conv.group == 1]
        ends = any(value.is_graph_output() for value in (result.value, *values))
        return dense if len(dense) == len(uses) and not ends else None

    def _spread_columns(self, conv: IntegerConv, order: Array) -> None:
        store(self.graph, conv.node, 1, {0: conv.with_columns(self.channels, order)})

    def _pick(self, place: ir.Node, reader: ChannelReader) -> ir.Value:
        """Return channels from a convolution that passes them on, one for all that read them."""
        graph, order, read = self.graph, reader.order, place.inputs[reader.place]
        if (known := self._picked.get(order.tobytes())) is not None:
            return known
        assert read is not None
        name, kernel = f"{read.name}_picked", [1] * (len(self.source.shape or ()) - 2)
        ones = np.zeros((len(order), self.channels, *kernel), np.int8)
        ones[np.arange(len(order)), order] = 1
        picked = graph.insert(
            place,
            "Conv",
            [self.source, graph.stored(place, f"{name}_weight", ones, 1.0, np.zeros((), np.int8))],
            {"kernel_shape": kernel},
            name=name,
            output=name,
            dtype=ir.DataType.FLOAT,
            shape=read.shape,
        )
        found = graph.paired(place, name, picked, graph.pair(self.numbers))
        return self._picked.setdefault(order.tobytes(), found)


def _reorder_rows(graph: PairGraph, conv: ir.Node, order: Array) -> None:
    """Give a convolution its filters and its bias in another order."""
    for index in (1, 2):
        dequantizer = maker_of(input_at(conv, index))
        if dequantizer is not None:
            arrays = [constant_of(number) for number in dequantizer.inputs]
            rows = {p: a[order] for p, a in enumerate(arrays) if a is not None and a.size > 1}
            store(graph, conv, index, rows)
