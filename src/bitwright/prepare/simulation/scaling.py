"""A constant factor behind a node, for what the NPU computes a little larger or smaller."""

from __future__ import annotations

from copy import copy

import numpy as np
import onnx_ir as ir

from bitwright.graph.names import NameScope
from bitwright.prepare.building import Builder

__all__ = ["multiply_behind"]


def multiply_behind(node: ir.Node, factor: float, names: NameScope) -> None:
    """Multiply what a node writes; the product has the tensor's name, readers and place.

    >>> x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT))
    >>> node = ir.node("Relu", [x], name="relu")
    >>> node.outputs[0].name = "y"
    >>> graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 21})
    >>> multiply_behind(node, 0.5, NameScope(ir.Model(graph, ir_version=10)))
    >>> [node.op_type for node in graph], graph.outputs[0].name
    (['Relu', 'Mul'], 'y')
    """
    raw = node.outputs[0]
    label = raw.name
    product = ir.Value(type=copy(raw.type), shape=raw.shape)
    ir.convenience.replace_all_uses_with(raw, product, replace_graph_outputs=True)
    raw.name, product.name = names.fresh(f"{label}_unscaled"), label
    scale = Builder(node, names).constant(np.float32(factor), f"{label}_Scale")
    multiply = ir.node("Mul", [raw, scale], outputs=[product], name=names.fresh(f"{label}_Mul"))
    multiply.metadata_props["bitwright.role"] = "simulation"
    graph = node.graph
    assert graph is not None
    graph.insert_after(node, multiply)
