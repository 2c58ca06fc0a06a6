"""Arithmetic that ends in a size, an index, an axis or a bound: rounded, it is another model.

Exporters compute sizes in float, between two casts: a target size divided by that of a tensor is
the scales of a Resize, the smaller one of a size and a limit is where a Slice ends.
"""

from __future__ import annotations

import onnx_ir as ir

from bitwright.decide.ops import op_types
from bitwright.graph.constants import is_constant

SIZE_ARITHMETIC = "what it computes ends in a size, an index, an axis or a bound"

_SECOND = (
    "CenterCropPad CumSum Expand Gather GatherElements GatherND OneHot ReduceL1 ReduceL2 "
    "ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare Reshape ScatterElements ScatterND Split Squeeze TopK Trilu Unsqueeze Upsample"
)
_DECIDING = {
    **dict.fromkeys(_SECOND.split(), (1,)),
    "Clip": (1, 2),
    "ConstantOfShape": (0,),
    "If": (0,),
    "Loop": (0, 1),
    "NonMaxSuppression": (2, 3, 4),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Tile": (1, 2),
}
"""The inputs of operators that say how large, where, or between what."""

_CARRIERS = op_types(lambda op: op.elementwise or op.moves)
"""Operators that carry a number on, or one that is computed from it."""


def find_size_arithmetic(model: ir.Model) -> frozenset[str]:
    """Return the names of the nodes that compute sizes, indices, axes or bounds.

    What is computed from sizes alone is meant where any of it is such a number; what is computed
    from data, where all of it is.
    """
    nodes = list(model.graph.all_nodes())
    sizes: set[ir.Value] = set()
    for node in nodes:
        read = [value for value in node.inputs if value is not None and not is_constant(value)]
        if node.op_type in ("Shape", "Size") or (read and sizes.issuperset(read)):
            sizes.update(node.outputs)
    found: set[ir.Node] = set()
    for node in reversed(nodes):
        ends = [
            use.node in found or use.idx in _DECIDING.get(use.node.op_type, ())
            for value in node.outputs
            for use in value.uses()
        ]
        if sizes.issuperset(node.outputs):
            decides = any(ends) and node.op_type not in ("Shape", "Size")
        else:
            leaves = any(value.is_graph_output() for value in node.outputs)
            decides = bool(ends) and all(ends) and not leaves and node.op_type in _CARRIERS
        if decides:
            found.add(node)
    return frozenset(node.name or "" for node in found)
