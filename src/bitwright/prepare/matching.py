"""Match the pieces of a larger operation: step from a tensor to its producer, and keep track."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from bitwright.graph.constants import float_constant_of

__all__ = ["Matched", "is_closed", "number", "operands", "squared", "step"]


class Matched(list[ir.Node]):
    """The nodes that a match went through so far."""

    def in_order(self) -> list[ir.Node]:
        """Return each node once, readers before producers, in the order that removing needs.

        >>> first = ir.node("Relu", [ir.Value(name="x")])
        >>> last = ir.node("Relu", first.outputs)
        >>> _ = ir.Graph([], last.outputs, nodes=[first, last], opset_imports={"": 21})
        >>> Matched([first, last, first]).in_order() == [last, first]
        True
        """
        left = list(dict.fromkeys(self))
        ordered: list[ir.Node] = []
        while left:
            free = [n for n in left if not any(use.node in left for use in n.outputs[0].uses())]
            ordered += free
            left = [node for node in left if node not in free]
        return ordered


def step(value: ir.Value | None, op_type: str, matched: Matched) -> ir.Node | None:
    """Return the standard node of this type that writes a value, and count it as matched."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != op_type or node.domain:
        return None
    matched.append(node)
    return node


def operands(node: ir.Node | None, op_type: str) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yield the two inputs of a node of this type in both orders; nothing for other nodes."""
    if node is None or node.op_type != op_type or node.domain or len(node.inputs) != 2:
        return
    first, second = node.inputs
    if first is not None and second is not None:
        yield first, second
        yield second, first


def number(value: ir.Value | None) -> float | None:
    """Return the one number that a constant holds.

    >>> number(ir.Value(name="two", const_value=ir.tensor([2.0])))
    2.0
    """
    array = float_constant_of(value)
    return float(array.reshape(())) if array is not None and array.size == 1 else None


def squared(value: ir.Value | None, matched: Matched) -> ir.Value | None:
    """Return what a value is the square of."""
    product = step(value, "Mul", matched)
    if product is not None:
        return product.inputs[0] if product.inputs[0] is product.inputs[1] else None
    power = step(value, "Pow", matched)
    return power.inputs[0] if power is not None and number(power.inputs[1]) == 2 else None


def is_closed(nodes: Sequence[ir.Node], last: ir.Node) -> bool:
    """Return whether nothing but the last of these nodes is read from outside of them."""
    inside = set(nodes)
    return all(
        not output.is_graph_output()
        and all(use.node in inside for use in output.uses())
        and node.graph is last.graph
        for node in nodes
        if node is not last
        for output in node.outputs
    )
