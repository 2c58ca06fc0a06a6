"""SpaceToDepth from the Reshape and Transpose nodes that detection models export it as."""

from __future__ import annotations

from typing import Any

from onnx import NodeProto

from bitwright.compat.onnxruntime.fusions.fusion import Fusion, Makers, Readers
from bitwright.compat.onnxruntime.onnx_model import ONNXModel

__all__ = ["FusionSpaceToDepth"]

_CHAIN = ("Transpose", "Reshape") * 3
_PERMUTATIONS = [[0, 1, 2, 4, 3, 5], [0, 1, 3, 2], [0, 2, 1, 3, 4]]


class FusionSpaceToDepth(Fusion):
    """Puts `SpaceToDepth` in the place of four Reshape nodes with a Transpose between each two."""

    def __init__(self, model: ONNXModel) -> None:
        super().__init__(model, "SpaceToDepth", "Reshape")

    def fuse(
        self, node: NodeProto, input_name_to_nodes: Readers, output_name_to_node: Makers
    ) -> None:
        """Fuse the chain that begins at a Reshape."""
        chain = [node]
        for op_type in _CHAIN:
            following = self._only_reader(chain[-1], op_type, input_name_to_nodes)
            if following is None:
                return
            chain.append(following)
        if [self.get_node_attribute(n, "perm") for n in chain[1::2]] != _PERMUTATIONS:
            return
        names = [node.input[0], *(reshape.output[0] for reshape in chain[::2])]
        given, *shapes = (self._shape(name) for name in names)
        if len(given) != 4 or len(shapes[0]) != 6:
            return
        size = shapes[0][3]
        if not all(isinstance(number, int) for number in (size, *given[2:])):
            return
        batch, channels, height, width = given
        rows, columns = height // size, width // size
        depth = channels * size**2 if isinstance(channels, int) else None
        expected = [
            [batch, channels, rows, size, columns, size],
            [batch, channels, rows * columns, size**2],
            [batch, channels, size**2, rows, columns],
            [batch, depth, rows, columns],
        ]
        if shapes == expected:
            self._replace(
                chain,
                [node.input[0]],
                chain[-1].output[0],
                input_name_to_nodes,
                output_name_to_node,
                blocksize=size,
            )

    def _shape(self, name: str) -> list[Any]:
        kind = self.model.get_tensor_type(name)
        return [] if kind is None else self.tensor_shape_to_list(kind)
