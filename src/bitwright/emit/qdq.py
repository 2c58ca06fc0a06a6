"""Write a plan into the graph as QuantizeLinear / DequantizeLinear pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir

from bitwright.emit.quantized import add_quantized
from bitwright.errors import PlanError
from bitwright.graph import NameScope, iter_values
from bitwright.graph.constants import is_private
from bitwright.graph.editing import (
    add_initializer,
    graph_of,
    insert_after,
    like,
    remove_unused_initializers,
    replace_value,
)
from bitwright.plan import Parameters, QuantPlan, TensorPlan
from bitwright.support import Array, without_collection

Rounding = Callable[[Array, Parameters], Array]
StandardOp = Literal["QuantizeLinear", "DequantizeLinear"]


@without_collection()
def emit_qdq(model: ir.Model, plan: QuantPlan, round_weights: Rounding) -> list[str]:
    """Turn the float model, in place, into the quantized one that the plan describes.

    `round_weights` makes the integers, from the float tensor and its final scale.
    """
    QdqWriter(model, plan, round_weights).write()
    return []


class QdqWriter:
    """Puts a plan into a graph; other dialects of Q/DQ override how single nodes are written."""

    def __init__(self, model: ir.Model, plan: QuantPlan, round_weights: Rounding) -> None:
        self._model = model
        self._plan = plan
        self._round = round_weights
        self._names = NameScope(model)
        self._domain = "com.microsoft" if plan.recipe.emulate.contrib_ops else ""
        self._nodes = {node.name or "": node for node in model.graph.all_nodes()}
        self._values = dict(iter_values(model))
        # By which users know them: what leaves the model is renamed before its pair.
        self._labels = {value: value.name or "" for value in self._values.values()}
        self._qualified = {value: name for name, value in self._values.items()}
        entries = plan.tensors.values()
        self._not_only_biases = {self._values[e.tensor] for e in entries if e.role != "bias"}
        self._scales: dict[str, tuple[ir.Value, ir.Value]] = {}
        self._dedicated: dict[str, int] = {}
        self._pairs: dict[str, tuple[ir.Node, ir.Node]] = {}

    def write(self) -> None:
        """Write every entry, then every dropped node, then put the graph in order."""
        readers = self._readers()
        results = self._results()
        used = {*readers, *results}
        used |= {e.source for key, e in self._plan.tensors.items() if e.source and key in used}
        # A pair behind another's result comes after it.
        order = sorted(self._plan.tensors.items(), key=lambda item: item[1].source is not None)
        for key, entry in order:
            if key not in used:
                continue
            source = self._values[entry.tensor]
            if entry.source is not None:
                shared = entry.source in readers or entry.source in results
                source = self._source_of_conversion(entry.source, shared)
            replacement = self._write_entry(key, entry, source, results.get(key))
            self._connect(key, replacement, readers.get(key, ()), is_result=key in results)
        self._drop_absorbed()
        self._keep_from_runtime()
        remove_unused_initializers(self._model)
        self._model.graph.sort()  # bodies, too
        if self._domain:
            self._model.opset_imports.setdefault(self._domain, 1)

    def _connect(
        self,
        key: str,
        replacement: ir.Value,
        readers: Iterable[tuple[ir.Node, int]],
        *,
        is_result: bool,
    ) -> None:
        """Let nodes read what was written, through a dequantizer of their own if asked for."""
        own: dict[ir.Node, ir.Value] = {}
        for node, index in readers:
            if node not in own:
                is_taken = bool(own) or is_result
                split = self._plan.recipe.emulate.dedicated_dequantizers and is_taken
                own[node] = (
                    self._another_dequantizer(key, replacement, len(own)) if split else replacement
                )
            node.replace_input_with(index, own[node])

    def _another_dequantizer(self, key: str, dequantized: ir.Value, number: int) -> ir.Value:
        """Return the same values from one more dequantizer behind the same integers."""
        first = dequantized.producer()
        assert first is not None
        output = f"{self._label(key)}_DequantizeLinear_Output_{number}"
        return self._clone_dequantizer(key, first, output, f"{first.name}_{number}", first)

    def _label(self, key: str) -> str:
        return self._labels[self._values[self._plan.tensors[key].tensor]]

    def _clone_dequantizer(
        self, key: str, first: ir.Node, output: str, name: str, place: ir.Node
    ) -> ir.Value:
        """Add another dequantizer of the same integers behind a node, and return its result."""
        result = like(first.outputs[0], self._names.fresh(output))
        parameters, fresh = self._plan.parameters(key), self._names.fresh(name)
        node = self._node("DequantizeLinear", first.inputs, parameters, result, fresh)
        insert_after(graph_of(first.outputs[0]), node, place)
        return result

    # Who uses what ------------------------------------------------------------------------

    def _readers(self) -> dict[str, list[tuple[ir.Node, int]]]:
        readers: dict[str, list[tuple[ir.Node, int]]] = {}
        for name, planned in self._plan.nodes.items():
            for index, key in enumerate(planned.inputs):
                if key is not None:
                    readers.setdefault(key, []).append((self._nodes[name], index))
        return readers

    def _results(self) -> dict[str, tuple[ir.Graph, int]]:
        """Return, for each entry that is a graph output, which one it is."""
        results = {}
        for graph in self._model.graphs():
            for index, value in enumerate(graph.outputs):
                key = self._plan.outputs.get(self._qualified.get(value, ""))
                if key is not None:
                    results[key] = (graph, index)
        return results

    def _keep_from_runtime(self) -> None:
        """Let float nodes between pairs read a copy, which takes the pairs apart from them.

        A Max of one tensor is a copy that ONNX Runtime does not take out, as it does an Identity.
        """
        for name, planned in self._plan.nodes.items():
            node = self._nodes[name]
            if not planned.unfused or node.inputs[0] is None:
                continue
            label = self._names.fresh(f"{name}_float_input")
            output = like(node.inputs[0], label)
            copy = ir.node("Max", [node.inputs[0]], outputs=[output], name=label)
            assert node.graph is not None
            node.graph.insert_before(node, copy)
            node.replace_input_with(0, output)

    # One entry ----------------------------------------------------------------------------

    def _write_entry(
        self, key: str, entry: TensorPlan, source: ir.Value, result: tuple[ir.Graph, int] | None
    ) -> ir.Value:
        parameters = self._plan.parameters(key)
        if entry.role == "bias" or (
            entry.role == "weight" and not self._plan.recipe.emulate.weight_pairs
        ):
            return self._write_constant(key, entry, source, parameters)
        return self._write_pair(key, entry, source, parameters, result)

    def _write_constant(
        self, key: str, entry: TensorPlan, source: ir.Value, parameters: Parameters
    ) -> ir.Value:
        """Store integers, and a DequantizeLinear to read them."""
        label = source.name or ""
        stem = f"{label}_quantized" if entry.role == "bias" else label
        integers = self._round(self._planned_constant(entry, source), parameters)
        graph = graph_of(source)
        stored = add_quantized(graph, self._names, f"{label}_quantized", integers, parameters.qtype)
        scale, zero_point = self._parameter_values(key, stem, parameters, source)
        # The runtime's tool lets the dequantized bias keep the bias's name; so do people's
        # scripts that look it up.
        name = label if entry.role == "bias" else f"{label}_DequantizeLinear_Output"
        # Where no other reader of the constant needs its name.
        is_alone = source not in self._not_only_biases and is_private(source)
        if entry.role == "bias" and is_alone:
            source.name = self._names.fresh(f"{label}_float")
        else:
            name = self._names.fresh(name)
        output = like(source, name)
        name = self._names.fresh(f"{label}_DequantizeLinear")
        inputs = [stored, scale, zero_point]
        node = self._node("DequantizeLinear", inputs, parameters, output, name)
        insert_after(graph, node, None)
        return output

    def _planned_constant(self, entry: TensorPlan, source: ir.Value) -> Array:
        if source.const_value is None:
            raise PlanError(f"tensor {entry.tensor!r} is planned as constant, but it is not.")
        return source.const_value.numpy()

    def _write_pair(
        self,
        key: str,
        entry: TensorPlan,
        source: ir.Value,
        parameters: Parameters,
        result: tuple[ir.Graph, int] | None,
    ) -> ir.Value:
        """Put Q and DQ behind a tensor."""
        graph = graph_of(source)
        tensor = self._values[entry.tensor]
        name = label = self._labels[tensor]
        scale, zero_point = self._parameter_values(key, label, parameters, source)
        if entry.source is not None:
            name = f"{label}_convert"
        suffix = self._dedicated_suffix(entry)
        output_name = f"{name}_DequantizeLinear_Output{suffix}"
        if result is not None:
            # The public name stays on what the model gives out.
            tensor.name = self._names.fresh(f"{label}_QuantizeLinear_Input")
            output_name = label
        middle = ir.Value(
            name=self._names.fresh(f"{name}_QuantizeLinear_Output{suffix}"),
            type=ir.TensorType(ir.DataType(parameters.qtype.onnx_type)),
            shape=source.shape,
        )
        own = self._names.fresh(f"{name}_QuantizeLinear{suffix}")
        inputs = [source, scale, zero_point]
        quantizer = self._node("QuantizeLinear", inputs, parameters, middle, own)
        output = like(source, output_name if result is not None else self._names.fresh(output_name))
        own = self._names.fresh(f"{name}_DequantizeLinear{suffix}")
        inputs = [middle, scale, zero_point]
        dequantizer = self._node("DequantizeLinear", inputs, parameters, output, own)
        insert_after(graph, quantizer, source.producer())
        insert_after(graph, dequantizer, quantizer)
        self._pairs[key] = quantizer, dequantizer
        if result is not None:
            owner, index = result
            owner.outputs[index] = output
        return output

    def _source_of_conversion(self, key: str, shared: bool) -> ir.Value:
        """Return what the second pair of a tensor reads: the dequantized result of the first.

        Where others read that too, it gets a dequantizer of its own, which providers fuse with
        the second quantizer into one conversion.
        """
        quantizer, dequantizer = self._pairs[key]
        if not shared:
            return dequantizer.outputs[0]
        label = f"{self._label(key)}_convert"
        output, name = f"{label}_QuantizeLinear_Input", f"{label}_clone_DequantizeLinear"
        return self._clone_dequantizer(key, dequantizer, output, name, quantizer)

    def _dedicated_suffix(self, entry: TensorPlan) -> str:
        """Number the pairs of a tensor that has one for each reader."""
        if entry.same_as is None or self._plan.tensors[entry.same_as].tensor != entry.tensor:
            return ""
        number = self._dedicated[entry.tensor] = self._dedicated.get(entry.tensor, 0) + 1
        return f"_{number}"

    # One node -----------------------------------------------------------------------------

    def _node(
        self,
        op_type: StandardOp,
        inputs: Sequence[ir.Value | None],
        parameters: Parameters,
        output: ir.Value,
        name: str,
    ) -> ir.Node:
        """Return a node that quantizes or dequantizes; other dialects have their own."""
        attributes: dict[str, int] = {}
        if parameters.axis is not None and np.ndim(parameters.scale):
            attributes["axis"] = parameters.axis
        if parameters.block_size:
            attributes["block_size"] = parameters.block_size
        return ir.node(
            op_type, inputs, attributes, domain=self._domain, outputs=[output], name=name
        )

    # Scales and integers ------------------------------------------------------------------

    def _parameter_values(
        self, key: str, stem: str, parameters: Parameters, source: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """Return the scale and zero-point initializers, one pair for all that share them."""
        root = self._plan.root(key)
        if root not in self._scales:
            if root != key:
                stem = self._label(root)
            dtype = np.float32 if source.dtype is None else source.dtype.numpy()
            scale = np.asarray(parameters.scale).astype(dtype)
            zeros = np.asarray(parameters.zero_point)
            zeros = np.broadcast_to(zeros, scale.shape).astype(parameters.qtype.dtype)
            # Parameters live in the main graph, where every subgraph can read them.
            graph = self._model.graph
            ends = ("_scale", "_zero_point")
            if self._plan.tensors[root].source is not None:
                ends = ("_scale_convert", "_zero_point_convert")
            self._scales[root] = (
                add_initializer(graph, self._names, stem + ends[0], scale),
                add_quantized(graph, self._names, stem + ends[1], zeros, parameters.qtype),
            )
        return self._scales[root]

    # The graph ----------------------------------------------------------------------------

    def _drop_absorbed(self) -> None:
        """Drop each Relu or Clip that a quantizer does; one that others read stays."""
        quantizers = {quantizer for quantizer, _ in self._pairs.values()}
        # Backwards, so that of two in a row the second is gone before the first is looked at.
        for name, planned in reversed(list(self._plan.nodes.items())):
            if planned.action != "absorb":
                continue
            node = self._nodes[name]
            source, target = node.inputs[0], node.outputs[0]
            assert source is not None
            others = [use.node for use in target.uses() if use.node not in quantizers]
            if others or target.is_graph_output():
                continue
            replace_value(target, source)
            assert node.graph is not None
            node.graph.remove(node, safe=True)
