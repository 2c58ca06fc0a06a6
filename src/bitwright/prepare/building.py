"""New nodes and constants beside the nodes that they replace, so that a graph stays sorted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.graph.constants import constant_of, input_at
from bitwright.graph.names import NameScope
from bitwright.prepare.rewiring import remove_nodes, take_over
from bitwright.targets.npu_operations import clip_bounds

__all__ = ["Builder", "clip_limits", "known_axes", "without_notes"]


class Builder:
    """Puts nodes, one after the other, right before a node of a graph.

    >>> x = ir.Value(name="x")
    >>> last = ir.node("Relu", [x], name="relu")
    >>> model = ir.Model(ir.Graph([x], [], nodes=[last], opset_imports={"": 21}), ir_version=10)
    >>> _ = Builder(last, NameScope(model)).add("Neg", [x], "minus_x")
    >>> [node.op_type for node in model.graph]
    ['Neg', 'Relu']
    """

    def __init__(self, before: ir.Node, names: NameScope, *, role: str = "") -> None:
        graph = before.graph
        if not isinstance(graph, ir.Graph):
            raise TypeError("functions have no initializers; inline them first")
        self._before = before
        self._graph = graph
        self._names = names
        self._role = role

    def constant(self, array: npt.ArrayLike, name: str) -> ir.Value:
        """Add an initializer to the graph."""
        fresh = self._names.fresh(name)
        tensor = ir.tensor(np.ascontiguousarray(array).reshape(np.shape(array)), name=fresh)
        value = ir.Value(
            name=fresh,
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(np.shape(array)),
            const_value=tensor,
        )
        self._graph.register_initializer(value)
        return value

    def add(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        attributes: Mapping[str, Any] | None = None,
        *,
        node_name: str | None = None,
        shape: ir.Shape | None = None,
    ) -> ir.Value:
        """Add a node with one output of the type of its first input, and return that output."""
        fresh = self._names.fresh(name)
        like = inputs[0]
        output = ir.Value(name=fresh, type=None if like is None else copy(like.type), shape=shape)
        node = ir.node(
            op_type,
            inputs,
            attributes,
            outputs=[output],
            name=node_name or self._names.fresh(f"{fresh}_{op_type}"),
        )
        if self._role:
            node.metadata_props["bitwright.role"] = self._role
        self._graph.insert_before(self._before, node)
        return output

    def finish(self, last: ir.Value, *unread: ir.Node) -> None:
        """Let the last new tensor take the place of what the node writes, and remove the node.

        Nodes that only it read go too, readers before producers.
        """
        producer = last.producer()
        if producer is None:
            raise ValueError(f"no node writes {last.name!r}")
        take_over(producer, self._before)
        remove_nodes([self._before, *unread])


def clip_limits(node: ir.Node) -> tuple[float | None, float | None] | None:
    """Return both limits of a Clip, None for one that it has not; None: no Clip, or computed."""
    return clip_bounds(node) if node.op_type == "Clip" and not node.domain else None


def known_axes(node: ir.Node) -> tuple[int, ...] | None:
    """Return the axes of a reduction, an attribute or a constant input; None: not known, or all."""
    if "axes" in node.attributes:
        return tuple(node.attributes.get_ints("axes", []))
    array = constant_of(input_at(node, 1))
    return None if array is None else tuple(int(axis) for axis in array.reshape(-1)) or None


def without_notes(change: Callable[[ir.Model], int]) -> Callable[[ir.Model, list[str]], int]:
    """Give a pass that has nothing to say about what it leaves the form of those that have."""

    def with_notes(model: ir.Model, notes: list[str]) -> int:
        return change(model)

    return with_notes
