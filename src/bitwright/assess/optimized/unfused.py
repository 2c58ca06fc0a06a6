"""Nodes between Q/DQ pairs that ONNX Runtime does not fuse, and so runs in float."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from bitwright.assess.optimized.graphs import OptimizedModel
from bitwright.assess.optimized.reasons import explain_float
from bitwright.assess.quantizers import Quantizers
from bitwright.graph.quantized_ops import is_integer_op

__all__ = ["Unfused", "find_unfused", "is_quantizer", "works_on_integers"]

_QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear"})


@dataclass(frozen=True, slots=True)
class Unfused:
    """One node that was meant to work on integers, and why it does not."""

    node: str
    op: str
    reason: str


def works_on_integers(node: ir.Node) -> bool:
    """Whether a node of an optimized graph computes with quantized values."""
    return is_integer_op(node.op_type)


def is_quantizer(node: ir.Node | None) -> bool:
    """Whether a node does nothing but turn floats into integers or back."""
    return node is not None and node.op_type in _QUANTIZERS


def find_unfused(optimized: OptimizedModel) -> dict[ir.Node, Unfused]:
    """Return the nodes of the optimized graph that dequantize what they read, in its order.

    Counted are nodes with stored integers, and those with quantizers on all sides. A node with a
    float activation on one side was never meant to be quantized, and is not.
    """
    quantizers = Quantizers(optimized.model)
    origins = optimized.origins()
    found = {}
    for node in optimized.model.graph.all_nodes():
        if is_quantizer(node) or works_on_integers(node):
            continue
        if _reads_stored(node) or (_reads_only_quantized(node) and _is_quantized_behind(node)):
            origin = origins.get(node, node)
            name = origin.name or origin.outputs[0].name or origin.op_type
            reason = explain_float(node, quantizers)
            found[node] = Unfused(name, origin.op_type, reason)
    return found


def _dequantizers(node: ir.Node) -> list[ir.Node]:
    makers = (value.producer() for value in node.inputs if value is not None)
    return [maker for maker in makers if maker is not None and maker.op_type == "DequantizeLinear"]


def _reads_only_quantized(node: ir.Node) -> bool:
    dequantizers = _dequantizers(node)
    computed = [
        value.producer()
        for value in node.inputs
        if value is not None and not value.is_initializer()
    ]
    return bool(dequantizers) and all(maker in dequantizers for maker in computed)


def _reads_stored(node: ir.Node) -> bool:
    """Whether a weight is dequantized for it; an int32 bias alone may be added in float."""
    integers = (maker.inputs[0] for maker in _dequantizers(node))
    return any(
        value is not None and value.is_initializer() and value.dtype != ir.DataType.INT32
        for value in integers
    )


def _is_quantized_behind(node: ir.Node) -> bool:
    readers = [use.node for value in node.outputs for use in value.uses()]
    return any(reader.op_type == "QuantizeLinear" for reader in readers)
