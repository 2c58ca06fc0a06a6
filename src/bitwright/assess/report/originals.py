"""Match rows of a comparison with nodes of the original file, by the tensors they write."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from bitwright.assess.comparison.results import NodeComparison
from bitwright.assess.comparison.units import node_places, nodes_between

__all__ = ["find_original_nodes"]


def find_original_nodes(
    model: ir.Model, rows: Sequence[NodeComparison]
) -> list[tuple[tuple[str, str], ...]]:
    """Return (name, op) of the file's nodes for each row: those since the tensors of other rows.

    Names that a row has may be ours: nodes without a name get one, batch norms are folded into
    the node before, functions are inlined. The tensors keep their names. A row whose tensor the
    file does not have stands for the node of its name there, or for none.
    """
    made = {value.name: value for node in model.graph for value in node.outputs}
    by_name = {node.name: node for node in model.graph if node.name}
    places = node_places(model)
    borders = {made[row.output] for row in rows if row.output in made}
    found = []
    for row in rows:
        value = made.get(row.output)
        if value is not None:
            nodes = nodes_between(value, borders, places)
        else:
            nodes = [by_name[row.name]] if row.name in by_name else []
        found.append(tuple((n.name or "", n.op_type) for n in nodes if n.op_type != "Constant"))
    return found
