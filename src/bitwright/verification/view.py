"""A quantized model as rules of hardware look at it: roles of tensors, operators between pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import onnx
import onnx_ir as ir

from bitwright.decide.ops import OPERATORS
from bitwright.graph.constants import input_at, is_constant
from bitwright.graph.quantized_ops import DEQUANTIZERS, FIX_NEURONS, QUANTIZERS
from bitwright.graph.quantizers import Quantizer, Quantizers, name_of
from bitwright.targets.target import Role

_PAIRS = QUANTIZERS | DEQUANTIZERS | FIX_NEURONS


@dataclass(frozen=True, slots=True)
class Breach:
    """What was found where a rule allows something else."""

    node: str
    found: str
    allowed: str
    tensor: str = ""


class TargetView(Quantizers):
    """The operators of a model and the quantizers around them."""

    @cached_property
    def nodes(self) -> list[ir.Node]:
        """Every operator but quantizers and constants, in order."""
        ignored = _PAIRS | {"Constant"}
        return [node for node in self.model.graph.all_nodes() if node.op_type not in ignored]

    def of_types(self, ops: tuple[str, ...]) -> Iterator[ir.Node]:
        """Return the operators of these types; of none: all."""
        return (node for node in self.nodes if not ops or node.op_type in ops)

    def attribute(self, node: ir.Node, name: str) -> Any:
        """Return the value of an attribute; ONNX's default where it is not written."""
        attribute = node.attributes.get(name)
        if attribute is not None:
            value = attribute.value
            return value.decode() if isinstance(value, bytes) else value
        opset = self.model.opset_imports.get("", 1)
        if node.domain or not onnx.defs.has(node.op_type, opset):
            return None
        known = onnx.defs.get_schema(node.op_type, opset).attributes.get(name)
        if known is None or not known.default_value.type:
            return None
        default = onnx.helper.get_attribute_value(known.default_value)
        return default.decode() if isinstance(default, bytes) else default

    def before(self, node: ir.Node) -> list[Quantizer | None]:
        """Return the dequantizer at each input of an operator."""
        return [self.quantizer_before(node, index) for index in range(len(node.inputs))]

    def activations(self, node: ir.Node) -> list[Quantizer]:
        """Return the dequantizers of what an operator reads and that is no weight or bias."""
        return [q for q in self.before(node) if q is not None and self.role(q) == "activation"]

    def weight(self, node: ir.Node) -> Quantizer | None:
        """Return the dequantizer of an operator's weight."""
        found = (q for q in self.before(node) if q is not None and self.role(q) == "weight")
        return next(found, None)

    def behind(self, node: ir.Node) -> list[Quantizer]:
        """Return the quantizers of an operator's results."""
        uses = (use for value in node.outputs for use in value.uses())
        found = (use.node for use in uses if use.idx == 0 and use.node.op_type in QUANTIZERS)
        return [self.found[quantizer] for quantizer in found]

    def is_of_constant(self, quantizer: Quantizer) -> bool:
        """Whether what is quantized is a constant, of integers or of floats."""
        source = input_at(quantizer.node, 0)
        while source is not None and (maker := source.producer()) is not None:
            if maker.op_type not in QUANTIZERS:
                break
            source = input_at(maker, 0)  # a float weight that is quantized in the model
        return source is not None and is_constant(source)

    def role(self, quantizer: Quantizer) -> Role:
        """Return what a quantized tensor is to its readers."""
        if not self.is_of_constant(quantizer):
            return "activation"
        if quantizer.stored_type == ir.DataType.INT32:
            return "bias"  # also one that an Add behind a product adds
        places = {(use.node.op_type, use.idx) for use in _uses(quantizer.node)}
        rules = [(OPERATORS.get(op), index) for op, index in places]
        if rules and all(rule is not None and rule.bias == index for rule, index in rules):
            return "bias"
        if any(rule is not None and index in rule.weights for rule, index in rules):
            return "weight"
        return "activation"

    def of_role(self, role: Role | None, ops: tuple[str, ...] = ()) -> Iterator[Quantizer]:
        """Return the quantizers of a role, those that some operators read where these are given."""
        for quantizer in self.found.values():
            if self.role(quantizer) != role or _makes_scales(quantizer.node):
                continue
            if not ops or any(one.op_type in ops for one in readers_of(quantizer.node)):
                yield quantizer

    def stored_weights(self, types: tuple[str, ...] = ()) -> Iterator[Quantizer]:
        """Return the dequantizers of stored weights, of some types where these are given."""
        for quantizer in self.of_role("weight"):
            listed = not types or quantizer.type_name in types
            if listed and quantizer.node.op_type not in QUANTIZERS:
                yield quantizer

    def breach(self, quantizer: Quantizer, found: str, allowed: str) -> Breach:
        """Return a breach at a quantizer, named as the operator that it is of."""
        source = quantizer.node.inputs[0]
        tensor = "" if source is None or source.name is None else source.name
        return Breach(self.owner(quantizer), found, allowed, tensor)

    def owner(self, quantizer: Quantizer) -> str:
        """Return the operator that reads a dequantizer, or writes for a quantizer."""
        makers, readers = list(_makers(quantizer.node)), list(_readers(quantizer.node))
        writes = quantizer.node.op_type in QUANTIZERS
        ordered = [*makers, *readers] if writes else [*readers, *makers]
        return name_of(ordered[0] if ordered else quantizer.node)


def readers_of(node: ir.Node) -> list[ir.Node]:
    """Return the nodes that read what a node writes, once for each use."""
    return [use.node for value in node.outputs for use in value.uses()]


_CARRIERS = QUANTIZERS | DEQUANTIZERS | {"Cast", "Transpose"}


def _uses(node: ir.Node) -> Iterator[Any]:
    """Return who reads a node, behind pairs and what transposes a stored weight."""
    for value in node.outputs:
        for use in value.uses():
            if use.node.op_type in _CARRIERS and use.idx == 0:
                yield from _uses(use.node)
            else:
                yield use


def _makes_scales(node: ir.Node) -> bool:
    """Whether a dequantizer gives the scales of others, and no values."""
    uses = [use for value in node.outputs for use in value.uses()]
    return bool(uses) and all(use.node.op_type in _PAIRS and use.idx == 1 for use in uses)


def _readers(node: ir.Node) -> Iterator[ir.Node]:
    """Return the operators that read a node, through pairs."""
    for value in node.outputs:
        for use in value.uses():
            if use.node.op_type not in _PAIRS:
                yield use.node
            elif use.idx == 0:
                yield from _readers(use.node)


def _makers(node: ir.Node) -> Iterator[ir.Node]:
    """Return the operator that a pair quantizes the result of, through other pairs."""
    value = input_at(node, 0)
    maker = None if value is None else value.producer()
    if maker is not None and maker.op_type not in _PAIRS:
        yield maker
    elif maker is not None:
        yield from _makers(maker)


def type_names(types: Sequence[str]) -> str:
    """Return number types in words."""
    return " or ".join(types)
