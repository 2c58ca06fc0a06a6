"""Matching of the tensors of a quantized model with those of the float model it was made from.

Names come first: tools keep the name of a tensor, or add to it what their Q/DQ pairs are called.
What is left is found by structure: a node of the same op that reads matched tensors, and the most
similar weight, makes the tensor that its float counterpart makes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops.quantized_view import (
    QuantizedView,
    activations_of,
    float_op_type,
    is_conversion,
)
from bitwright.graph.constants import float_constant_of, is_constant

_ENDINGS = re.compile(
    r"(_convert)?_(QuantizeLinear_Input|QuantizeLinear_Output|DequantizeLinear_Output|quantized)"
    r"(_\d+)?$"
)
# What a tool merges into the node before, by folding it or letting a quantizer do its work.
_MERGED = frozenset({"Relu", "Clip", "BatchNormalization", "Identity", "Dropout"})


def match_tensors(float_model: ir.Model, graph: QuantizedView) -> dict[ir.Value, ir.Value]:
    """Return quantized model's tensor -> float tensor, for activations of both main graphs.

    The tensor of the quantized model is the one before its quantizer, or the integers that an
    integer op gives.
    """
    return {
        root: value
        for root, value in _Matcher(float_model, graph).match().items()
        if may_have_same_shape(root, value)
        and is_float(value)
        and (root in graph.parameters or is_float(root))
    }


class _Matcher:
    def __init__(self, float_model: ir.Model, graph: QuantizedView) -> None:
        self._graph = graph
        self._floats = {value.name: value for value in _activations(float_model) if value.name}
        self._aliases: dict[ir.Value, list[str]] = defaultdict(list)
        for value in _activations(graph.model):
            self._aliases[graph.source_of(value)].append(value.name or "")
        names = [name for found in self._aliases.values() for name in found]
        self._named = {*names, *(_ENDINGS.sub("", name) for name in names)}
        self._matched: dict[ir.Value, ir.Value] = {}
        self._taken: set[ir.Value] = set()
        self._readers: dict[ir.Value | None, list[ir.Node]] = defaultdict(list)
        for node in float_model.graph:
            for read in dict.fromkeys(node.inputs):
                self._readers[read].append(node)

    def match(self) -> dict[ir.Value, ir.Value]:
        for root, names in self._aliases.items():
            if (found := self._by_name(names)) is not None:
                self._enter(root, found)
        for node in self._graph.model.graph:
            if is_conversion(node) or node.outputs[0] in self._matched:
                continue
            if node.op_type in ("ConvInteger", "MatMulInteger"):
                continue  # bare sums of products, to be scaled by the nodes behind
            if (original := self._float_node_of(node)) is not None:
                for mine, theirs in zip(node.outputs, original.outputs, strict=False):
                    self._enter(mine, theirs)
        return self._matched

    def _by_name(self, names: list[str]) -> ir.Value | None:
        if exact := [self._floats[name] for name in names if name in self._floats]:
            return exact[0]
        for name in names:
            while (shorter := _ENDINGS.sub("", name)) != name:
                name = shorter
                if name in self._floats:
                    return self._floats[name]
        return None

    def _enter(self, root: ir.Value, value: ir.Value) -> None:
        value = self._behind_merged(root, value)
        if value not in self._taken and root not in self._matched:
            self._matched[root] = value
            self._taken.add(value)

    def _behind_merged(self, root: ir.Value, value: ir.Value) -> ir.Value:
        """Return the tensor that a merged Relu or batch norm makes, where there is one."""
        kept = {float_op_type(node) for node in self._users(root)}
        while True:
            uses = list(value.uses())
            if len(uses) != 1 or value.is_graph_output():
                return value
            reader = uses[0].node
            if reader.op_type not in _MERGED or reader.op_type in kept or uses[0].idx != 0:
                return value
            if reader.outputs[0].name in self._named:
                return value
            value = reader.outputs[0]

    def _users(self, root: ir.Value) -> Iterator[ir.Node]:
        """Yield the nodes that read a tensor, directly or through quantizers."""
        for use in root.uses():
            if is_conversion(use.node):
                yield from self._users(use.node.outputs[0])
            else:
                yield use.node

    def _float_node_of(self, node: ir.Node) -> ir.Node | None:
        """Return the float node that does the same to the same tensors."""
        read = [self._matched.get(self._graph.source_of(value)) for value in activations_of(node)]
        if not read or any(value is None for value in read):
            return None
        candidates = [
            other
            for other in self._readers.get(read[0], ())
            if other.op_type == float_op_type(node)
            and other.outputs[0] not in self._taken
            and [v for v in other.inputs if v is not None and not is_constant(v)] == read
        ]
        if len(candidates) <= 1:
            return candidates[0] if candidates else None
        distances = [self._distance(node, other) for other in candidates]
        best = int(np.argmin(distances))
        return candidates[best] if np.isfinite(distances[best]) else None

    def _distance(self, node: ir.Node, other: ir.Node) -> float:
        """Return how far the weights of two nodes are apart; infinite where shapes differ."""
        mine = [array for array in self._graph.weights_of(node) if array.ndim > 1]
        theirs = [a for v in other.inputs if (a := float_constant_of(v)) is not None and a.ndim > 1]
        if not mine or not theirs or mine[0].shape != theirs[0].shape:
            return float("inf")
        return float(np.linalg.norm((mine[0] - theirs[0]).ravel()))


def _activations(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.inputs
    for node in model.graph:
        if node.op_type != "Constant":
            yield from node.outputs


def is_float(value: ir.Value) -> bool:
    """Return whether a value is known to hold floats."""
    return value.dtype is not None and value.dtype.is_floating_point()


def may_have_same_shape(one: ir.Value, other: ir.Value) -> bool:
    """Return whether nothing that is known of two shapes speaks against their being the same."""
    if one.shape is None or other.shape is None:
        return True
    return len(one.shape) == len(other.shape) and all(
        a == b or not isinstance(a, int) or not isinstance(b, int)
        for a, b in zip(one.shape, other.shape, strict=True)
    )
