"""Gelu from the nodes it is exported as: 0.5 x (1 + Erf(x / sqrt(2))), in any order."""

from __future__ import annotations

from onnx import NodeProto

from bitwright.compat.onnxruntime.fusions.fusion import Fusion, Makers, Readers
from bitwright.compat.onnxruntime.onnx_model import ONNXModel

__all__ = ["Fusion", "FusionGelu", "ONNXModel"]

# How far an exporter's square root of two may be off.
_ROOT_TOLERANCE = 0.001


class FusionGelu(Fusion):
    """Puts a `Gelu` of com.microsoft in the place of an Erf and what is around it."""

    def __init__(self, model: ONNXModel) -> None:
        super().__init__(model, "Gelu", "Erf")

    def fuse(
        self, node: NodeProto, input_name_to_nodes: Readers, output_name_to_node: Makers
    ) -> None:
        """Fuse what is around an Erf, in one of the forms of `fuse_1`, `fuse_2` and `fuse_3`."""
        for pattern in (self.fuse_1, self.fuse_2, self.fuse_3):
            if pattern(node, input_name_to_nodes, output_name_to_node):
                self.model.set_opset_import("com.microsoft", 1)
                return

    def fuse_1(
        self, erf_node: NodeProto, input_name_to_nodes: Readers, output_name_to_node: Makers
    ) -> bool:
        """Fuse (1 + Erf(x / 1.4142)) * (0.5 x), or ((1 + Erf(x / 1.4142)) * x) * 0.5."""
        readers, makers = input_name_to_nodes, output_name_to_node
        divide = self._divided(erf_node, makers)
        add = self._plus_one(erf_node, readers)
        if divide is None or add is None:
            return False
        x = divide.input[0]
        product = self._only_reader(add, "Mul", readers)
        if product is None:
            return False
        other = product.input[1 - self.input_index(add.output[0], product)]
        half = last = self._only_reader(product, "Mul", readers)
        if other != x:
            half, last = makers.get(other), product
        if half is None or last is None or not self._is_half(half):
            return False
        if other != x and x not in half.input:
            return False
        nodes = [divide, erf_node, add, product, half]
        return self._put_gelu(nodes, x, last.output[0], readers, makers)

    def fuse_2(
        self, erf_node: NodeProto, input_name_to_nodes: Readers, output_name_to_node: Makers
    ) -> bool:
        """Fuse ((1 + Erf(x / r)) * 0.5) * x, where r is 1.4142 or Sqrt(2)."""
        divide = self._divided(erf_node, output_name_to_node)
        roots = []
        if divide is None:
            path = ["Div", "Sqrt"], [0, 1]
            found = self.match_parent_path(erf_node, *path, output_name_to_node)
            if found is None or not self.has_constant_input(found[1], 2.0):
                return False
            divide, *roots = found
        return self._fuse_tail(
            erf_node, [divide, *roots], divide.input[0], input_name_to_nodes, output_name_to_node
        )

    def fuse_3(
        self, erf_node: NodeProto, input_name_to_nodes: Readers, output_name_to_node: Makers
    ) -> bool:
        """Fuse ((1 + Erf(x * 0.7071)) * 0.5) * x."""
        scaled = self.match_parent(erf_node, "Mul", 0, output_name_to_node)
        if scaled is None:
            return False
        constant = self.find_constant_input(scaled, 0.5**0.5, _ROOT_TOLERANCE)
        if constant < 0:
            return False
        x = scaled.input[1 - constant]
        return self._fuse_tail(erf_node, [scaled], x, input_name_to_nodes, output_name_to_node)

    def _fuse_tail(
        self, erf: NodeProto, head: list[NodeProto], x: str, readers: Readers, makers: Makers
    ) -> bool:
        """Fuse from an Erf down, where the half is multiplied first and x last."""
        add = self._plus_one(erf, readers)
        half = add and self._only_reader(add, "Mul", readers)
        last = half and self._only_reader(half, "Mul", readers)
        if add is None or half is None or last is None:
            return False
        if not self._is_half(half) or x not in last.input:
            return False
        nodes = [*head, erf, add, half, last]
        return self._put_gelu(nodes, x, last.output[0], readers, makers)

    def _divided(self, erf: NodeProto, makers: Makers) -> NodeProto | None:
        """Return the division by the square root of two before an Erf, or None."""
        divide = self.match_parent(erf, "Div", 0, makers)
        if divide is None or self.find_constant_input(divide, 2**0.5, _ROOT_TOLERANCE) != 1:
            return None
        return divide

    def _plus_one(self, erf: NodeProto, readers: Readers) -> NodeProto | None:
        add = self._only_reader(erf, "Add", readers)
        return add if add is not None and self.has_constant_input(add, 1.0) else None

    def _is_half(self, node: NodeProto) -> bool:
        return node.op_type == "Mul" and self.has_constant_input(node, 0.5)

    def _put_gelu(
        self, nodes: list[NodeProto], x: str, output: str, readers: Readers, makers: Makers
    ) -> bool:
        return self._replace(nodes, [x], output, readers, makers, domain="com.microsoft")
