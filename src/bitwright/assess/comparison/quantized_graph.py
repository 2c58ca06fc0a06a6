"""A quantized model of any tool: its integer tensors, their parameters and its weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx_ir as ir

from bitwright.assess.sums import Codes
from bitwright.decide.ops import OPERATORS, op_types
from bitwright.graph.constants import constant_of, input_at, is_constant
from bitwright.graph.quantized_ops import (
    DEQUANTIZERS,
    INTEGER_OPS,
    QUANTIZERS,
    ROUNDERS,
    is_integer_op,
)
from bitwright.graph.quantizers import QuantizationParameters, stored_weight
from bitwright.numerics.blocks import QuantizedBlocks
from bitwright.numerics.nbits import NBitsTensors, unpack_nbits
from bitwright.support.array_types import Array

_CONVERSIONS = QUANTIZERS | DEQUANTIZERS | ROUNDERS | {"DynamicQuantizeLinear"}
# They move integers and keep what these stand for.
_MOVES = op_types(lambda op: op.keeps_scale)


class QuantizedGraph:
    """A quantized model seen through its quantizers: what each integer tensor means."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.nodes = list(model.graph)

    @cached_property
    def parameters(self) -> dict[ir.Value, QuantizationParameters]:
        """Integer activation -> its scale and zero point."""
        found: dict[ir.Value, QuantizationParameters] = {}
        for node in self.nodes:
            op = INTEGER_OPS.get(node.op_type)
            places = (1, 2) if node.op_type in QUANTIZERS else None if op is None else op.result
            if places is not None:
                if (own := QuantizationParameters.at(node, *places)) is not None:
                    found[node.outputs[0]] = own
            elif node.op_type in _MOVES and (first := input_at(node, 0)) in found:
                assert first is not None
                for index in OPERATORS[node.op_type].output_indices(node):
                    found[node.outputs[index]] = found[first]
        return found

    def codes_of(self, value: ir.Value) -> Codes | None:
        """Return scale and zero point of an integer tensor, where it has one constant scale."""
        parameters = self.parameters.get(value)
        found = None if parameters is None else parameters.constants()
        if parameters is None or found is None or found[0].size != 1:
            return None
        kind = parameters.type_of(value)
        if kind is None or not kind.is_integer or kind.bits not in (8, 16):
            return None
        scale, zero = (array.reshape(-1)[0] for array in found)
        return Codes(float(scale), int(zero), int(kind.lowest), int(kind.highest))

    def origin(self, value: ir.Value) -> ir.Value:
        """Return the tensor that a value is a rounded or dequantized form of."""
        while True:
            maker = value.producer()
            if maker is None or not is_conversion(maker):
                return value
            source = maker.inputs[0]
            if source is None or (
                maker.op_type == "DynamicQuantizeLinear" and maker.outputs[0] is not value
            ):
                return value
            value = source

    def quantizer_of(self, value: ir.Value) -> ir.Node | None:
        """Return the node that quantizes a float tensor."""
        return next(
            (use.node for use in value.uses() if use.node.op_type in QUANTIZERS and use.idx == 0),
            None,
        )

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

    def weight(self, value: ir.Value | None) -> Array | None:
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
        source = maker.inputs[0]
        quantizer = None if source is None else source.producer()
        if quantizer is None or quantizer.op_type not in QUANTIZERS:
            return None
        return None if constant_of(quantizer.inputs[0]) is None else self._through_pair(maker)

    def weights_of(self, node: ir.Node) -> list[Array]:
        """Return the numbers of all constants that a node reads, its integers dequantized."""
        found = [self.weight(value) for value in node.inputs]
        op = INTEGER_OPS.get(node.op_type)
        if op is not None and op.weight_axis is not None and (stored := stored_weight(node)):
            found.append(stored.numbers())
        elif (packed := packed_weight(node)) is not None:
            found.append(packed.numbers())
        return [array for array in found if array is not None]

    def _through_pair(self, dequantizer: ir.Node) -> Array | None:
        """Return what a constant becomes behind a quantizer and a dequantizer."""
        from bitwright.run import Extractor, Part, Session

        name = dequantizer.outputs[0].name
        if dequantizer.domain not in ("", "com.microsoft") or not name:
            return None
        part = Extractor(self.model).extract(Part("", (), (name,)))
        return Session(part).run({})[name]


