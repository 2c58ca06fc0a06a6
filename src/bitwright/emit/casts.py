"""Write a model that computes in float16 or bfloat16: no quantizers, Casts where types meet."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
import onnx_ir as ir

from bitwright.data.token_inputs import continued_by, is_cache
from bitwright.graph.constants import constant_tensor
from bitwright.graph.editing import insert_after, remove_nodes, remove_unused_initializers
from bitwright.graph.half_ops import (
    TYPE_ATTRIBUTES,
    find_half_parameters,
    handed_out,
    is_float,
)
from bitwright.graph.names import NameScope
from bitwright.graph.subgraphs import iter_graphs, subgraphs_of, values_of
from bitwright.graph.tensors import inline_copy, lazy_tensor, shape_of
from bitwright.numerics.halves import narrow
from bitwright.plan import QuantPlan
from bitwright.support.array_types import Array
from bitwright.support.wording import counted

_FLOAT, _HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16
_KINDS = {"float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}


def emit_casts(model: ir.Model, plan: QuantPlan, _rounding: Any = None) -> list[str]:
    """Turn a float32 model into one of the plan's type, in place; return notes about it."""
    notes = _Casting(model, plan).write()
    if plan.recipe.float_io == "all-but-caches":
        narrow_caches(model)
    return notes


def narrow_caches(model: ir.Model) -> None:
    """Let callers keep the caches of attention in float16, where it is computed so, in place.

    A cache that goes in and comes out does both in one type; the Casts that stood there are gone.
    """
    graph, kept = model.graph, set()
    inside = {value.name or "": _inside(value) for value in graph.outputs}
    presents = {name: value for name, value in inside.items() if "present" in name}
    for past in (value for value in graph.inputs if is_float(value) and is_cache(value.name or "")):
        made, uses = continued_by(past.name or "", presents), past.uses()
        casts = [node for node, _ in uses if _casts_to(node) == _HALF and _is_inside(node)]
        # What else reads it may ask for its shape.
        others = [use for use in uses if use.node not in casts]
        takes = all(find_half_parameters(n, "float16").takes(index) for n, index in others)
        if not casts or not takes or (made is not None and presents[made] is None):
            kept.add(made)
            continue
        past.type = ir.TensorType(_HALF)
        for cast in casts:
            cast.outputs[0].replace_all_uses_with(past)
        remove_nodes(casts)
    for index, output in enumerate(list(graph.outputs)):
        value, maker = presents.get(output.name or ""), output.producer()
        if value is not None and maker is not None and output.name not in kept:
            graph.outputs[index] = value
            remove_nodes([maker])
            value.name = output.name


def _inside(output: ir.Value) -> ir.Value | None:
    """Return what is cast to an output, where float16 is and nothing else reads the output."""
    cast = output.producer()
    value = cast.inputs[0] if cast is not None and _casts_to(cast) == _FLOAT else None
    is_half = value is not None and value.dtype == _HALF and value.producer() is not None
    return value if is_half and not output.uses() else None


def _is_inside(node: ir.Node) -> bool:
    return not node.outputs[0].is_graph_output()


def _casts_to(node: ir.Node) -> int | None:
    return node.attributes.get_int("to") if node.op_type == "Cast" else None


