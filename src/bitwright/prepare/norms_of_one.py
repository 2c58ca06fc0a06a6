"""Rewrite BatchNormalization in training mode with a batch of one as InstanceNormalization.

That is how exporters write weights which a model standardizes whenever it runs (timm's StdConv).
The statistics are those of each channel, as in an instance norm, which folds like any other
constant; ONNX Runtime lends the memory of statistics that nobody reads to others too early.
"""

from __future__ import annotations

import onnx_ir as ir

from bitwright.graph.editing import is_training_norm, replace_inputs
from bitwright.prepare.passes import Scope, rewrites


@rewrites("BatchNormalization", since=7)
def norms_of_one(norm: ir.Node, names: Scope) -> bool:
    """Replace every training batch norm of a batch of one whose statistics are not read."""
    if not is_training_norm(norm, names.opset):
        return False
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
