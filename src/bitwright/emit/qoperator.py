"""Write a plan into the graph as integer operators: QLinearConv, QLinearMatMul, QGemm and so on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import onnx_ir as ir

from bitwright.emit.qdq import Rounding, emit_qdq
from bitwright.emit.qlinear_graph import PairGraph
from bitwright.emit.qlinear_rules import INTEGER_OPS
from bitwright.graph import NameScope, maker_of
from bitwright.graph.editing import remove_nodes, remove_unused_initializers, replace_value
from bitwright.plan import QuantPlan

_PAIR = ("QuantizeLinear", "DequantizeLinear")


def emit_qoperator(model: ir.Model, plan: QuantPlan, round_weights: Rounding) -> list[str]:
    """Turn the float model, in place, into one of integer operators; return what to note.

    The Q/DQ form comes first, and every node between its pairs then becomes the integer op that
    computes the same: both formats mean the same numbers.
    """
    by_action: dict[str, set[str]] = {"quantize": set(), "absorb": set(), "float": set()}
    for name, planned in plan.nodes.items():
        by_action[planned.action].add(name)
    # What a quantizer clips in place of a Relu must pass it, whoever reads it.
    clipped = {n.inputs[0] for n in model.graph.all_nodes() if n.name in by_action["absorb"]}
    emit_qdq(model, plan, round_weights)
    left = _lower(model, by_action["quantize"])
    _drop_idle_pairs(model, keep={value for value in clipped if value is not None})
    _name_remaining_pairs(model)
    remove_unused_initializers(model)
    model.graph.sort()  # bodies, too
    return [
        f"left {op_type} x{count} float between Q/DQ pairs: {reason}"
        for (op_type, reason), count in left.items()
    ]


def _lower(model: ir.Model, names: Collection[str]) -> Counter[tuple[str, str]]:
    """Put integer ops in the place of these nodes; return how many of what were left, and why."""
    graph = PairGraph(model)
    left: Counter[tuple[str, str]] = Counter()
    for node in list(model.graph.all_nodes()):
        if node.name not in names:
            continue
        rule = INTEGER_OPS.get(node.op_type)
        reason = f"ONNX Runtime has no integer {node.op_type}"
        if rule is not None:
            reason = rule(graph, node) or ""
        if reason:
            left[node.op_type, reason] += 1
    return left


def _drop_idle_pairs(model: ir.Model, keep: Collection[ir.Value]) -> None:
    """Remove pairs that only round between two float ops, then all that nothing reads."""
    for node in list(model.graph.all_nodes()):
        if node.op_type != "DequantizeLinear":
            continue
        quantizer = maker_of(node.inputs[0])
        if quantizer is None or quantizer.op_type != "QuantizeLinear":
            continue
        value, output = quantizer.inputs[0], node.outputs[0]
        if value is None or value in keep:
            continue
        if output.is_graph_output():
            if value.producer() is None or value.is_graph_output():
                continue  # the output would be an input, or another output
            replace_value(output, value)
        else:
            output.replace_all_uses_with(value)
    for node in reversed(list(model.graph.all_nodes())):
        unused = all(not v.uses() and not v.is_graph_output() for v in node.outputs)
        if node.op_type in _PAIR and unused:
            remove_nodes([node])


def _name_remaining_pairs(model: ir.Model) -> None:
    """Call integers T_quantized and what is made float again T, where T is free."""
    names = NameScope(model)
    for node in model.graph.all_nodes():
        if node.op_type not in _PAIR:
            continue
        output = node.outputs[0]
        suffix = f"_{node.op_type}_Output"
        if output.name is None or not output.name.endswith(suffix):
            continue
        wanted = output.name.removesuffix(suffix)
        if node.op_type == "QuantizeLinear":
            wanted += "_quantized"
        if wanted not in names:
            output.name = names.fresh(wanted)
