"""`Fusion` is the peer's; `KeepsOutputs` repairs the fusions that are derived from it."""

from __future__ import annotations

from typing import Any

from onnx import NodeProto

from bitwright.compat.onnxruntime.peer import hand_on

__getattr__, __dir__ = hand_on(__name__)


class KeepsOutputs:
    """Leaves alone what makes an output of the model, which the peer's fusions remove."""

    model: Any
    nodes_to_remove: list[NodeProto]
    nodes_to_add: list[NodeProto]

    def fuse(self, node: NodeProto, input_name_to_nodes: Any, output_name_to_node: Any) -> None:
        """Fuse the pattern that begins at a node, unless an output of the model would be lost."""
        removed, added = len(self.nodes_to_remove), len(self.nodes_to_add)
        super().fuse(node, input_name_to_nodes, output_name_to_node)  # type: ignore[misc]
        lost = {name for gone in self.nodes_to_remove[removed:] for name in gone.output}
        lost -= {name for made in self.nodes_to_add[added:] for name in made.output}
        if any(self.model.is_graph_output(name) for name in lost):
            del self.nodes_to_remove[removed:]
            del self.nodes_to_add[added:]
