"""Quantized operands and results of nodes between Q/DQ pairs, and integer nodes in their place."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from bitwright.emit.quantized import MICROSOFT, Quantized, convert_to_contrib, to_unsigned
from bitwright.graph import NameScope, constant_of, maker_of
from bitwright.graph.editing import add_initializer, insert_before, like, replace_value
from bitwright.support.array_types import Array

EIGHT_BITS = (ir.DataType.INT8, ir.DataType.UINT8)


class PairGraph:
    """Finds what feeds and follows a node as integers, and puts integer nodes in its place."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.names = NameScope(model)
        self._unsigned: dict[ir.Value, ir.Value] = {}

    # Looking ------------------------------------------------------------------------------

    def operand(self, value: ir.Value | None) -> Quantized | None:
        """Return the integers behind a float value that a DequantizeLinear gives."""
        node = maker_of(value)
        if node is None or node.op_type != "DequantizeLinear" or "block_size" in node.attributes:
            return None
        return self.quantized(node, node.inputs[0])

    def operands(self, values: Sequence[ir.Value | None]) -> list[Quantized] | None:
        """Return the 8-bit integers behind all values, or None if one of them has none."""
        found = [self.operand(value) for value in values]
        if any(item is None or item.dtype not in EIGHT_BITS for item in found):
            return None
        return [item for item in found if item is not None]

    def result(self, value: ir.Value) -> Quantized | None:
        """Return what a value becomes where a QuantizeLinear to 8 bits is its only reader."""
        quantizers = self.quantizers(value)
        if len(quantizers) != 1 or len(value.uses()) != 1 or value.is_graph_output():
            return None
        found = self.quantized(quantizers[0], quantizers[0].outputs[0])
        return found if found is not None and found.dtype in EIGHT_BITS else None

    def quantizers(self, value: ir.Value) -> list[ir.Node]:
        """Return the QuantizeLinear nodes that read a value."""
        readers = [use.node for use in value.uses() if use.idx == 0]
        return [node for node in readers if node.op_type == "QuantizeLinear"]

    def label(self, value: ir.Value) -> str:
        """Return the name by which users know a value: that of the output it becomes, if any."""
        for quantizer in self.quantizers(value):
            for use in quantizer.outputs[0].uses():
                output = use.node.outputs[0]
                if use.node.op_type == "DequantizeLinear" and output.is_graph_output():
                    return output.name or ""
        return value.name or ""

    def quantized(self, node: ir.Node, integers: ir.Value | None) -> Quantized | None:
        """Return integers with the scale and zero point of a node that reads or writes them."""
        _, scale, zero_point = node.inputs
        if integers is None or scale is None or zero_point is None:
            return None
        return Quantized(integers, scale, zero_point)

    # Building -----------------------------------------------------------------------------

    def constant(self, name: str, array: Array) -> ir.Value:
        """Return a new initializer of the main graph, where every subgraph can read it."""
        return add_initializer(self.model.graph, self.names, name, array)

    def parameters(self, name: str, scale: float, zero_point: Array) -> list[ir.Value]:
        """Return a new scale and zero point for a whole tensor.

        Without axes: ONNX Runtime refuses scales of shape [1] for QLinearAveragePool.
        """
        return [
            self.constant(f"{name}_scale", np.asarray(scale, np.float32)),
            self.constant(f"{name}_zero_point", zero_point.reshape(())),
        ]

    def unsigned(self, value: ir.Value) -> ir.Value:
        """Return a constant of int8 in uint8, stored once for all that read it; others as are."""
        array = constant_of(value)
        if array is None or array.dtype != np.int8:
            return value
        if value not in self._unsigned:
            self._unsigned[value] = self.constant(f"{value.name}_unsigned", to_unsigned(array))
        return self._unsigned[value]

    def triple(self, item: Quantized) -> list[ir.Value]:
        """Return integers, scale and zero point in the order in which integer ops read them."""
        return [item.value, *self.pair(item)]

    def pair(self, item: Quantized) -> list[ir.Value]:
        """Return scale and zero point."""
        return [item.scale, item.zero_point]

    def insert(
        self,
        place: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Any = (),
        *,
        name: str,
        output: str,
        dtype: ir.DataType | None,
        shape: ir.Shape | None = None,
    ) -> ir.Value:
        """Put a node with one output before another node, and return the output."""
        domain = "" if onnx.defs.has(op_type) else MICROSOFT
        if domain:
            self.model.opset_imports.setdefault(domain, 1)
        value = ir.Value(
            name=self.names.fresh(output),
            type=None if dtype is None else ir.TensorType(dtype),
            shape=shape,
        )
        fresh = self.names.fresh(name)
        return insert_before(place, op_type, inputs, value, fresh, dict(attributes), domain=domain)

    def stored(
        self, place: ir.Node, name: str, integers: Array, scale: float, zero_point: Array
    ) -> ir.Value:
        """Return new constant integers, dequantized before a node."""
        stored = self.constant(name, integers)
        return self._dequantized(place, name, stored, self.parameters(name, scale, zero_point))

    def paired(
        self,
        place: ir.Node,
        name: str,
        value: ir.Value,
        written: Sequence[ir.Value],
        read: Sequence[ir.Value] | None = None,
    ) -> ir.Value:
        """Return a value behind a pair, before a node; it may be `read` with another scale."""
        integers = self.insert(
            place,
            "QuantizeLinear",
            [value, *written],
            name=f"{name}_QuantizeLinear",
            output=f"{name}_quantized",
            dtype=written[1].dtype,
            shape=value.shape,
        )
        return self._dequantized(place, name, integers, read or written)

    def _dequantized(
        self, place: ir.Node, name: str, integers: ir.Value, pair: Sequence[ir.Value]
    ) -> ir.Value:
        return self.insert(
            place,
            "DequantizeLinear",
            [integers, *pair],
            name=f"{name}_DequantizeLinear",
            output=f"{name}_dequantized",
            dtype=ir.DataType.FLOAT,
            shape=integers.shape,
        )

    def substitute(
        self, node: ir.Node, op_type: str, inputs: Sequence[ir.Value | None], attributes: Any = ()
    ) -> None:
        """Replace a node and the QuantizeLinear behind it by one integer op."""
        (quantizer,) = self.quantizers(node.outputs[0])
        old = quantizer.outputs[0]
        name, label = f"{node.name}_quant", f"{self.label(node.outputs[0])}_quantized"
        insert = partial(self.insert, node, name=name, output=label)
        self.join(node, insert(op_type, inputs, attributes, dtype=old.dtype, shape=old.shape))

    def join(self, node: ir.Node, value: ir.Value) -> None:
        """Let a new integer value stand for a node and the QuantizeLinear behind it."""
        (quantizer,) = self.quantizers(node.outputs[0])
        quantizer.outputs[0].replace_all_uses_with(value, replace_graph_outputs=True)
        _remove(quantizer, node)

    def write_float(self, node: ir.Node, value: ir.Value) -> None:
        """Let a new value stand where a node's float output stood, under its name."""
        replace_value(node.outputs[0], value)
        _remove(node)

    def exchange(
        self, node: ir.Node, op_type: str, inputs: Sequence[ir.Value | None], attributes: Any
    ) -> None:
        """Replace a node by one of com.microsoft that writes the same tensors, by name, too."""
        self.model.opset_imports.setdefault(MICROSOFT, 1)
        convert_to_contrib(node, op_type, inputs, attributes)
        node.name = self.names.fresh(f"{node.name}_quant")

    def move_integers(self, node: ir.Node, source: Quantized) -> bool:
        """Let a node that only moves values work on integers; False if nobody reads them so."""
        moved = [v for v in node.outputs if v.dtype is None or v.dtype.is_floating_point()]
        if any(value.is_graph_output() for value in moved):
            return False
        quantizers = {value: self._same_quantizers(value, source) for value in moved}
        labels = {value: self.label(value) for value in moved}
        if not any(quantizers.values()):
            return False
        node.replace_input_with(0, source.value)
        for value in moved:
            others = [use for use in value.uses() if use.node not in quantizers[value]]
            if others:
                given = self._dequantize(node, value, source)
                for reader, index in others:
                    reader.replace_input_with(index, given)
            for quantizer in quantizers[value]:
                quantizer.outputs[0].replace_all_uses_with(value, replace_graph_outputs=True)
                _remove(quantizer)
            value.type = ir.TensorType(source.dtype or ir.DataType.UINT8)
            value.name = self.names.fresh(f"{labels[value]}_quantized")
        return True

    def _same_quantizers(self, value: ir.Value, source: Quantized) -> list[ir.Node]:
        """Return the readers of a value that only make the integers of `source` of it again."""
        return [
            quantizer
            for quantizer in self.quantizers(value)
            if (found := self.quantized(quantizer, quantizer.outputs[0])) is not None
            and found.means_the_same_as(source)
        ]

    def _dequantize(self, node: ir.Node, value: ir.Value, source: Quantized) -> ir.Value:
        given = like(value, self.names.fresh(f"{value.name}_DequantizeLinear_Output"))
        name = self.names.fresh(f"{value.name}_DequantizeLinear")
        inputs = [value, source.scale, source.zero_point]
        dequantizer = ir.node("DequantizeLinear", inputs, outputs=[given], name=name)
        assert node.graph is not None
        node.graph.insert_after(node, dequantizer)
        return given


def _remove(*nodes: ir.Node) -> None:
    """Remove nodes of one graph; constants stay until the end, others may yet read them."""
    graph = nodes[0].graph
    assert graph is not None
    graph.remove(nodes, safe=True)
