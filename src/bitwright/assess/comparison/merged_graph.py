"""A merged graph of two models, so that one run of it computes both side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping

import onnx_ir as ir

from bitwright.assess.comparison.units import Cut, Units, outer_inputs
from bitwright.errors import ModelError
from bitwright.graph import opset_of, stamp_versions
from bitwright.graph.editing import add_initializer, append_node, copy_node, like
from bitwright.graph.subgraphs import subgraphs_of
from bitwright.graph.tensors import ARRAY_TYPES
from bitwright.run import upgrade_opset

__all__ = ["MergedGraph", "at_one_opset"]

Known = MutableMapping[ir.Value, ir.Value]
"""Tensor of one of the models -> the tensor that stands for it in the merged graph."""


def at_one_opset(float_model: ir.Model, quantized: ir.Model) -> tuple[ir.Model, ir.Model]:
    """Return both models at the higher of their two opsets: one graph has one opset."""
    newest = max(opset_of(float_model), opset_of(quantized))
    both = [
        model if opset_of(model) == newest else upgrade_opset(model, newest)
        for model in (float_model, quantized)
    ]
    return both[0], both[1]


class MergedGraph:
    """Copies nodes of both models into one graph; a node that reads the same is copied once."""

    def __init__(self, units: Units) -> None:
        self._units = units
        opsets = {**units.float_model.opset_imports, **units.quantized.opset_imports}
        self._graph = ir.Graph([], [], nodes=[], opset_imports=opsets, name="comparison")
        self._inputs: dict[str, ir.Value] = {}
        self._input_sizes: set[str | None] = set()
        self._constants: dict[ir.Value, ir.Value] = {}
        self._copies: dict[tuple[object, ...], tuple[ir.Value, ...]] = {}
        self._count = 0
        self.weight_bytes = 0
        """What the constants of all copied nodes weigh, each counted as often as it is read."""

    def start(self, model: ir.Model) -> Known:
        """Return the inputs of one of the models as those of the merged graph."""
        known: Known = {}
        for value in model.graph.inputs:
            if value.is_initializer():
                continue
            name = value.name or ""
            if name not in self._inputs:
                self._inputs[name] = like(value, name)
                self._graph.inputs.append(self._inputs[name])
                self._input_sizes |= {
                    dim.value for dim in value.shape or () if isinstance(dim, ir.SymbolicDim)
                }
            known[value] = self._inputs[name]
        return known

    def enter(self, name: str, value: ir.Value) -> ir.Value:
        """Return a tensor of one of the models as an input of the merged graph.

        Files state wrong sizes of tensors inside them, so only how many there are counts.
        """
        dtype = value.dtype if value.dtype in ARRAY_TYPES else ir.DataType.FLOAT
        shape = None if value.shape is None else ir.Shape([None] * value.shape.rank())
        given = ir.Value(name=name, type=ir.TensorType(dtype), shape=shape)
        self._graph.inputs.append(given)
        return self.cast(given, value.dtype)

    def add(self, nodes: Iterable[ir.Node], known: Known) -> None:
        """Copy nodes, in order, reading what is known; it then knows what they make, too."""
        for node in nodes:
            if all(output in known for output in node.outputs):
                continue
            read = tuple(
                None if value is None else self._find(value, known) for value in node.inputs
            )
            captured = {
                value: self._find(value, known)
                for value in outer_inputs(node)
                if value not in node.inputs
            }
            key = (node, read, tuple(captured.values()))
            if key not in self._copies:
                self._copies[key] = self._copy(node, read, captured)
            for output, made in zip(node.outputs, self._copies[key], strict=True):
                known.setdefault(output, made)

    def dequantize(self, cut: Cut, value: ir.Value, known: Known) -> ir.Value:
        """Return integers of a cut as the numbers that they stand for."""
        parameters = self._units.graph.parameters[cut.measured]
        inputs = (value, *(self._find(given, known) for given in parameters.inputs))
        return self._make("DequantizeLinear", inputs, parameters.scale.dtype)

    def stand_in(self, cut: Cut, value: ir.Value, known: Known) -> ir.Value:
        """Return a float tensor in the form that the quantized model's readers of a cut take."""
        if not cut.is_integer:
            return self.cast(value, cut.value.dtype)
        parameters = self._units.graph.parameters[cut.value]
        zero_point = parameters.zero_point
        inputs = (value, *(self._find(given, known) for given in parameters.inputs))
        dtype = None if zero_point is None else zero_point.dtype
        return self._make("QuantizeLinear", inputs, dtype or cut.value.dtype)

    def cast(self, value: ir.Value, dtype: ir.DataType | None) -> ir.Value:
        """Return a tensor in another float type, or itself."""
        if dtype is None or value.dtype is None or value.dtype == dtype:
            return value
        return self._make("Cast", (value,), dtype, to=int(dtype))

    def readable(self, value: ir.Value) -> ir.Value:
        """Return a tensor as the runtime can hand it over: numpy has no bfloat16, nor float8."""
        return value if value.dtype in ARRAY_TYPES else self.cast(value, ir.DataType.FLOAT)

    def measured(self, cut: Cut, known: Known) -> ir.Value:
        """Return what is compared of a cut whose unit has been added, adding its quantizer."""
        if cut.measured not in known:
            path: list[ir.Node] = []
            value: ir.Value | None = cut.measured
            while value is not None and value is not cut.value:
                maker = value.producer()
                assert maker is not None
                path.append(maker)
                value = maker.inputs[0]
            self.add(reversed(path), known)
        return known[cut.measured]

    def add_unit(self, cut: Cut, inputs: Known) -> ir.Value:
        """Copy the quantized unit of a cut between float ones; return what is compared of it."""
        known = {value: given for value, given in inputs.items() if value is not cut.value}
        self.add(cut.nodes, known)
        return self.measured(cut, known)

    def finish(self, outputs: Iterable[ir.Value]) -> ir.Model:
        """Return the merged model with these outputs; nothing can be added any more."""
        float_model, quantized = self._units.float_model, self._units.quantized
        self._graph.outputs.extend(dict.fromkeys(outputs))
        functions = {**float_model.functions, **quantized.functions}
        model = ir.Model(
            self._graph,
            ir_version=max(float_model.ir_version, quantized.ir_version),
            functions=tuple(functions.values()),
        )
        stamp_versions(model)
        return model

    # Copying ------------------------------------------------------------------------------

    def _find(self, value: ir.Value, known: Known) -> ir.Value:
        if value in known:
            return known[value]
        if value.const_value is not None and value.producer() is None:
            if value not in self._constants:
                name = self._fresh(value.name)
                self._constants[value] = add_initializer(self._graph, None, name, value.const_value)
            self.weight_bytes += value.const_value.nbytes
            return self._constants[value]
        raise ModelError(
            f"tensor {value.name!r} is not made by any node of its model; check it with "
            "onnx.checker."
        )

    def _copy(
        self,
        node: ir.Node,
        read: tuple[ir.Value | None, ...],
        captured: Mapping[ir.Value, ir.Value],
    ) -> tuple[ir.Value, ...]:
        pairs = {a: b for a, b in zip(node.inputs, read, strict=True) if a and b}
        attributes = []
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
                body = attribute.as_graph().clone(allow_outer_scope_values=True)
                _redirect(body, {**captured, **pairs})
                attribute = ir.AttrGraph(attribute.name, body)
            attributes.append(attribute)
        outputs = tuple(like(value, self._fresh(value.name)) for value in node.outputs)
        for output in outputs:
            output.shape = self._shared_shape(output.shape)
        self._graph.append(copy_node(node, read, outputs, self._fresh(node.name), attributes))
        return outputs

    def _make(
        self,
        op_type: str,
        inputs: tuple[ir.Value, ...],
        dtype: ir.DataType | None,
        **attributes: int,
    ) -> ir.Value:
        key = (op_type, inputs, tuple(attributes.items()))
        if key not in self._copies:
            output = ir.Value(
                name=self._fresh(op_type),
                type=None if dtype is None else ir.TensorType(dtype),
                shape=inputs[0].shape,
            )
            name = self._fresh(op_type)
            append_node(self._graph, op_type, inputs, output, name, attributes)
            self._copies[key] = (output,)
        return self._copies[key][0]

    def _shared_shape(self, shape: ir.Shape | None) -> ir.Shape | None:
        """Return a shape without the dimensions that the models need not agree on.

        Where routers or scores decide how many rows there are, a name stands for one number in one
        model; the runtime would take it for the same in both, and share memory by it.
        """
        if shape is None:
            return None
        known = self._input_sizes
        return ir.Shape(
            [dim if isinstance(dim, int) or dim.value in known else None for dim in shape]
        )

    def _fresh(self, name: str | None) -> str:
        self._count += 1
        return f"{name}#{self._count}"


def _redirect(graph: ir.Graph, outer: Mapping[ir.Value, ir.Value]) -> None:
    """Let a copied body read other tensors of the graph around it."""
    for node in graph:
        for index, value in enumerate(node.inputs):
            if value is not None and value in outer:
                node.replace_input_with(index, outer[value])
        for _, inner in subgraphs_of(node):
            _redirect(inner, outer)
    for index, value in enumerate(graph.outputs):
        if value in outer:
            graph.outputs[index] = outer[value]
