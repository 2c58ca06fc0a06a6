"""Channels of zeros, so that integer convolutions read and write as many as their kernels want.

A convolution that writes a tensor gets rows of zeros, one that reads it columns of zeros, a
depthwise one filters of zeros. What stands in an added channel is multiplied by 0 wherever it is
read, so that the integers of the model's outputs are the same, whatever nodes between compute in
it. `ChannelTies` says which tensors must be padded together.

ONNX Runtime's kernels without im2col want 4 and 16 channels, the depthwise one multiples of 16
(`onnxruntime/core/mlas/lib/convsym.cpp`, `MlasConvSymPackWSize`); `padded_channels` says how many
are worth it. An added channel's weight has scale 1, and its bias therefore the scale of the input:
with another product the runtime leaves the convolution float (`core/optimizer/qdq_transformer/
selectors_actions/qdq_selectors.cc`, `ConvNodeGroupSelector`).
"""

from __future__ import annotations

import onnx_ir as ir

from bitwright.decide.ops.channel_ties import ChannelTies, Convolved, Layout
from bitwright.emit.forms.layers import IntegerConv, integer_conv, store
from bitwright.emit.qlinear_graph import PairGraph
from bitwright.graph.constants import constant_of, input_at, maker_of
from bitwright.support.array_types import Array


def pad_channels(model: ir.Model) -> int:
    """Pad the channels between integer convolutions; return of how many convolutions."""
    graph = PairGraph(model)
    nodes = [*model.graph.all_nodes()]
    convs = {node: conv for node in nodes if (conv := integer_conv(graph, node))}
    shapes = {n: Convolved(c.group, c.channels_in, c.channels_out) for n, c in convs.items()}
    ties = ChannelTies.of_nodes(nodes, shapes.get)
    changed = [conv for conv in convs.values() if _pad(graph, ties, conv)]
    for value, count in ties.padded():
        assert value.shape is not None
        value.shape = ir.Shape([value.shape[0], count, *value.shape[2:]])
    return len(changed)


def _pad(graph: PairGraph, ties: ChannelTies, conv: IntegerConv) -> bool:
    """Give a convolution the channels of its groups; return whether these are more than before."""
    node = conv.node
    source, result = node.inputs[0], node.outputs[0]
    assert source is not None
    columns, rows = ties.layout(source), ties.layout(result)
    if not rows.is_padded and not columns.is_padded:
        return False
    integers = conv.weight.codes
    if conv.group > 1:
        node.attributes["group"] = ir.AttrInt64("group", columns.size)
    else:
        integers = conv.with_columns(columns.size, columns.positions)
    _add_rows(graph, node, 1, integers, rows, 1.0)
    if conv.bias is not None and rows.is_padded:
        scale = constant_of(conv.source.scale)
        assert scale is not None
        _add_rows(graph, node, 2, conv.bias.codes, rows, scale.item())
    return True


def _add_rows(
    graph: PairGraph, node: ir.Node, index: int, integers: Array, rows: Layout, scale: float
) -> None:
    """Store integers with more rows of zeros, and scales and zero points where each row has one."""
    dequantizer = maker_of(node.inputs[index])
    assert dequantizer is not None
    arrays, zero = {}, 0
    for place, number in enumerate((scale, 0), start=1):
        array = constant_of(input_at(dequantizer, place))
        if array is not None and array.size == len(integers) and rows.is_padded:
            arrays[place] = rows.fill(array, number)
        elif array is not None and place == 2:
            zero = array.item(0)
    store(graph, node, index, {0: rows.fill(integers, zero), **arrays})
