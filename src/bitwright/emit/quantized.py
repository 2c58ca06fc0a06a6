"""Quantized tensors of a graph: integers with their scale and zero point, and stored ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.graph import NameScope, add_initializer, constant_of, input_at, replace_inputs
from bitwright.numerics.types import QType
from bitwright.support.array_types import Array

MICROSOFT = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""

_PACKED = {name: getattr(ml_dtypes, name) for name in ("int4", "uint4", "int2", "uint2")}


@dataclass(frozen=True, slots=True)
class Quantized:
    """An integer tensor with the scale and zero point that give it its meaning."""

    value: ir.Value
    scale: ir.Value
    zero_point: ir.Value

    @property
    def dtype(self) -> ir.DataType | None:
        """The integer type."""
        return self.zero_point.dtype

    @property
    def is_whole(self) -> bool:
        """Whether one scale covers the tensor."""
        array = constant_of(self.scale)
        return array is not None and array.size == 1

    def means_the_same_as(self, other: Quantized) -> bool:
        """Whether equal integers of both are equal numbers."""
        if self.scale is other.scale and self.zero_point is other.zero_point:
            return True
        pairs = ((self.scale, other.scale), (self.zero_point, other.zero_point))
        arrays = [(constant_of(one), constant_of(two)) for one, two in pairs]
        return self.dtype == other.dtype and all(
            one is not None and two is not None and np.array_equal(one, two) for one, two in arrays
        )


def quantized_tensor(array: Array, qtype: QType | None) -> ir.Tensor[Any]:
    """Return a tensor of a number type; None is the array's own."""
    if qtype is not None and qtype.name in _PACKED:
        array = array.astype(_PACKED[qtype.name])
    dtype = None if qtype is None else ir.DataType(qtype.onnx_type)
    return ir.Tensor(np.asarray(array, order="C"), dtype)


def to_unsigned(integers: Array) -> npt.NDArray[np.uint8]:
    """Return integers of int8 moved up into uint8; with their zero point, they mean the same.

    For the weights of ConvInteger: before 1.24, ONNX Runtime has no kernel for those of int8, and
    that of 1.31 took 24 times as long as the one for uint8 (3x3, 64 to 64 channels, x86).
    """
    return (integers.astype(np.int16) + 128).astype(np.uint8)


def add_quantized(
    graph: ir.Graph, names: NameScope, name: str, array: Array, qtype: QType
) -> ir.Value:
    """Add a constant of a number type to a graph, under this name or a free one like it."""
    return add_initializer(graph, names, name, quantized_tensor(array, qtype))


def convert_to_contrib(
    node: ir.Node, op_type: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any]
) -> None:
    """Turn a node, in its place, into an operator of com.microsoft with just these attributes."""
    converted = ir.convenience.convert_attributes(attributes)
    node.op_type, node.domain, node.version = op_type, MICROSOFT, None
    replace_inputs(node, inputs)
    node.attributes.clear()
    for attribute in converted:
        node.attributes.add(attribute)


def embedding_inputs(node: ir.Node, tables: Sequence[Quantized | None]) -> list[ir.Value | None]:
    """Return what QEmbedLayerNormalization reads where EmbedLayerNormalization reads tables."""
    values, scales, zero_points = (
        [None if table is None else getattr(table, part) for table in tables]
        for part in ("value", "scale", "zero_point")
    )
    ids, mask = (input_at(node, 0), input_at(node, 1)), input_at(node, 7)
    return [*ids, *values, mask, *scales, *zero_points]
