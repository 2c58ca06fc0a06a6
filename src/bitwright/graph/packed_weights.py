"""Low-bit weights in blocks, as MatMulNBits and GatherBlockQuantized store them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bitwright.graph.constants import constant_of, input_at
from bitwright.numerics import NBitsTensors, QuantizedBlocks, unpack_nbits
from bitwright.support.array_types import Array


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
