"""Fold sizes of partly known shapes: reads of a Shape in the form that the optimizer folds.

Of a shape with an open batch, it takes sizes that are known by a Gather with a list of indices and
a written axis alone. TorchScript writes a Gather with one index, and slices; so pads that pictures
of a known size need are computed at run time, and no hardware folds them into a convolution.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from bitwright.graph import NameScope, constant_of, infer_shapes, input_at, is_invented, iter_graphs
from bitwright.graph.editing import add_initializer, insert_before, remove_nodes, replace_inputs
from bitwright.support.array_types import Array

_MAX_ROUNDS = 8
"""Of the models of the zoo, none takes more than three."""


class _Spelled(NamedTuple):
    node: ir.Node
    op_type: str
    inputs: list[ir.Value | None]
    attributes: list[ir.Attr]


def fold_with_sizes(model: ir.Model, fold: Callable[[], None]) -> None:
    """Fold, then again while each Gather and Slice of a Shape is one that the optimizer folds.

    For that, shapes with an open size are inferred anew: what exporters claim of such a tensor may
    hold for the sample that they traced. Sizes that are folded can make others known, so this goes
    on until there are no more, or for so long that the rest may be computed at run time.
    """
    fold()
    found = _readers_of_sizes(model)
    if not any(_may_be_known(node, picked) for node, picked in found):
        return
    for _ in range(_MAX_ROUNDS):
        claims = _take_claims(model)
        infer_shapes(model)
        _pass_shapes_on(model)
        names = NameScope(model)
        spelled = [_spell(node, picked, names) for node, picked in found]
        fold()
        for each in spelled:
            _spell_back(each)
        for value, claimed in claims.items():
            value.shape = _better_known(value.shape, claimed)
        left = _readers_of_sizes(model)
        if not 0 < len(left) < len(found):
            return
        found = left


def _readers_of_sizes(model: ir.Model) -> list[tuple[ir.Node, Array]]:
    """Return the nodes that take sizes of a shape, each with the places that it takes."""
    return [
        (node, picked)
        for _, graph in iter_graphs(model)
        for node in graph
        if (picked := _picked(node)) is not None
    ]


def _may_be_known(node: ir.Node, picked: Array) -> bool:
    """Return whether all sizes that a node takes are numbers, be it by claim."""
    shape = _shape_behind(node.inputs[0])
    sizes = _sizes(shape) if shape is not None else None
    return sizes is not None and all(isinstance(sizes[i], int) for i in picked.reshape(-1))


def _take_claims(model: ir.Model) -> dict[ir.Value, ir.Shape]:
    claims = {
        value: value.shape
        for node in model.graph.all_nodes()
        for value in node.outputs
        if value.shape is not None and not value.shape.is_static()
    }
    for value in claims:
        if not value.is_graph_output():
            value.shape = None
    return claims


def _pass_shapes_on(model: ir.Model) -> None:
    """Give what is reshaped like another tensor its shape; ONNX's inference knows closed ones."""
    for node in model.graph.all_nodes():
        like = input_at(node, 1) if node.op_type == "Reshape" else None
        shape = _shape_behind(like)
        source = None if shape is None or shape.attributes else shape.inputs[0]
        if source is not None and node.outputs[0].shape is None:
            node.outputs[0].shape = copy(source.shape)


def _shape_behind(value: ir.Value | None) -> ir.Node | None:
    """Return the Shape that gives a value, or None."""
    maker = value.producer() if value is not None else None
    is_shape = maker is not None and maker.op_type == "Shape" and not maker.domain
    return maker if is_shape else None


def _better_known(inferred: ir.Shape | None, claimed: ir.Shape) -> ir.Shape:
    """Return the sizes that were inferred, and those that were claimed for the others."""
    if inferred is None or len(inferred) != len(claimed):
        return claimed
    return ir.Shape(
        [old if _is_open(new) else new for new, old in zip(inferred, claimed, strict=True)]
    )


def _is_open(size: int | ir.SymbolicDim) -> bool:
    """Return whether nothing is known of a size, or a name only that ONNX's inference made up."""
    return not isinstance(size, int) and (not size.value or is_invented(size))


def _picked(node: ir.Node) -> Array | None:
    """Return the places of a shape's sizes that a node takes, or None if it takes none."""
    shape = _shape_behind(input_at(node, 0))
    if node.domain or shape is None:
        return None
    sizes = _sizes(shape)
    if node.op_type == "Gather" and sizes is not None:
        indices = constant_of(input_at(node, 1))
        if indices is None or indices.ndim > 1:
            return None
        within = (-len(sizes) <= indices) & (indices < len(sizes))
        return indices if within.all() else None  # else the model is wrong, and its runtime says so
    if node.op_type != "Slice" or sizes is None or input_at(node, 1) is None:
        return None
    given = [input_at(node, index) for index in range(1, 5)]
    bounds = [constant_of(value) for value in given]
    if any(
        value is not None and (bound is None or bound.size != 1)
        for value, bound in zip(given, bounds, strict=True)
    ):
        return None
    start, end, _, step = (None if bound is None else int(bound.item()) for bound in bounds)
    return np.arange(len(sizes))[start:end:step]


def _sizes(shape: ir.Node) -> list[int | ir.SymbolicDim] | None:
    """Return what is known of the sizes that a Shape gives."""
    source = shape.inputs[0]
    if source is None or source.shape is None:
        return None
    start, end = shape.attributes.get_int("start", 0), shape.attributes.get_int("end", None)
    return list(source.shape)[start:end]


def _spell(node: ir.Node, picked: Array, names: NameScope) -> _Spelled:
    before = _Spelled(node, node.op_type, list(node.inputs), list(node.attributes.values()))
    graph, output = node.graph, node.outputs[0]
    assert isinstance(graph, ir.Graph)
    places = add_initializer(graph, names, f"{output.name}_places", picked.reshape(-1))
    inputs: list[ir.Value | None] = [node.inputs[0], places]
    node.attributes.clear()
    if picked.ndim:
        node.op_type = "Gather"
        node.attributes.add(ir.AttrInt64("axis", 0))
    else:
        sizes = ir.Value(name=names.fresh(f"{output.name}_sizes"))
        insert_before(node, "Gather", inputs, sizes, names.fresh(f"{node.name}_sizes"), {"axis": 0})
        node.op_type = "Reshape"
        inputs = [sizes, add_initializer(graph, names, f"{output.name}_rank", np.array([], int))]
    replace_inputs(node, inputs)
    return before


def _spell_back(before: _Spelled) -> None:
    node = before.node
    if node.graph is None:
        return
    spelled = list(node.inputs)
    node.op_type = before.op_type
    node.attributes.clear()
    node.attributes.update({attribute.name: attribute for attribute in before.attributes})
    replace_inputs(node, before.inputs)
    for value in spelled:
        if value is None or value in before.inputs or value.uses():
            continue
        producer = value.producer()
        if producer is not None:
            remove_nodes([producer])
