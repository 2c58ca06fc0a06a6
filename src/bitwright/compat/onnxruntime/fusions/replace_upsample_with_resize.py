"""Upsample, which newer opsets do not have, replaced by Resize.

The peer's fusion states no coordinate mode, so that its Resize computes something else, and it
fails on the scales of older opsets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import NodeProto

from bitwright.compat.onnxruntime.peer import hand_on, peer

__getattr__, __dir__ = hand_on(__name__)


class ReplaceUpsampleWithResize(peer("fusions.fusion").Fusion):  # type: ignore[misc]
    """Puts `Resize` of opset 11 and later in the place of each Upsample of an older opset.

    Upsample takes output i from input floor(i / scale), and `asymmetric` coordinates do, too.
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
