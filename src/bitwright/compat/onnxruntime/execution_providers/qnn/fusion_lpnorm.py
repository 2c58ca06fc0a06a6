"""LpNormalization from a division by the L2 norm over the last axis."""

from __future__ import annotations

from typing import Any

from onnx import NodeProto

from bitwright.compat.onnxruntime.fusions.fusion import Fusion, Makers, Readers
from bitwright.compat.onnxruntime.onnx_model import ONNXModel

__all__ = ["Fusion", "FusionLpNormalization", "ONNXModel"]


class FusionLpNormalization(Fusion):
    """Puts `LpNormalization` in the place of x / Expand(Clip(ReduceL2(x), min=epsilon))."""

    def __init__(self, model: ONNXModel, epsilon: float = 1e-12) -> None:
        super().__init__(model, "LpNormalization", "ReduceL2")
        self.epsilon = epsilon

    def fuse(
        self, node: NodeProto, input_name_to_nodes: Readers, output_name_to_node: Makers
    ) -> None:
        """Fuse the pattern that begins at a ReduceL2."""
        readers, makers = input_name_to_nodes, output_name_to_node
        clip = self._only_reader(node, "Clip", readers)
        expand = clip and self._only_reader(clip, "Expand", readers)
        divide = expand and self._only_reader(expand, "Div", readers)
        if clip is None or expand is None or divide is None:
            return
        x = node.input[0]
        if list(divide.input) != [x, expand.output[0]]:
            return
        if not self._is_over_last_axis(node) or not self._only_bounds_below(clip):
            return
        nodes = [node, clip, expand, divide]
        self._replace(nodes, [x], divide.output[0], readers, makers, p=2, axis=-1)

    def _is_over_last_axis(self, norm: NodeProto) -> bool:
        kind = self.model.get_tensor_type(norm.input[0])
        axes = self._setting(norm, "axes", 1)
        if kind is None or not kind.shape.dim or axes is None or len(axes) != 1:
            return False
        # keepdims is asked for in words: without it the peer leaves the norm as it is.
        keeps = bool(self.get_node_attribute(norm, "keepdims"))
        return keeps and axes[0] in (-1, len(kind.shape.dim) - 1)

    def _only_bounds_below(self, clip: NodeProto) -> bool:
        low, high = self._setting(clip, "min", 1), self._setting(clip, "max", 2)
        return high is None and low is not None and low > 0 and abs(low - self.epsilon) < 1e-13

    def _setting(self, node: NodeProto, name: str, index: int) -> Any:
        """Return an attribute, or the constant input that newer opsets have in its place."""
        value = self.get_node_attribute(node, name)
        if value is None and len(node.input) > index:
            constant = self.model.get_constant_value(node.input[index])
            return None if constant is None else constant.tolist()
        return value
