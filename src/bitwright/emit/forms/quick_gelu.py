"""x * Sigmoid(x) of dequantized bytes as one operator.

Where both nodes stay float behind bytes, ONNX Runtime gives each a dequantizer of its own
(`onnxruntime/core/optimizer/qdq_transformer/ensure_unique_dq_for_node_unit.cc`), and then does not
find the pattern that it fuses to com.microsoft's QuickGelu (`core/optimizer/quick_gelu_fusion.cc`).
Written as QuickGelu with alpha 1, it is that kernel again, with the same values.
"""

from __future__ import annotations

import onnx_ir as ir

from bitwright.emit.qlinear_graph import PairGraph
from bitwright.graph.constants import is_private


def write_quick_gelu(model: ir.Model) -> int:
    """Write Sigmoid and Mul of the same dequantized tensor as QuickGelu; return how many."""
    graph = PairGraph(model)
    return sum(_write(graph, node) for node in list(model.graph.all_nodes()))


def _write(graph: PairGraph, sigmoid: ir.Node) -> bool:
    if sigmoid.op_type != "Sigmoid" or sigmoid.domain:
        return False
    source, gate = sigmoid.inputs[0], sigmoid.outputs[0]
    if source is None or graph.operand(source) is None or source.dtype != ir.DataType.FLOAT:
        return False
    if not is_private(gate):
        return False
    ((product, _),) = gate.uses()
    if product.op_type != "Mul" or product.domain or source not in product.inputs:
        return False
    graph.exchange(product, "QuickGelu", [source], {"alpha": 1.0})
    assert sigmoid.graph is not None
    sigmoid.graph.remove(sigmoid, safe=True)
    return True
