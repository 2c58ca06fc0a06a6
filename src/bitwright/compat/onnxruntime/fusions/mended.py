"""Fusions of `onnxruntime.quantization`, with their defects mended; outputs of a model are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import NodeProto

from bitwright.compat.onnxruntime.peer import peer

Fusion = peer("fusions.fusion").Fusion
_QNN = "execution_providers.qnn"


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


class FusionGelu(KeepsOutputs, peer("fusions.fusion_gelu").FusionGelu):  # type: ignore[misc]
    """Puts `Gelu` in the place of the Div, Erf, Add and Mul nodes that exporters write."""


class FusionLpNormalization(
    KeepsOutputs,
    peer(f"{_QNN}.fusion_lpnorm").FusionLpNormalization,  # type: ignore[misc]
):
    """Puts `LpNormalization` in the place of x / Expand(Clip(ReduceL2(x), min=epsilon))."""


class FusionSpaceToDepth(
    KeepsOutputs,
    peer(f"{_QNN}.fusion_spacetodepth").FusionSpaceToDepth,  # type: ignore[misc]
):
    """Puts `SpaceToDepth` in the place of four Reshape nodes with a Transpose between each two."""


class FusionLayerNormalization(
    KeepsOutputs,
    peer("fusions.fusion_layernorm").FusionLayerNormalization,  # type: ignore[misc]
):
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


class ReplaceUpsampleWithResize(Fusion):  # type: ignore[misc, valid-type]
    """Puts `Resize` of opset 11 and later in the place of each Upsample of an older opset.

    Upsample takes output i from input floor(i / scale), and `asymmetric` coordinates do, too. The
    peer's fusion states no mode, so that its Resize computes something else, and it fails on the
    scales of older opsets.
    """

    def __init__(self, model: Any, opset: int) -> None:
        super().__init__(model, "Resize", "Upsample")
        self.opset = opset

    def fuse(self, node: NodeProto, input_name_to_nodes: Any, output_name_to_node: Any) -> None:
        """Replace an Upsample node."""
        stem = node.name or node.output[0]
        roi, scales = f"{stem}_roi", f"{stem}_scales"
        self.nodes_to_add.append(_constant(roi, np.zeros(0, np.float32)))
        if len(node.input) > 1:  # since opset 9
            scales = node.input[1]
        else:
            given = self.get_node_attribute(node, "scales")
            if given is None:  # opset 1
                sides = [self.get_node_attribute(node, f"{s}_scale") for s in ("height", "width")]
                given = [1.0, 1.0, *(side or 1.0 for side in sides)]
            self.nodes_to_add.append(_constant(scales, np.array(given, np.float32)))
        mode = self.get_node_attribute(node, "mode") or b"nearest"
        self.nodes_to_remove.append(node)
        settings = {
            "mode": "nearest" if mode == b"nearest" else "linear",
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        }
        inputs = [node.input[0], roi, scales]
        resize = onnx.helper.make_node("Resize", inputs, node.output, node.name, **settings)
        self.nodes_to_add.append(resize)

    def apply(self) -> bool:
        """Rewrite the model in place, sort it, and return whether anything changed."""
        changed = bool(super().apply())
        if changed:
            self.model.topological_sort()
        return changed


def _constant(name: str, values: np.typing.NDArray[np.float32]) -> NodeProto:
    return onnx.helper.make_node(
        "Constant", [], [name], value=onnx.numpy_helper.from_array(values, name)
    )
