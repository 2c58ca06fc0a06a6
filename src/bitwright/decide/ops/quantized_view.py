"""What of a quantized model is integers: with which scale, and which float tensor they stand for.

One view of a model of any tool, for comparing, verifying, re-encoding and reporting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from bitwright.decide.ops import OPERATORS, op_types
from bitwright.graph.constants import constant_of, input_at, is_constant, maker_of
from bitwright.graph.packed_weights import packed_weight
from bitwright.graph.quantized_ops import (
    DEQUANTIZERS,
    FIX_NEURONS,
    INTEGER_OPS,
    QUANTIZERS,
    ROUNDERS,
    is_integer_op,
)
from bitwright.graph.quantizers import Quantizer, Quantizers, name_of, quantizer_at, stored_weight
from bitwright.run import Extractor, Part, Session
from bitwright.support.array_types import Array
from bitwright.targets.target import Role

_PAIRS = QUANTIZERS | DEQUANTIZERS | FIX_NEURONS
_CONVERSIONS = QUANTIZERS | DEQUANTIZERS | ROUNDERS | {"DynamicQuantizeLinear"}
_MOVES = op_types(lambda op: op.keeps_scale)
"""Operators that move integers and keep what these stand for."""


@dataclass(frozen=True, slots=True)
class Breach:
    """What was found where a rule allows something else."""

    node: str
    found: str
    allowed: str
    tensor: str = ""


class QuantizedView(Quantizers):
    """The operators of a model, the quantizers around them, and what each integer tensor means."""

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

    def scales_of_bias(self, node: ir.Node, bias: Quantizer) -> tuple[Array, Array] | None:
        """Return the scales of a bias, and those of the products that it is added to, if known."""
        source, weight = (self.quantizer_before(node, index) for index in (0, 1))
        if source is None or weight is None:
            return None
        if source.scale is None or weight.scale is None or bias.scale is None:
            return None
        of_products = source.scale.astype(np.float64).reshape(-1) * weight.scale.astype(np.float64)
        return bias.scale.astype(np.float64).reshape(-1), of_products.reshape(-1)

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

    # Integer tensors ------------------------------------------------------------------------

    @cached_property
    def parameters(self) -> dict[ir.Value, Quantizer]:
        """Integer activation -> its quantizer, also behind what only moves integers."""
        found: dict[ir.Value, Quantizer] = {}
        for node in self.model.graph:
            op = INTEGER_OPS.get(node.op_type)
            places = (1, 2) if node.op_type in QUANTIZERS else None if op is None else op.result
            if places is not None:
                own = self.found.get(node) or quantizer_at(node, *places)
                if own.scale_value is not None:
                    found[node.outputs[0]] = own
            elif node.op_type in _MOVES and (first := input_at(node, 0)) in found:
                assert first is not None
                for index in OPERATORS[node.op_type].output_indices(node):
                    found[node.outputs[index]] = found[first]
        return found

    def source_of(self, value: ir.Value) -> ir.Value:
        """Return the tensor that a value is a rounded or dequantized form of."""
        while (maker := value.producer()) is not None and is_conversion(maker):
            source = maker.inputs[0]
            of_scale = maker.op_type == "DynamicQuantizeLinear" and maker.outputs[0] is not value
            if source is None or of_scale:
                return value
            value = source
        return value

    def quantizer_of(self, value: ir.Value) -> ir.Node | None:
        """Return the node that quantizes a float tensor."""
        uses = (use.node for use in value.uses() if use.idx == 0)
        return next((node for node in uses if node.op_type in QUANTIZERS), None)

    def is_quantized(self, value: ir.Value) -> bool:
        """Return whether a tensor is quantized, or rounded to a format, before it is read."""
        return value in self.parameters or any(
            use.node.op_type in QUANTIZERS | ROUNDERS and use.idx == 0 for use in value.uses()
        )

    def works_on_integers(self, node: ir.Node) -> bool:
        """Return whether a node computes with integers, or stands where the runtime makes it so."""
        if is_integer_op(node.op_type) or is_conversion(node) or node.outputs[0] in self.parameters:
            return True
        makers = [value.producer() for value in node.inputs if value is not None]
        rounding = DEQUANTIZERS | ROUNDERS
        reads = [maker for maker in makers if maker is not None and maker.op_type in rounding]
        if any(maker.inputs[0] is not None and maker.inputs[0].is_initializer() for maker in reads):
            return True
        return bool(reads) and any(self.is_quantized(output) for output in node.outputs)

    # Constants as their readers see them ----------------------------------------------------

    def numbers_of(self, value: ir.Value | None) -> Array | None:
        """Return the numbers of a constant input as the node sees them, dequantized if need be."""
        if value is None:
            return None
        maker = value.producer()
        if maker is None or maker.op_type == "Constant":
            array = constant_of(value)
            return array if array is not None and array.dtype.kind == "f" else None
        if maker.op_type not in DEQUANTIZERS:
            return None
        if (stored := stored_weight(maker)) is not None:
            return stored.numbers()
        # A weight may be kept in float behind a pair.
        quantizer = maker_of(maker.inputs[0])
        if quantizer is None or quantizer.op_type not in QUANTIZERS:
            return None
        return None if constant_of(quantizer.inputs[0]) is None else self._through_pair(maker)

    def weights_of(self, node: ir.Node) -> list[Array]:
        """Return the numbers of all constants that a node reads, its integers dequantized."""
        found = [self.numbers_of(value) for value in node.inputs]
        op = INTEGER_OPS.get(node.op_type)
        if op is not None and op.weight_axis is not None and (stored := stored_weight(node)):
            found.append(stored.numbers())
        elif (packed := packed_weight(node)) is not None:
            found.append(packed.numbers())
        return [array for array in found if array is not None]

    @cached_property
    def _extractor(self) -> Extractor:
        return Extractor(self.model)

    def _through_pair(self, dequantizer: ir.Node) -> Array | None:
        """Return what a constant becomes behind a quantizer and a dequantizer."""
        name = dequantizer.outputs[0].name
        if dequantizer.domain not in ("", "com.microsoft") or not name:
            return None
        return Session(self._extractor.extract(Part("", (), (name,)))).run({})[name]

    # What rules of hardware are about -------------------------------------------------------

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


def is_conversion(node: ir.Node) -> bool:
    """Return whether a node only turns numbers into integers or back, or rounds to a format."""
    return node.op_type in _CONVERSIONS


def float_op_type(node: ir.Node) -> str:
    """Return the op that a node does, whatever it computes with."""
    integer_op = INTEGER_OPS.get(node.op_type)
    return node.op_type.removeprefix("QLinear") if integer_op is None else integer_op.computes


def is_fixed(value: ir.Value) -> bool:
    """Return whether a value is a constant, or the dequantized form of one."""
    maker = value.producer()
    while maker is not None and is_conversion(maker) and maker.inputs[0] is not None:
        value = maker.inputs[0]
        maker = value.producer()
    return is_constant(value)


def activations_of(node: ir.Node) -> list[ir.Value]:
    """Return what a node reads and what is not known before the model runs."""
    return [value for value in node.inputs if value is not None and not is_fixed(value)]


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
    maker = maker_of(input_at(node, 0))
    if maker is not None and maker.op_type not in _PAIRS:
        yield maker
    elif maker is not None:
        yield from _makers(maker)


def type_names(types: Sequence[str]) -> str:
    """Return number types in words."""
    return " or ".join(types)
