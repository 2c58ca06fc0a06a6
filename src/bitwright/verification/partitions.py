"""Nodes that stay on a target where some of its rules are broken, and their partitions."""

from __future__ import annotations

from collections.abc import Container, Sequence

import onnx_ir as ir

from bitwright.decide.ops.product_sizes import multiply_adds, sum_known
from bitwright.decide.ops.quantized_view import QuantizedView
from bitwright.graph import is_integer_op, name_of, reach
from bitwright.verification.findings import Finding, Residence

# Rules that name the quantizer of a tensor, and not the operator that cannot take it.
_OF_TENSORS = frozenset({"eight_bits", "per_tensor", "power_of_two"})


def find_residence(view: QuantizedView, findings: Sequence[Finding]) -> Residence:
    """Return how much of a model stays on a target, given all findings against it.

    A model that is refused has nothing there. Nodes of a finding that they leave are elsewhere, so
    is all behind an input that is not taken; nodes that are computed in float stay, but not as
    quantized ones. Open sizes count as 1.
    """
    gone = _gone(view, findings)
    floats = {f.node for f in findings if f.consequence == "float"}
    resident = [node for node in view.nodes if name_of(node) not in gone]
    quantized = [
        node for node in resident if name_of(node) not in floats and _reads_integers(view, node)
    ]
    return Residence(
        len(view.nodes),
        len(resident),
        len(quantized),
        _total(view.nodes),
        _total(resident),
        _total(quantized),
        count_partitions(_steps(view, gone), {id(node) for node in resident}),
    )


def _reads_integers(view: QuantizedView, node: ir.Node) -> bool:
    """Whether a node computes on integers, or reads dequantized values, transposed ones too."""
    if is_integer_op(node.op_type) or any(view.before(node)):
        return True
    makers = [None if value is None else value.producer() for value in node.inputs]
    return any(m is not None and m.op_type == "Transpose" and any(view.before(m)) for m in makers)


def _steps(view: QuantizedView, gone: Container[str]) -> list[ir.Node]:
    """Return the operators, and the pairs that are none of the target's: others are wires."""
    nodes = view.model.graph.all_nodes()
    wires = {node for node in view.found if name_of(node) not in gone}
    return [node for node in nodes if node.op_type != "Constant" and node not in wires]


def _gone(view: QuantizedView, findings: Sequence[Finding]) -> set[str]:
    if any(finding.consequence == "refused" for finding in findings):
        return {name_of(node) for node in view.nodes}
    leaving = [finding for finding in findings if finding.consequence == "leaves"]
    gone = {finding.node for finding in leaving}
    tensors = {finding.node for finding in leaving if finding.rule in _OF_TENSORS}
    for node, quantizer in view.found.items():
        if name_of(node) in tensors:  # what cannot read it is the operator
            gone.add(view.owner(quantizer))
    refused = [value for value in view.model.graph.inputs if value.name in gone]
    behind = reach(refused, lambda value: (out for use in value.uses() for out in use.node.outputs))
    return gone | {name_of(use.node) for value in behind for use in value.uses()}


def count_partitions(nodes: Sequence[ir.Node], resident: Container[int]) -> int:
    """Return the number of partitions: connected groups of nodes on a target that run at a time.

    What is not among the nodes counts as a wire. Each piece has to be entered and left once: what
    an operator outside separates lies in another one.
    """
    known = {id(node) for node in nodes}
    level: dict[int, int] = {}
    parent: dict[int, int] = {}

    def find(key: int) -> int:
        while parent[key] != key:
            key = parent[key]
        return key

    for node in nodes:
        is_resident = id(node) in resident
        makers = [maker for maker in _makers(node, known) if id(maker) in level]
        steps = [level[id(maker)] + (id(maker) not in resident and is_resident) for maker in makers]
        level[id(node)] = max(steps, default=0)
        if not is_resident:
            continue
        parent[id(node)] = id(node)
        for maker in makers:
            if id(maker) in parent and level[id(maker)] == level[id(node)]:
                parent[find(id(maker))] = find(id(node))
    return sum(parent[key] == key for key in parent)


def _makers(node: ir.Node, known: Container[int]) -> list[ir.Node]:
    """Return the nodes of these whose results a node reads, through all others."""

    def before(maker: ir.Node | None) -> list[ir.Node | None]:
        given = () if maker is None or id(maker) in known else maker.inputs[:1]
        return [value.producer() for value in given if value is not None]

    makers = reach((value.producer() for value in node.inputs if value is not None), before)
    return [maker for maker in makers if maker is not None and id(maker) in known]


def _total(nodes: Sequence[ir.Node]) -> int | None:
    return sum_known([multiply_adds(node, open_size=1) for node in nodes])
