"""Rewrite a ReduceMean over height and width as GlobalAveragePool."""

from __future__ import annotations

import onnx_ir as ir

from bitwright.decide.ops.matching import known_axes
from bitwright.graph.shapes import element_type
from bitwright.prepare.passes import Builder, Scope, rewrites


@rewrites("ReduceMean")
def reduce_mean_to_pool(mean: ir.Node, names: Scope) -> bool:
    """Replace every ReduceMean over the last two of four dimensions.

    Axes may be in any order, negative, an attribute or an input. The pool has the mean's name.
    Where the two dimensions went, a Flatten behind it takes them away.
    """
    x, y = mean.inputs[0], mean.outputs[0]
    axes = known_axes(mean)
    if x is None or x.shape is None or len(x.shape) != 4 or axes is None:
        return False
    if element_type(x) != ir.DataType.FLOAT:  # the runtime's pool takes nothing else
        return False
    if sorted(axis % 4 for axis in axes) != [2, 3]:
        return False
    build = Builder(mean, names)
    pooled = ir.Shape([x.shape[0], x.shape[1], 1, 1])
    last = build.add("GlobalAveragePool", [x], f"{y.name}_pool", node_name=mean.name, shape=pooled)
    if not mean.attributes.get_int("keepdims", 1):
        last = build.add("Flatten", [last], f"{y.name}_flat", {"axis": 1})
    build.finish(last)
    return True
