"""Give a model inputs and outputs in channels-last layout, for hardware that is fed images so.

Inside it stays channels-first, as ONNX's operators are. A Transpose stands behind each input and
before each output. Those of the inputs move down through whatever does not care about the layout,
where they often meet their inverse and both are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import onnx_ir as ir

from bitwright.graph.editing import like
from bitwright.graph.names import NameScope
from bitwright.prepare.passes import PassResult
from bitwright.prepare.transposes import (
    TO_FIRST,
    TO_LAST,
    cancel_before,
    make_transpose,
    permuted,
    sink_transpose,
)

__all__ = ["channels_last", "channels_last_inputs"]

_LAYOUT = "bitwright.layout"
"""The property of an input that was transposed."""


def channels_last(model: ir.Model) -> PassResult:
    """Transpose every input and output of four dimensions to NHWC; return how many.

    Names stay. `channels_last_inputs` says which inputs were transposed, so that data in the layout
    of the original model can be transposed too.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> channels_last(ir.Model(graph, ir_version=10)).changed
    0
    """
    names = NameScope(model)
    graph, notes = model.graph, []
    inputs = [value for value in graph.inputs if value.shape is not None and len(value.shape) == 4]
    transposes = [_transpose_input(graph, value, names) for value in inputs]
    outputs = 0
    for index, value in enumerate(graph.outputs):
        # An input that is returned as it is has been transposed already.
        if value.shape is not None and len(value.shape) == 4 and not value.is_graph_input():
            graph.outputs[index] = _transpose_output(graph, value, names)
            outputs += 1
        elif value.shape is None:
            notes.append(f"output {value.name!r} keeps its layout: its rank is not known")
    if inputs:
        notes.append(
            f"{_listed(inputs)} {'is' if len(inputs) == 1 else 'are'} fed as NHWC now; calibration "
            "data keeps the layout of the model that was given"
        )
    for node in transposes:
        if node is not None and model.opset_imports.get("", 0) >= 7:  # where arithmetic broadcasts
            sink_transpose(node, names)
    for value in graph.outputs:
        cancel_before(value)
    return PassResult(len(inputs) + outputs, tuple(notes))


def channels_last_inputs(model: ir.Model) -> frozenset[str]:
    """Return the inputs that `channels_last` transposed from NCHW to NHWC.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> channels_last_inputs(ir.Model(graph, ir_version=10))
    frozenset()
    """
    return frozenset(v.name for v in model.graph.inputs if v.name and _LAYOUT in v.metadata_props)


def _transpose_input(graph: ir.Graph, value: ir.Value, names: NameScope) -> ir.Node | None:
    """Make an input channels-last; return the Transpose behind it, if anything reads it."""
    inside = like(value, names.fresh(f"{value.name}_nchw"))
    for node, index in list(value.uses()):
        node.replace_input_with(index, inside)
    value.shape = permuted(value.shape, TO_LAST)
    value.metadata_props[_LAYOUT] = "NHWC"
    if not inside.uses():
        return None
    transpose = make_transpose(value, TO_FIRST, inside, names.fresh(f"{value.name}_transpose"))
    graph.insert_before(graph[0], transpose)
    return transpose


def _transpose_output(graph: ir.Graph, value: ir.Value, names: NameScope) -> ir.Value:
    """Put a Transpose behind what the model returns; return what it returns instead."""
    label = value.name
    value.name = names.fresh(f"{label}_nchw")
    outside = ir.Value(name=label, type=copy(value.type), shape=permuted(value.shape, TO_LAST))
    graph.append(make_transpose(value, TO_LAST, outside, names.fresh(f"{label}_transpose")))
    return outside


def _listed(values: Sequence[ir.Value]) -> str:
    return ", ".join(repr(value.name) for value in values)