def is_conversion(node: ir.Node) -> bool:
    """Return whether a node only turns numbers into integers or back, or rounds to a format."""
    return node.op_type in _CONVERSIONS


def float_op_type(node: ir.Node) -> str:
    """Return the op that a node does, whatever it computes with."""
    integer_op = INTEGER_OPS.get(node.op_type)
    return node.op_type.removeprefix("QLinear") if integer_op is None else integer_op.computes


def activations_of(node: ir.Node) -> list[ir.Value]:
    """Return what a node reads and what is not known before the model runs."""
    return [value for value in node.inputs if value is not None and not _is_fixed(value)]


def _is_fixed(value: ir.Value) -> bool:
    """Return whether a value is a constant, or the dequantized form of one."""
    maker = value.producer()
    while maker is not None and is_conversion(maker) and maker.inputs[0] is not None:
        value = maker.inputs[0]
        maker = value.producer()
    return is_constant(value)


# Low-bit weights in blocks, as MatMulNBits and GatherBlockQuantized store them --------------


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """The weight of a MatMulNBits or GatherBlockQuantized node as it is stored."""

    tensors: NBitsTensors
    is_table: bool
    """Whether it is a table of embeddings, read by rows."""

    def unpack(self) -> QuantizedBlocks:
        """Return codes, scales and zero points, as [K, N] or [width, entries]."""
        return unpack_nbits(self.tensors)

    def numbers(self) -> Array:
        """Return the weight as its float model has it: [K, N], or [entries, width]."""
        found = self.unpack().dequantize(np.float32)
        return found.T if self.is_table else found


def packed_weight(node: ir.Node) -> PackedWeight | None:
    """Return the weight of a node in blocks; None where it has none, or in an unknown form."""
    read = {"MatMulNBits": _product, "GatherBlockQuantized": _table}.get(node.op_type)
    bits, size = (node.attributes.get_int(name, usual) for name, usual in _FORM)
    found = None if read is None else read(node, bits, size)
    if found is None:
        return None
    codes, scales, zeros, rows = found
    tensors = NBitsTensors(
        codes=codes, scales=scales, zero_points=zeros, rows=rows, bits=bits, block_size=size
    )
    return PackedWeight(tensors, node.op_type == "GatherBlockQuantized")


_FORM = (("bits", 4), ("block_size", 128))
_Packed = tuple[Array, Array, Array | None, int]
"""Codes as [columns, blocks, bytes], scales, zero points and rows of a weight in blocks."""


def _product(node: ir.Node, bits: int, size: int) -> _Packed | None:
    codes, scales, zeros, order = (constant_of(input_at(node, index)) for index in (1, 2, 3, 4))
    rows, columns = (node.attributes.get_int(key, 0) for key in ("K", "N"))
    if codes is None or scales is None or order is not None or codes.dtype != np.uint8:
        return None
    blocks = -(-rows // size)
    if codes.size != columns * blocks * size * bits // 8 or scales.size != columns * blocks:
        return None
    return codes.reshape(columns, blocks, -1), scales, zeros, rows


def _table(node: ir.Node, bits: int, size: int) -> _Packed | None:
    codes, scales = _bytes_of_table(node), constant_of(input_at(node, 2))
    if codes is None or scales is None or codes.dtype != np.uint8:
        return None
    axes = node.attributes.get_int("gather_axis", 0), node.attributes.get_int("quantize_axis", 1)
    entries, width = codes.shape[0], codes.shape[1] * 8 // bits
    blocks = -(-width // size)
    if axes not in ((0, 1), (0, -1)) or scales.size != entries * blocks:
        return None
    # The last block of a table ends with its entry; that of a product is filled up.
    filled = np.zeros((entries, blocks * size * bits // 8), np.uint8)
    filled[:, : codes.shape[1]] = codes
    return filled.reshape(entries, blocks, -1), scales, constant_of(input_at(node, 3)), width


def _bytes_of_table(node: ir.Node) -> Array | None:
    """Return the table's bytes, a row for each entry; a head may keep them in another shape."""
    value = node.inputs[0]
    maker = None if value is None else value.producer()
    if maker is not None and maker.op_type == "Reshape":
        value = maker.inputs[0]
    array = constant_of(value)
    return None if array is None or array.ndim < 2 else array.reshape(array.shape[0], -1)
