"""New nodes and constants right before the node that they replace, so that a graph stays sorted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.graph import (
    NameScope,
    add_initializer,
    graph_of,
    insert_before,
    remove_nodes,
    replace_value,
)

__all__ = ["Builder"]


class Builder:
    """Adds nodes, one after the other, right before a node of a graph.

    >>> x = ir.Value(name="x")
    >>> last = ir.node("Relu", [x], name="relu")
    >>> model = ir.Model(ir.Graph([x], [], nodes=[last], opset_imports={"": 21}), ir_version=10)
    >>> _ = Builder(last, NameScope(model)).add("Neg", [x], "minus_x")
    >>> [node.op_type for node in model.graph]
    ['Neg', 'Relu']
    """

    def __init__(self, before: ir.Node, names: NameScope, *, role: str = "") -> None:
        self._before = before
        self._graph = graph_of(before.outputs[0])
        self._names = names
        self._role = role

    def constant(self, array: npt.ArrayLike, name: str) -> ir.Value:
        """Add an initializer to the graph."""
        return add_initializer(self._graph, self._names, name, np.asarray(array))

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
        first = inputs[0]
        output = ir.Value(name=fresh, type=None if first is None else copy(first.type), shape=shape)
        node_name = node_name or self._names.fresh(f"{fresh}_{op_type}")
        insert_before(self._before, op_type, inputs, output, node_name, attributes)
        producer = output.producer()
        if self._role and producer is not None:
            producer.metadata_props["bitwright.role"] = self._role
        return output

    def finish(self, last: ir.Value, *unread: ir.Node) -> None:
        """Let the last new tensor take the place of what the node writes, and remove the node.

        Nodes that only it read go too, readers before producers.
        """
        replace_value(self._before.outputs[0], last)
        remove_nodes([self._before, *unread])
