"""LayerNormalization from the nodes it is exported as below opset 17."""

from __future__ import annotations

from onnx import NodeProto

from bitwright.compat.onnxruntime.fusions.fusion import Fusion, Makers, Readers
from bitwright.compat.onnxruntime.onnx_model import ONNXModel

__all__ = ["Fusion", "FusionLayerNormalization", "ONNXModel"]

# From the division up to the subtraction: the deviation, its square as a power or a product.
_PATHS = [
    (["Sqrt", "Add", "ReduceMean", square, *cast, "Sub"], [1, 0, 0, 0, 0, *(0 for _ in cast)])
    for square in ("Pow", "Mul")
    for cast in ([], ["Cast"])
]
_MAX_EPSILON = 1e-4


class FusionLayerNormalization(Fusion):
    """Puts `LayerNormalization` in the place of a mean, a deviation, a scale and a bias.

    The pattern: d = x - ReduceMean(x), then d / Sqrt(ReduceMean(d * d) + epsilon) * scale + bias,
    where older exporters make d twice, and the square may be a Pow.
    """

    def __init__(self, model: ONNXModel) -> None:
        super().__init__(model, "LayerNormalization", "ReduceMean")

    def fuse(
        self, node: NodeProto, input_name_to_nodes: Readers, output_name_to_node: Makers
    ) -> None:
        """Fuse the pattern that begins at a ReduceMean."""
        readers, makers = input_name_to_nodes, output_name_to_node
        x = node.input[0]
        differences = readers.get(node.output[0], ())
        is_difference = [d.op_type == "Sub" and d.input[0] == x for d in differences]
        if not all(is_difference) or len(differences) not in (1, 2):
            return
        divide = next(
            filter(
                None,
                (self.find_first_child_by_type(d, "Div", readers, False) for d in differences),
            ),
            None,
        )
        if divide is None:
            return
        _, path, _ = self.match_parent_paths(divide, _PATHS, makers)
        if path is None or path[-1] not in differences:
            return
        _, add, second_mean, square, *_ = path
        scaled = self._only_reader(divide, "Mul", readers)
        shifted = scaled and self._only_reader(scaled, "Add", readers)
        if scaled is None or shifted is None or not self._is_square(square):
            return
        if not (self._is_last_axis(node) and self._is_last_axis(second_mean)):
            return
        _, epsilon = self.get_constant_input(add)
        if epsilon is None or epsilon.size != 1 or not 0 < epsilon.item() <= _MAX_EPSILON:
            return
        scale = scaled.input[1 - self.input_index(divide.output[0], scaled)]
        bias = shifted.input[1 - self.input_index(scaled.output[0], shifted)]
        if not all(self.is_constant_with_specified_rank(name, 1) for name in (scale, bias)):
            return
        self._replace(
            [node, *differences, *path[:-1], divide, scaled, shifted],
            [x, scale, bias],
            shifted.output[0],
            readers,
            makers,
            epsilon=epsilon.item(),
        )

    def _is_square(self, node: NodeProto) -> bool:
        if node.op_type == "Pow":
            return self.find_constant_input(node, 2.0) == 1
        return bool(node.input[0] == node.input[1])

    def _is_last_axis(self, mean: NodeProto) -> bool:
        """Return whether a mean is over the last axis, as that of the fused node will be."""
        axes = self.get_node_attribute(mean, "axes")
        if axes is None and len(mean.input) > 1:
            value = self.model.get_constant_value(mean.input[1])
            axes = None if value is None else value.tolist()
        if self.get_node_attribute(mean, "keepdims") == 0 or axes is None or len(axes) != 1:
            return False
        kind = self.model.get_tensor_type(mean.input[0])
        rank = len(kind.shape.dim) if kind is not None else None
        return axes[0] == -1 or (rank is not None and axes[0] == rank - 1)
