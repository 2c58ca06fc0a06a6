"""Fresh names that collide with nothing in the model."""

from __future__ import annotations

import onnx_ir as ir

from bitwright.graph.subgraphs import iter_graphs, values_of


class NameScope:
    """All names of a model, values and nodes at every level, and new ones beside them."""

    def __init__(self, model: ir.Model) -> None:
        self._taken = {""}
        self._next: dict[str, int] = {}
        for _, graph in iter_graphs(model):
            self._taken.update(value.name or "" for value in (*values_of(graph), *graph.outputs))
            self._taken.update(node.name or "" for node in graph)

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def fresh(self, name: str) -> str:
        """Return `name` if it is free, else name_1, name_2, ...; it is taken from then on."""
        candidate = name
        while candidate in self._taken:
            number = self._next.get(name, 0) + 1
            self._next[name] = number
            candidate = f"{name}_{number}"
        self._taken.add(candidate)
        return candidate
