"""Rewrite a Clip with lower bound 0 as a Relu, which hardware fuses and equalization passes.

Only the lower end is kept. Where the Clip had an upper one, larger values now go on: what is
observed afterwards includes them, and the quantizer saturates where the range chosen for them ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from bitwright.graph.names import NameScope
from bitwright.graph.shapes import element_type
from bitwright.prepare.matching import clip_limits
from bitwright.prepare.passes import Builder, PassResult, rewrite_nodes

__all__ = ["clip6_to_relu", "clip_to_relu"]


def clip_to_relu(model: ir.Model) -> PassResult:
    """Replace every Clip whose lower end is exactly 0, whatever the upper one; return how many.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> clip_to_relu(ir.Model(graph, ir_version=10)).changed
    0
    """
    return _replace_where(model, lambda high: True)


def clip6_to_relu(model: ir.Model) -> PassResult:
    """Replace every Clip from 0 to 6; return how many.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> clip6_to_relu(ir.Model(graph, ir_version=10)).changed
    0
    """
    return _replace_where(model, lambda high: high is not None and math.isclose(high, 6.0))


def _replace_where(model: ir.Model, accepts: Callable[[float | None], bool]) -> PassResult:
    def rewrite(node: ir.Node, names: NameScope) -> bool:
        limits = clip_limits(node)
        if limits is None or limits[0] != 0 or not accepts(limits[1]):
            return False
        x, y = node.inputs[0], node.outputs[0]
        if x is None or element_type(y) not in (ir.DataType.FLOAT, None):
            return False
        build = Builder(node, names)
        build.finish(build.add("Relu", [x], f"{y.name}_relu", node_name=node.name))
        return True

    return rewrite_nodes(model, ("Clip",), rewrite)
