"""Grouped integer convolutions as dense ones: the zeros between the groups are stored.

    W'[o, i] = W[o, i - first(o)] inside the group of o, else the weight's zero point

Every product with an added weight is 0, so the integers that come out are the same. ONNX Runtime's
kernel without im2col takes one group or depthwise convolutions only (`onnxruntime/core/mlas/lib/
convsym.cpp`, `MlasConvSymPackWSize`); all others copy patches and multiply group by group
(`core/providers/cpu/quantization/qlinearconv.cc`), which takes up to 20 times as long.
Condition: `is_faster_dense`.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops.integer_kernels import is_faster_dense
from bitwright.emit.forms.layers import IntegerConv, integer_conv, store
from bitwright.emit.qlinear_graph import PairGraph


def write_dense_groups(model: ir.Model) -> int:
    """Write grouped convolutions as dense ones where these are faster; return how many."""
    graph = PairGraph(model)
    found = [conv for node in model.graph.all_nodes() if (conv := integer_conv(graph, node))]
    chosen = [c for c in found if is_faster_dense(c.group, c.channels_in, c.channels_out)]
    for conv in chosen:
        _write_dense(graph, conv)
    return len(chosen)


def _write_dense(graph: PairGraph, conv: IntegerConv) -> None:
    integers, zeros = conv.weight.codes, conv.weight_zeros
    rows, columns = conv.channels_out // conv.group, integers.shape[1]
    dense = np.broadcast_to(zeros, (len(integers), conv.channels_in, *integers.shape[2:])).copy()
    for group in range(conv.group):
        inside = slice(group * rows, (group + 1) * rows)
        dense[inside, group * columns : (group + 1) * columns] = integers[inside]
    store(graph, conv.node, 1, {0: dense})
    conv.node.attributes["group"] = ir.AttrInt64("group", 1)
