"""Rewrite BatchNormalization in training mode with a batch of one as InstanceNormalization.

That is how exporters write weights which a model standardizes whenever it runs (timm's StdConv).
The statistics are those of each channel, as in an instance norm, which folds like any other
constant; ONNX Runtime lends the memory of statistics that nobody reads to others too early.
"""

from __future__ import annotations

import onnx_ir as ir

from bitwright.graph.editing import is_training_norm, replace_inputs
from bitwright.graph.names import NameScope
from bitwright.prepare.passes import PassResult, rewrite_nodes

__all__ = ["norms_of_one"]


def norms_of_one(model: ir.Model) -> PassResult:
    """Replace every training batch norm of a batch of one whose statistics are not read.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> norms_of_one(ir.Model(graph, ir_version=10)).changed
    0
    """
    opset = model.opset_imports.get("", 0)

    def rewrite(node: ir.Node, names: NameScope) -> bool:
        return is_training_norm(node, opset) and _replace(node)

    return rewrite_nodes(model, ("BatchNormalization",), rewrite, since=7)


def _replace(norm: ir.Node) -> bool:
    source, *statistics = norm.inputs[0], *norm.outputs[1:]
    shape = None if source is None else source.shape
    if shape is None or len(shape) < 3 or shape[0] != 1:
        return False
    if any(value.uses() or value.is_graph_output() for value in statistics):
        return False
    epsilon = norm.attributes.get_float("epsilon", 1e-5)
    norm.op_type = "InstanceNormalization"
    replace_inputs(norm, norm.inputs[:3])
    norm.resize_outputs(1)
    norm.attributes.clear()
    norm.attributes.add(ir.AttrFloat32("epsilon", epsilon))
    return True
