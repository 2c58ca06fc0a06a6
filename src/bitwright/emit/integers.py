"""Integers in a graph whose activations are quantized at run time, and the way back to float."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.emit.building import (
    add_initializer,
    insert_node,
    owner_of,
    remove_unused_initializers,
)
from bitwright.emit.qdq import Rounding
from bitwright.errors import PlanError
from bitwright.graph import NameScope, iter_values
from bitwright.graph.constants import is_constant
from bitwright.plan import QuantPlan

__all__ = ["IntegerWriter", "Integers"]

_FLOAT = ir.DataType.FLOAT
_MICROSOFT = "com.microsoft"

_Axes = tuple[int, ...] | None

ZeroPoints = Literal["one", "several", "each"]
"""What a kernel takes beside the scales of channels: one zero point for all, one or as many as
there are channels, or always one for each."""


@dataclass(frozen=True, slots=True)
class Integers:
    """A tensor in 8 bits with its scale and zero point."""

    value: ir.Value
    scale: ir.Value
    zero_point: ir.Value


class IntegerWriter:
    """Makes each weight and each activation integer once, and rewires nodes to read them."""

    def __init__(self, model: ir.Model, plan: QuantPlan, round_weights: Rounding) -> None:
        self.names = NameScope(model)
        self._model = model
        self._plan = plan
        self._round = round_weights
        self._values = dict(iter_values(model))
        self._activations: dict[ir.Value, Integers] = {}
        self._stored: dict[tuple[str, _Axes], ir.Value] = {}
        self._scales: dict[tuple[str, _Axes, ZeroPoints], tuple[ir.Value, ir.Value]] = {}
        self._dequantizers: list[ir.Node] = []

    def finish(self) -> None:
        """Drop what nothing reads, and put the graph in order."""
        for node in reversed(self._dequantizers):
            result = node.outputs[0]
            if not result.uses() and not result.is_graph_output():
                assert node.graph is not None
                node.graph.remove(node, safe=True)
        remove_unused_initializers(self._model)
        for graph in self._model.graphs():
            graph.sort()
        if any(node.domain == _MICROSOFT for node in self._model.graph.all_nodes()):
            self._model.opset_imports.setdefault(_MICROSOFT, 1)

    # Integers -----------------------------------------------------------------------------

    def operand(
        self,
        node: ir.Node,
        index: int,
        keys: Sequence[str | None],
        *,
        turned: bool = False,
        order: _Axes = None,
        scale_shape: _Axes = None,
        zero_points: ZeroPoints = "one",
    ) -> Integers:
        """Return what a node reads, as integers: a stored constant, or quantized at run time.

        `turned` swaps the axes of a matrix, `order` those of any constant; `scale_shape` is the
        shape that scales of channels get, and `zero_points` says which the node takes.
        """
        key, value = keys[index] if index < len(keys) else None, node.inputs[index]
        assert value is not None
        if key is not None:
            return self._constant(key, (1, 0) if turned else order, scale_shape, zero_points)
        if is_constant(value):
            raise PlanError(
                f"node {node.name!r} is to be quantized, and its constant {value.name!r} has no "
                "entry; set its action to 'float' or make a new plan."
            )
        found = self._activations.get(value) or self._measure(value)
        if not turned:
            return found
        moved = self.add(
            node,
            "Transpose",
            [found.value],
            found.value.dtype or ir.DataType.UINT8,
            name=f"{value.name}_transposed",
            attributes=[ir.AttrInt64s("perm", [1, 0])],
        )
        return Integers(moved, found.scale, found.zero_point)

    def _measure(self, value: ir.Value) -> Integers:
        """Quantize an activation where it is made, for all that read it."""
        label = value.name or ""
        outputs = [
            self._value(f"{label}_quantized", ir.DataType.UINT8),
            self._value(f"{label}_scale", _FLOAT),
            self._value(f"{label}_zero_point", ir.DataType.UINT8),
        ]
        quantizer = ir.node(
            "DynamicQuantizeLinear",
            [value],
            outputs=outputs,
            name=self.names.fresh(f"{label}_QuantizeLinear"),
        )
        insert_node(owner_of(value), quantizer, value.producer())
        integers, scale, zero_point = outputs
        self._activations[value] = Integers(integers, scale, zero_point)
        return self._activations[value]

    def _constant(
        self, key: str, order: _Axes, scale_shape: _Axes, zero_points: ZeroPoints
    ) -> Integers:
        source = self._values[self._plan.tensors[key].tensor]
        label = source.name or ""
        parameters = self._plan.parameters(key)
        zeros = np.asarray(parameters.zero_point)
        alike = np.unique(zeros).size == 1
        if not alike and (parameters.block_size or zero_points == "one"):
            raise PlanError(f"tensor {key!r}: its integer operator takes one zero point for it.")
        if (key, order) not in self._stored:
            tensor = source.const_value
            assert tensor is not None
            integers = self._round(tensor.numpy(), parameters)
            if isinstance(tensor, ir.ExternalTensor):
                tensor.release()  # or the mapped file stays in memory
            if order is not None:
                integers = np.transpose(integers, order)
            self._stored[key, order] = add_initializer(
                owner_of(source), self.names, f"{label}_quantized", integers, parameters.qtype
            )
        place = (key, scale_shape, zero_points)
        if place not in self._scales:
            scale = np.asarray(parameters.scale, np.float32)
            if parameters.block_size and parameters.axis is not None and scale.ndim:
                scale = scale.squeeze(parameters.axis)  # the one block is the whole axis
            elif scale.ndim and scale_shape is not None:
                scale = scale.reshape(scale_shape)
            if alike:
                shape = scale.shape if zero_points == "each" else ()
                zeros = np.full(shape, zeros.reshape(-1)[0])
            zero = zeros.astype(parameters.qtype.dtype)
            # Parameters live in the main graph, where every subgraph can read them.
            self._scales[place] = (
                self.constant(f"{label}_scale", scale),
                self.constant(f"{label}_zero_point", zero),
            )
        return Integers(self._stored[key, order], *self._scales[place])

    # Floats -------------------------------------------------------------------------------

    def rescale(
        self,
        node: ir.Node,
        product: ir.Value,
        scales: tuple[ir.Value, ir.Value],
        stem: str,
        factor: float = 1.0,
    ) -> ir.Value:
        """Return a product of integers as floats."""
        label = product.name or ""
        floats = self.add(
            node,
            "Cast",
            [product],
            name=f"{label}_cast",
            output=f"{label}_cast_output",
            attributes=[ir.AttrInt64("to", _FLOAT)],
        )
        name = f"{stem}_scales_mul"
        both = self.add(node, "Mul", scales, name=name, output=f"{name}:0")
        if factor != 1.0:
            number = self.number(f"{stem}_alpha", factor)
            both = self.add(node, "Mul", [both, number], name=f"{stem}_alpha_mul")
        return self.add(node, "Mul", [floats, both], name=f"{stem}_output_scale_mul")

    def dequantize_result(self, node: ir.Node, source: Integers) -> None:
        """Let a node that moves integers be read both as integers and as floats."""
        moved = node.outputs[0]
        label = moved.name or ""
        result = ir.Value(type=moved.type, shape=moved.shape)
        moved.replace_all_uses_with(result, replace_graph_outputs=True)
        moved.name = self.names.fresh(f"{label}_quantized")
        moved.type = ir.TensorType(source.value.dtype or ir.DataType.UINT8)
        result.name = label
        dequantizer = ir.node(
            "DequantizeLinear",
            [moved, source.scale, source.zero_point],
            outputs=[result],
            name=self.names.fresh(f"{label}_DequantizeLinear"),
        )
        assert isinstance(node.graph, ir.Graph)
        insert_node(node.graph, dequantizer, node)
        self._dequantizers.append(dequantizer)
        self._activations[result] = Integers(moved, source.scale, source.zero_point)

    def turn_into(self, node: ir.Node, op_type: str, inputs: Sequence[ir.Value | None]) -> None:
        """Make a node the integer operator of com.microsoft that does the same."""
        values = list(inputs)
        while values[-1] is None:
            values.pop()
        node.resize_inputs(len(values))
        for index, value in enumerate(values):
            node.replace_input_with(index, value)
        node.op_type, node.domain = op_type, _MICROSOFT
        node.name = self.names.fresh(f"{node.name}_quant")

    # The graph ----------------------------------------------------------------------------

    def add(
        self,
        before: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value],
        dtype: ir.DataType = _FLOAT,
        *,
        name: str = "",
        output: str = "",
        attributes: Iterable[ir.Attr] = (),
    ) -> ir.Value:
        """Put a new node before another and return its result."""
        name = name or f"{inputs[0].name}_{op_type}"
        result = self._value(output or f"{name}_output", dtype)
        new = ir.Node(
            "", op_type, inputs, list(attributes), outputs=[result], name=self.names.fresh(name)
        )
        assert isinstance(before.graph, ir.Graph)
        before.graph.insert_before(before, new)
        return result

    def replace(self, node: ir.Node, result: ir.Value) -> None:
        """Let a value take the place of a node's result, name and all, and drop the node."""
        old = node.outputs[0]
        label = old.name
        result.type, result.shape = old.type, old.shape
        old.replace_all_uses_with(result, replace_graph_outputs=True)
        assert node.graph is not None
        node.graph.remove(node, safe=True)
        old.name = None
        result.name = label

    def constant(self, name: str, array: npt.NDArray[np.generic]) -> ir.Value:
        """Return a new constant of the main graph."""
        return add_initializer(self._model.graph, self.names, name, array)

    def number(self, name: str, number: float) -> ir.Value:
        """Return a new constant of one element."""
        return self.constant(name, np.asarray(number, np.float32))

    def _value(self, name: str, dtype: ir.DataType) -> ir.Value:
        return ir.Value(name=self.names.fresh(name), type=ir.TensorType(dtype))
