"""`FusionLayerNormalization` of `onnxruntime.quantization`, for means over the last axis only."""

from __future__ import annotations

from typing import Any

from onnx import NodeProto

from bitwright.compat.onnxruntime.fusions.fusion import KeepsOutputs
from bitwright.compat.onnxruntime.peer import hand_on, peer

__getattr__, __dir__ = hand_on(__name__)

_PEER = peer("fusions.fusion_layernorm").FusionLayerNormalization


class FusionLayerNormalization(KeepsOutputs, _PEER):  # type: ignore[misc, valid-type]
    """Puts `LayerNormalization` in the place of a mean, a deviation, a scale and a bias.

    The peer takes a mean over any axis for one over the last.
    """

    def fuse(self, node: NodeProto, input_name_to_nodes: Any, output_name_to_node: Any) -> None:
        """Fuse the pattern that begins at a ReduceMean over the last axis."""
        if self._is_over_last_axis(node):
            super().fuse(node, input_name_to_nodes, output_name_to_node)

    def _is_over_last_axis(self, mean: NodeProto) -> bool:
        axes = self.get_node_attribute(mean, "axes")
        if axes is None and len(mean.input) > 1:
            value = self.model.get_constant_value(mean.input[1])
            axes = None if value is None else value.tolist()
        if self.get_node_attribute(mean, "keepdims") == 0 or axes is None or len(axes) != 1:
            return False
        kind = self.model.get_tensor_type(mean.input[0])
        rank = len(kind.shape.dim) if kind is not None else None
        return axes[0] == -1 or (rank is not None and axes[0] == rank - 1)