class _Casting:
    def __init__(self, model: ir.Model, plan: QuantPlan) -> None:
        self._model, self._recipe = model, plan.recipe
        self._kind = _KINDS[plan.recipe.weight.name]
        self._names = NameScope(model)
        # In their order, which the names and places of what is written follow.
        self._half = {
            node: find_half_parameters(node, plan.recipe.weight.name)
            for node in model.graph.all_nodes()
            if plan.nodes[node.name or ""].action == "quantize"
        }
        values = (value for _, graph in iter_graphs(model) for value in values_of(graph))
        self._floats = {value for value in values if is_float(value)}
        self._made: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
        self._moved: list[str] = []
        """Constants with numbers that were moved to fit."""

    def write(self) -> list[str]:
        nodes = list(self._model.graph.all_nodes())
        if self._recipe.casts_weights_only:
            self._store_weights()
        else:
            self._retype()
            self._join_types(nodes)
            self._cast_outputs()
        self._keep_names(remove_unused_initializers(self._model))
        if not self._moved:
            return []
        what = counted(len(self._moved), "constant")
        return [
            f"{what} such as {self._moved[0]!r} with numbers for infinity, or next to zero: "
            "these became the largest or smallest that float16 has room for"
        ]

    def _keep_names(self, gone: list[str]) -> None:
        """Call narrow constants as the float32 ones were, where these are there no more."""
        for value, kind in list(self._made):
            made = self._made[value, kind]
            if value.name in gone and made.is_initializer() and isinstance(made.graph, ir.Graph):
                initializers = made.graph.initializers
                initializers.pop(made.name or "")
                made.name = value.name
                initializers[value.name or ""] = made

    # Weights alone ------------------------------------------------------------------------------

    def _store_weights(self) -> None:
        for node in self._half:
            for index, value in enumerate(node.inputs):
                tensor = constant_tensor(value) if value in self._floats else None
                if value is not None and tensor is not None and tensor.size > 1:
                    wide = self._cast(self._constant(value, self._kind), _FLOAT)
                    node.replace_input_with(index, wide)

    # Whole nodes --------------------------------------------------------------------------------

    def _retype(self) -> None:
        changed: list[ir.Value] = []
        for node, half in self._half.items():
            changed += [value for i, value in enumerate(node.outputs) if half.gives(i)]
            for _, body in subgraphs_of(node):
                changed += [value for i, value in enumerate(body.inputs) if half.takes(i)]
            self._write_type(node)
        inputs = (value for value in self._model.graph.inputs if not value.is_initializer())
        changed += [value for value in inputs if not self._recipe.keeps_float(value.name)]
        for value in changed:
            if value in self._floats:
                value.type = copy(value.type)  # types are shared between values
                value.dtype = self._kind

    def _write_type(self, node: ir.Node) -> None:
        """Let a node say the type of its result, where an attribute does."""
        name = TYPE_ATTRIBUTES.get(node.op_type)
        if node.outputs[0] not in self._floats:  # as what is cast to integers
            return
        if name == "value":
            given = node.attributes.get_tensor(name)
            array = np.zeros(1, np.float32) if given is None else given.numpy()
            tensor = ir.Tensor(narrow(array, _name(self._kind))[0])
            node.attributes[name] = ir.AttrTensor(name, tensor)
        elif name is not None:
            node.attributes[name] = ir.AttrInt64(name, int(self._kind))

    def _join_types(self, nodes: list[ir.Node]) -> None:
        """Give each node its inputs in the type that it is computed in."""
        for node in nodes:
            half = self._half.get(node)
            for index, value in enumerate(node.inputs):
                if value in self._floats:
                    is_half = half is not None and half.takes(index)
                    wide = self._as(value, self._kind if is_half else _FLOAT)
                    node.replace_input_with(index, wide)
            for output, body, place in handed_out(node):
                value = body.outputs[place]
                if value in self._floats:
                    is_half = half is not None and half.gives(output)
                    body.outputs[place] = self._as(value, self._kind if is_half else _FLOAT)

    def _cast_outputs(self) -> None:
        graph = self._model.graph
        for index, value in enumerate(list(graph.outputs)):
            wanted = _FLOAT if self._recipe.keeps_float(value.name) else self._kind
            if value not in self._floats or value.dtype == wanted:
                continue
            if value.is_graph_input() or value.is_initializer():
                graph.outputs[index] = self._as(value, wanted)
                continue
            label = value.name or ""
            value.name = self._names.fresh(f"{label}_{_name(value.dtype)}")
            result = self._cast(value, wanted)
            result.name = label
            graph.outputs[index] = result

    def _as(self, value: ir.Value, kind: ir.DataType) -> ir.Value:
        if value.dtype == kind:
            return value
        if value.is_initializer() and not value.is_graph_input():
            return self._constant(value, kind)
        return self._cast(value, kind)

    def _cast(self, value: ir.Value, kind: ir.DataType) -> ir.Value:
        """Return the value in another type, by one Cast right behind what makes it."""
        if (value, kind) not in self._made:
            name = self._names.fresh(f"{value.name}_{_name(kind)}")
            made = ir.Value(name=name, type=ir.TensorType(kind), shape=value.shape)
            own = self._names.fresh(f"{name}_Cast")
            cast = ir.node("Cast", [value], {"to": int(kind)}, outputs=[made], name=own)
            producer = value.producer()
            home = self._model.graph if producer is None else producer.graph
            assert isinstance(home, ir.Graph)
            if producer is None and isinstance(value.graph, ir.Graph):
                home = value.graph
            insert_after(home, cast, producer)
            self._made[value, kind] = made
        return self._made[value, kind]

    def _constant(self, value: ir.Value, kind: ir.DataType) -> ir.Value:
        """Return a constant in the narrow type, made when it is first read."""
        if (value, kind) in self._made:
            return self._made[value, kind]
        tensor = value.const_value
        assert tensor is not None and isinstance(value.graph, ir.Graph)
        label = value.name or ""
        name = self._names.fresh(f"{label}_{_name(kind)}")
        if _read(tensor, kind)[1]:
            self._moved.append(label)
        made = ir.Value(name=name, type=ir.TensorType(kind), shape=value.shape)
        made.const_value = lazy_tensor(
            lambda: ir.Tensor(_read(tensor, kind)[0], name=name), kind, shape_of(tensor), name
        )
        value.graph.initializers[name] = made
        self._made[value, kind] = made
        return made


def _read(tensor: ir.TensorProtocol, kind: ir.DataType) -> tuple[Array, int]:
    """Return a constant in a narrow type, as `narrow` does, with no file left open."""
    return narrow(inline_copy(tensor).numpy(), _name(kind))


def _name(kind: ir.DataType | None) -> str:
    """Return the name of a type."""
    return "float32" if kind in (None, _FLOAT) else kind.name.lower()
