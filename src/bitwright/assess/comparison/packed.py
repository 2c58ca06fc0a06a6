"""Low-bit weights in blocks, as MatMulNBits and GatherBlockQuantized store them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.graph.constants import constant_of, input_at
from bitwright.numerics.blocks import QuantizedBlocks
from bitwright.numerics.nbits import NBitsTensors, unpack_nbits

__all__ = ["PackedWeight", "packed_weight"]

Array = npt.NDArray[Any]


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
    """Return what a node keeps in blocks; None where it keeps nothing so, or in a form unknown."""
    if node.op_type == "MatMulNBits":
        packed = _product(node)
    elif node.op_type == "GatherBlockQuantized":
        packed = _table(node)
    else:
        return None
    return None if packed is None else PackedWeight(packed, node.op_type != "MatMulNBits")


def _product(node: ir.Node) -> NBitsTensors | None:
    codes, scales, zeros, order = (constant_of(input_at(node, index)) for index in (1, 2, 3, 4))
    rows, columns = (node.attributes.get_int(key, 0) for key in ("K", "N"))
    bits, size = _form(node)
    if codes is None or scales is None or order is not None or codes.dtype != np.uint8:
        return None
    blocks = -(-rows // size)
    if codes.size != columns * blocks * size * bits // 8 or scales.size != columns * blocks:
        return None
    return NBitsTensors(
        codes=codes.reshape(columns, blocks, -1),
        scales=scales,
        zero_points=zeros,
        rows=rows,
        bits=bits,
        block_size=size,
    )


def _table(node: ir.Node) -> NBitsTensors | None:
    codes, scales, zeros = (
        _bytes_of_table(node),
        constant_of(input_at(node, 2)),
        constant_of(input_at(node, 3)),
    )
    bits, size = _form(node)
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
    return NBitsTensors(
        codes=filled.reshape(entries, blocks, -1),
        scales=scales,
        zero_points=zeros,
        rows=width,
        bits=bits,
        block_size=size,
    )


def _bytes_of_table(node: ir.Node) -> Array | None:
    """Return the table's bytes, a row for each entry; a head may keep them in another shape."""
    value = node.inputs[0]
    maker = None if value is None else value.producer()
    if maker is not None and maker.op_type == "Reshape":
        value = maker.inputs[0]
    array = constant_of(value)
    return None if array is None or array.ndim < 2 else array.reshape(array.shape[0], -1)


def _form(node: ir.Node) -> tuple[int, int]:
    return node.attributes.get_int("bits", 4), node.attributes.get_int("block_size", 128)
