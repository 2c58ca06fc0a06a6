"""Build dynamically quantized graphs: stored weights, activations quantized at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.emit.qdq import Rounding
from bitwright.emit.quantized import (
    MICROSOFT,
    Quantized,
    convert_to_contrib,
    quantized_tensor,
    to_unsigned,
)
from bitwright.errors import PlanError
from bitwright.graph import NameScope, iter_values
from bitwright.graph.constants import is_constant
from bitwright.graph.editing import (
    Attributes,
    add_initializer,
    graph_of,
    insert_after,
    insert_before,
    insert_behind_value,
    remove_unused_initializers,
    replace_value,
)
from bitwright.graph.tensors import MAX_HELD_BYTES, inline_copy, lazy_tensor, serialized_size
from bitwright.numerics.types import INT8, UINT8, QType
from bitwright.plan import Parameters, QuantPlan

_FLOAT = ir.DataType.FLOAT

Keys = Sequence[str | None]

_Axes = tuple[int, ...] | None

ZeroPoints = Literal["one", "several", "each"]
"""What a kernel takes beside the scales of channels: one zero point for all, one or as many as
there are channels, or always one for each."""


class IntegerWriter:
    """Makes each weight and each activation integer once, and rewires nodes to read them."""

    def __init__(self, model: ir.Model, plan: QuantPlan, round_weights: Rounding) -> None:
        self.names = NameScope(model)
        self._model = model
        self._plan = plan
        self._round = round_weights
        self._values = dict(iter_values(model))
        self._activations: dict[ir.Value, Quantized] = {}
        self._stored: dict[tuple[str, _Axes, QType], ir.Value] = {}
        self._scales: dict[tuple[str, _Axes, ZeroPoints, QType], tuple[ir.Value, ir.Value]] = {}
        self._dequantizers: list[ir.Node] = []
        self._streams = serialized_size(model) > MAX_HELD_BYTES

    def finish(self) -> None:
        """Drop what nothing reads, and put the graph in order."""
        for node in reversed(self._dequantizers):
            result = node.outputs[0]
            if not result.uses() and not result.is_graph_output():
                assert node.graph is not None
                node.graph.remove(node, safe=True)
        remove_unused_initializers(self._model)
        self._model.graph.sort()  # bodies, too
        if any(node.domain == MICROSOFT for node in self._model.graph.all_nodes()):
            self._model.opset_imports.setdefault(MICROSOFT, 1)

    # Integers -----------------------------------------------------------------------------

    def operand(
        self,
        node: ir.Node,
        index: int,
        keys: Keys,
        *,
        transposed: bool = False,
        order: _Axes = None,
        scale_shape: _Axes = None,
        zero_points: ZeroPoints = "one",
        unsigned: bool = False,
    ) -> Quantized:
        """Return what a node reads, as integers: a stored constant, or quantized at run time.

        `transposed` swaps the axes of a matrix, `order` those of any constant; `scale_shape` is the
        shape that scales of channels get, and `zero_points` says which the node takes. `unsigned`
        stores a constant of int8 as the same numbers in uint8.
        """
        key, value = keys[index] if index < len(keys) else None, node.inputs[index]
        assert value is not None
        if key is not None:
            axes = (1, 0) if transposed else order
            return self.stored(key, axes, scale_shape, zero_points, unsigned=unsigned)
        if is_constant(value):
            raise PlanError(
                f"node {node.name!r} is to be quantized, and its constant {value.name!r} has no "
                "entry; set its action to 'float' or make a new plan."
            )
        found = self._activations.get(value) or self._measure(value)
        if not transposed:
            return found
        dtype, name = found.value.dtype or ir.DataType.UINT8, f"{value.name}_transposed"
        swap = {"perm": [1, 0]}
        moved = self.add(node, "Transpose", [found.value], dtype, name=name, attributes=swap)
        return Quantized(moved, found.scale, found.zero_point)

    def _measure(self, value: ir.Value) -> Quantized:
        """Quantize an activation where it is made, for all that read it."""
        label = value.name or ""
        outputs = [
            self._value(f"{label}_quantized", ir.DataType.UINT8),
            self._value(f"{label}_scale", _FLOAT),
            self._value(f"{label}_zero_point", ir.DataType.UINT8),
        ]
        name = self.names.fresh(f"{label}_QuantizeLinear")
        quantizer = ir.node("DynamicQuantizeLinear", [value], outputs=outputs, name=name)
        insert_after(graph_of(value), quantizer, value.producer())
        integers, scale, zero_point = outputs
        self._activations[value] = Quantized(integers, scale, zero_point)
        return self._activations[value]

    def stored(
        self,
        key: str,
        order: _Axes,
        scale_shape: _Axes,
        zero_points: ZeroPoints,
        *,
        unsigned: bool = False,
    ) -> Quantized:
        """Return a constant as integers, stored once in each order of axes; as for `operand`."""
        source = self._values[self._plan.tensors[key].tensor]
        label = source.name or ""
        parameters = self._plan.parameters(key)
        zeros = np.asarray(parameters.zero_point)
        single = np.unique(zeros).size == 1
        if not single and (parameters.block_size or zero_points == "one"):
            raise PlanError(f"tensor {key!r}: its integer operator takes one zero point for it.")
        moved = unsigned and parameters.qtype == INT8
        qtype = UINT8 if moved else parameters.qtype
        stored = (key, order, qtype)
        if stored not in self._stored:
            made = self._integers(source, parameters, order, qtype)
            name = f"{label}_quantized"
            self._stored[stored] = add_initializer(graph_of(source), self.names, name, made)
        place = (key, scale_shape, zero_points, qtype)
        if place not in self._scales:
            scale = np.asarray(parameters.scale, np.float32)
            if parameters.block_size and parameters.axis is not None and scale.ndim:
                scale = scale.squeeze(parameters.axis)  # the one block is the whole axis
            elif scale.ndim and scale_shape is not None:
                scale = scale.reshape(scale_shape)
            if single:
                shape = scale.shape if zero_points == "each" else ()
                zeros = np.full(shape, zeros.reshape(-1)[0])
            zero = to_unsigned(zeros) if moved else zeros.astype(qtype.dtype)
            # Parameters live in the main graph, where every subgraph can read them.
            self._scales[place] = (
                self.constant(f"{label}_scale", scale),
                self.constant(f"{label}_zero_point", zero),
            )
        return Quantized(self._stored[stored], *self._scales[place])

    def _integers(
        self, source: ir.Value, parameters: Parameters, order: _Axes, qtype: QType
    ) -> ir.TensorProtocol:
        """Return the integers of a constant; those of a large model are made when it is written."""
        tensor = source.const_value
        assert tensor is not None

        def make() -> ir.TensorProtocol:
            # A copy: the mapped file would stay in memory.
            integers = self._round(inline_copy(tensor).numpy(), parameters)
            integers = integers if order is None else np.transpose(integers, order)
            moved = qtype != parameters.qtype
            return quantized_tensor(to_unsigned(integers) if moved else integers, qtype)

        shape = np.array(tensor.shape.numpy())[list(order or range(len(tensor.shape)))]
        kind = ir.DataType(qtype.onnx_type)
        return lazy_tensor(make, kind, shape.tolist()) if self._streams else make()

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
        to_float, name = {"to": int(_FLOAT)}, f"{label}_cast"
        floats = self.add(
            node, "Cast", [product], name=name, output=f"{name}_output", attributes=to_float
        )
        name = f"{stem}_scales_mul"
        both = self.add(node, "Mul", scales, name=name, output=f"{name}:0")
        if factor != 1.0:
            number = self.constant(f"{stem}_alpha", np.float32(factor))
            both = self.add(node, "Mul", [both, number], name=f"{stem}_alpha_mul")
        return self.add(node, "Mul", [floats, both], name=f"{stem}_output_scale_mul")

    def dequantize_result(self, node: ir.Node, source: Quantized) -> None:
        """Let a node that moves integers be read both as integers and as floats."""
        moved = node.outputs[0]
        label = moved.name or ""
        dequantizer = insert_behind_value(
            moved,
            "DequantizeLinear",
            [source.scale, source.zero_point],
            renamed=self.names.fresh(f"{label}_quantized"),
            name=self.names.fresh(f"{label}_DequantizeLinear"),
        )
        moved.type = ir.TensorType(source.value.dtype or ir.DataType.UINT8)
        self._dequantizers.append(dequantizer)
        result = dequantizer.outputs[0]
        self._activations[result] = Quantized(moved, source.scale, source.zero_point)

    def convert(self, node: ir.Node, op_type: str, inputs: Sequence[ir.Value | None]) -> None:
        """Make a node the integer operator of com.microsoft that does the same."""
        values = list(inputs)
        while values[-1] is None:
            values.pop()
        convert_to_contrib(node, op_type, values, node.attributes)
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
        attributes: Attributes = None,
    ) -> ir.Value:
        """Put a new node before another and return its result."""
        name = name or f"{inputs[0].name}_{op_type}"
        result = self._value(output or f"{name}_output", dtype)
        return insert_before(before, op_type, inputs, result, self.names.fresh(name), attributes)

    def add_behind(
        self,
        value: ir.Value,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        dtype: ir.DataType = _FLOAT,
        *,
        name: str,
        attributes: Attributes = None,
    ) -> ir.Value:
        """Put a new node where a value is made, for all that read it, and return its result."""
        result = self._value(name, dtype)
        node = ir.node(op_type, inputs, attributes, outputs=[result], name=self.names.fresh(name))
        insert_after(graph_of(value), node, value.producer())
        return result

    def replace(self, node: ir.Node, result: ir.Value) -> None:
        """Let a value take the place of a node's result, name and all, and drop the node."""
        replace_value(node.outputs[0], result)
        assert node.graph is not None
        node.graph.remove(node, safe=True)

    def constant(self, name: str, array: npt.NDArray[np.generic] | np.generic) -> ir.Value:
        """Return a new constant of the main graph."""
        return add_initializer(self._model.graph, self.names, name, array)

    def _value(self, name: str, dtype: ir.DataType) -> ir.Value:
        return ir.Value(name=self.names.fresh(name), type=ir.TensorType(dtype))
