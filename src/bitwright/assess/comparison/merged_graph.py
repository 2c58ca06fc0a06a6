"""A merged graph of two models, so that one run of it computes both side by side.

It is cut into parts between units. Only tensors of cuts pass from one part to another: the runtime
has them anyway, whatever it fuses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, MutableMapping

import onnx_ir as ir

from bitwright.assess.comparison.units import Cut, Units
from bitwright.errors import ModelError
from bitwright.graph import ARRAY_TYPES, opset_of, outer_inputs, stamp_versions, subgraphs_of
from bitwright.graph.editing import add_initializer, append_node, copy_node, like
from bitwright.run import Part, cut_model, upgrade_opset

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
    """Copies nodes of both models into one graph; a node that reads the same is copied once.

    A part of it holds at most `most_nodes` nodes of both models, but one cut at least.
    """

    def __init__(self, units: Units, most_nodes: float = math.inf) -> None:
        self._units = units
        opsets = {**units.float_model.opset_imports, **units.quantized.opset_imports}
        self._graph = ir.Graph([], [], nodes=[], opset_imports=opsets, name="comparison")
        self._inputs: dict[str, ir.Value] = {}
        self._input_sizes: set[str | None] = set()
        self._constants: dict[ir.Value, ir.Value] = {}
        self._copies: dict[tuple[object, ...], tuple[ir.Value, ...]] = {}
        self._count = 0
        self._most_nodes, self._nodes_in_part = most_nodes, 0
        self._starts_part = False
        self._starts: list[str] = []
        self._passing: set[str] = set()
        self._cut_of = {cut.value: cut for cut in units.cuts}
        self.floats = self._enter(units.float_model)
        """Tensors of the float model, as far as they have been added."""
        self.quantized = self._enter(units.quantized)
        """The same of the quantized model."""
        self._quantized_inputs = dict(self.quantized)

    def _enter(self, model: ir.Model) -> Known:
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

    def begin(self, cut: Cut) -> None:
        """Say that nodes of a cut come next: of a new part, where the last one is full."""
        own = len(cut.float_nodes) + len(cut.nodes)
        if self._nodes_in_part and self._nodes_in_part + own > self._most_nodes:
            self._starts_part, self._nodes_in_part = True, 0
        self._nodes_in_part += own

    def add_float(self, cut: Cut) -> ir.Value:
        """Copy the float unit of a cut, and return the tensor that it makes."""
        self.add(cut.float_nodes, self.floats)
        self.floats[cut.float_value] = self._pass(self.floats[cut.float_value])
        return self.floats[cut.float_value]

    def add_quantized(self, cut: Cut) -> ir.Value:
        """Copy the quantized unit of a cut and its quantizer, and return what is compared of it.

        Numbers that only their quantizer reads pass to no other part: the runtime goes from one
        node's integers to the next without them.
        """
        self.add(cut.nodes, self.quantized)
        self.measured(cut, self.quantized)
        passing = [cut.value]
        if cut.has_quantizer:
            read_by_others = len(cut.value.uses()) > 1 or cut.value.is_graph_output()
            passing = [cut.measured, *passing[: int(read_by_others)]]
        for value in passing:
            self.quantized[value] = self._pass(self.quantized[value])
        return self.quantized[cut.measured]

    def _pass(self, value: ir.Value) -> ir.Value:
        """Let a tensor pass from part to part, in a form that numpy has."""
        if value.dtype is None:
            return value
        shown = self.readable(value)
        self._passing.add(shown.name or "")
        return self.cast(shown, value.dtype)

    def stand_ins(self, cut: Cut) -> Known:
        """Return what the quantized unit of a cut reads where all before it is float."""
        found = dict(self._quantized_inputs)
        for value in (value for node in cut.nodes for value in outer_inputs(node)):
            border = self._cut_of.get(value)
            if border is not None and value not in found:
                found[value] = self.stand_in(border, self.floats[border.float_value], found)
        return found

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
        return self._make("DequantizeLinear", inputs, parameters.inputs[0].dtype)

    def stand_in(self, cut: Cut, value: ir.Value, known: Known) -> ir.Value:
        """Return a float tensor in the form that the quantized model's readers of a cut take."""
        if not cut.is_integer:
            return self.cast(value, cut.value.dtype)
        parameters = self._units.graph.parameters[cut.value]
        inputs = (value, *(self._find(given, known) for given in parameters.inputs))
        zero = parameters.zero_value
        dtype = None if zero is None else zero.dtype
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

    def finish(self, outputs: Iterable[ir.Value]) -> tuple[ir.Model, list[Part]]:
        """Return the merged model with these outputs and its parts; nothing can be added then."""
        float_model, quantized = self._units.float_model, self._units.quantized
        self._graph.outputs.extend(dict.fromkeys(outputs))
        functions = {**float_model.functions, **quantized.functions}
        model = ir.Model(
            self._graph,
            ir_version=max(float_model.ir_version, quantized.ir_version),
            functions=tuple(functions.values()),
        )
        stamp_versions(model)
        return model, cut_model(model, self._starts, passing=self._passing)

    # Copying ------------------------------------------------------------------------------

    def _find(self, value: ir.Value, known: Known) -> ir.Value:
        if value in known:
            return known[value]
        if value.const_value is not None and value.producer() is None:
            if value not in self._constants:
                name = self._fresh(value.name)
                self._constants[value] = add_initializer(self._graph, None, name, value.const_value)
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
        name = self._name_node(node.name)
        self._graph.append(copy_node(node, read, outputs, name, attributes))
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
            name = self._name_node(op_type)
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

    def _name_node(self, name: str | None) -> str:
        fresh = self._fresh(name)
        if self._starts_part:
            self._starts.append(fresh)
            self._starts_part = False
        return fresh

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
