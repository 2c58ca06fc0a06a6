"""Give a model inputs and outputs in channels-last layout, for hardware that is fed images so.

Inside it stays channels-first, as ONNX's operators are. A Transpose stands behind each input and
before each output. Those of the inputs move down through whatever does not care about the layout,
where they often meet their inverse and both are gone: an operator that works element by element
gives the same, transposed, when it reads its inputs before their transposes instead of behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TypeGuard

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import op_types
from bitwright.decide.ops.matching import private_reader
from bitwright.graph import NameScope, reach
from bitwright.graph.constants import constant_of, input_at, is_constant, is_private, maker_of
from bitwright.graph.editing import drop_if_unused, insert_behind_value, like, remove_nodes
from bitwright.prepare.passes import Builder, PassResult

_LAYOUT = "bitwright.layout"
"""The property of an input that was transposed."""
_TO_LAST = (0, 2, 3, 1)
_TO_FIRST = (0, 3, 1, 2)

# Computed element by element, from one input and perhaps parameters of one element.
_UNARY = op_types(lambda op: op.elementwise == "unary")
# Computed element by element, from inputs that are broadcast against each other.
_BROADCAST = op_types(lambda op: op.elementwise == "broadcast")
# What images pass through before the first operator that cares where their channels are.
_INDIFFERENT = _UNARY | _BROADCAST | {"Cast", "Identity", "Pad"}
# Operators of which ONNX only has the channels-first form.
_CHANNELS_FIRST = op_types(
    lambda op: op.linear == "convolution" or op.pool or op.normalizes == "channels"
) | {"DepthToSpace", "GroupNormalization", "LRN", "SpaceToDepth"}
_PIXEL_CHANNELS = (1, 3, 4)


def channels_last(model: ir.Model) -> PassResult:
    """Transpose every input and output of four dimensions to NHWC; return how many.

    Names stay. `channels_last_inputs` says which inputs were transposed, so that data in the layout
    of the original model can be transposed too.
    """
    names = NameScope(model)
    graph, notes = model.graph, []
    images = [value for value in graph.inputs if value.shape is not None and len(value.shape) == 4]
    inputs = [value for value in images if not _is_channels_last(value)]
    if len(inputs) < len(images):
        notes.append(f"{_listed([v for v in images if v not in inputs])} stays: it is NHWC already")
    transposes = [_transpose_input(graph, value, names) for value in inputs]
    outputs = 0
    for index, value in enumerate(graph.outputs):
        # An input that is returned as it is has been transposed already.
        if value.shape is not None and len(value.shape) == 4 and not value.is_graph_input():
            if _comes_channels_last(value):
                notes.append(f"output {value.name!r} stays: it is NHWC already")
                continue
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
            _sink_transpose(node, names)
    for value in graph.outputs:
        _cancel_before(value)
    return PassResult(len(inputs) + outputs, tuple(notes))


def channels_last_inputs(model: ir.Model) -> frozenset[str]:
    """Return the inputs that `channels_last` transposed from NCHW to NHWC."""
    return frozenset(v.name for v in model.graph.inputs if v.name and _LAYOUT in v.metadata_props)


def _is_channels_last(value: ir.Value) -> bool:
    """Whether an input is NHWC already: the model itself transposes it before it is convolved.

    Without a Transpose, an input that nothing reads in NCHW is NHWC where only its last axis has as
    many elements as a pixel has channels.
    """
    assert value.shape is not None
    readers = _layout_readers(value)
    if any(reader.op_type in _CHANNELS_FIRST for reader in readers):
        return False
    if any(_is_transpose(reader, _TO_FIRST) for reader in readers):
        return True
    return value.shape[3] in _PIXEL_CHANNELS and value.shape[1] not in (None, *_PIXEL_CHANNELS)


def _layout_readers(value: ir.Value) -> list[ir.Node]:
    """Return the first nodes behind a value that care about its layout."""

    def behind(read: ir.Value) -> list[ir.Value]:
        readers = (use.node for use in read.uses() if use.node.op_type in _INDIFFERENT)
        return [output for reader in readers for output in reader.outputs]

    readers = (use.node for read in reach([value], behind) for use in read.uses())
    return [reader for reader in readers if reader.op_type not in _INDIFFERENT]


def _comes_channels_last(value: ir.Value) -> bool:
    """Whether the model itself transposes an output to NHWC."""
    node = value.producer()
    while node is not None and node.op_type in _UNARY | {"Cast", "Identity"}:
        node = maker_of(node.inputs[0])
    return _is_transpose(node, _TO_LAST)


def _transpose_input(graph: ir.Graph, value: ir.Value, names: NameScope) -> ir.Node | None:
    """Make an input channels-last; return the Transpose behind it, if anything reads it."""
    inside = like(value, names.fresh(f"{value.name}_nchw"))
    for node, index in list(value.uses()):
        node.replace_input_with(index, inside)
    value.shape = _permuted(value.shape, _TO_LAST)
    value.metadata_props[_LAYOUT] = "NHWC"
    if not inside.uses():
        return None
    transpose = _make_transpose(value, _TO_FIRST, inside, names.fresh(f"{value.name}_transpose"))
    graph.insert_before(graph[0], transpose)
    return transpose


def _transpose_output(graph: ir.Graph, value: ir.Value, names: NameScope) -> ir.Value:
    """Put a Transpose behind what the model returns; return what it returns instead."""
    label = value.name
    value.name = names.fresh(f"{label}_nchw")
    outside = ir.Value(name=label, type=copy(value.type), shape=_permuted(value.shape, _TO_LAST))
    graph.append(_make_transpose(value, _TO_LAST, outside, names.fresh(f"{label}_transpose")))
    return outside


def _listed(values: Sequence[ir.Value]) -> str:
    return ", ".join(repr(value.name) for value in values)


# Transposes ---------------------------------------------------------------------------------


def _make_transpose(value: ir.Value, perm: Sequence[int], output: ir.Value, name: str) -> ir.Node:
    """Return a Transpose that writes this output."""
    return ir.node("Transpose", [value], {"perm": list(perm)}, outputs=[output], name=name)


def _permuted(shape: ir.Shape | None, perm: Sequence[int]) -> ir.Shape | None:
    """Return a shape in another order."""
    return None if shape is None else ir.Shape([shape[axis] for axis in perm])


def _sink_transpose(transpose: ir.Node, names: NameScope) -> None:
    """Move a Transpose to NCHW down as far as it goes, and drop it where it meets its inverse."""
    while transpose.graph is not None:
        if _cancel(transpose):
            return
        reader = private_reader(transpose.outputs[0])
        if reader is None or not _can_move_past(transpose, reader):
            return
        transpose = _move_past(reader, names)


def _cancel(transpose: ir.Node) -> bool:
    """Let readers that undo the Transpose read what it reads; return whether it is gone."""
    for reader, _ in list(transpose.outputs[0].uses()):
        if not _is_transpose(reader, _TO_LAST) or reader.graph is not transpose.graph:
            continue
        result, source = reader.outputs[0], transpose.inputs[0]
        if result.is_graph_output():
            if source is None or source.producer() is None or source.is_graph_output():
                continue  # the model would return its own input
            source.name, result.name = result.name, source.name
        assert source is not None
        result.replace_all_uses_with(source, replace_graph_outputs=True)
        remove_nodes([reader])
    if transpose.outputs[0].uses() or transpose.outputs[0].is_graph_output():
        return False
    remove_nodes([transpose])
    return True


def _cancel_before(output: ir.Value) -> None:
    """Drop the Transpose that an output was given, where it undoes one of the model's own."""
    transpose = output.producer()
    before = maker_of(transpose.inputs[0]) if _is_transpose(transpose, _TO_LAST) else None
    if _is_transpose(before, _TO_FIRST):
        _cancel(before)


def _is_transpose(node: ir.Node | None, perm: Sequence[int]) -> TypeGuard[ir.Node]:
    if node is None or node.op_type != "Transpose" or node.domain:
        return False
    return tuple(node.attributes.get_ints("perm", [])) == tuple(perm)


def _can_move_past(transpose: ir.Node, reader: ir.Node) -> bool:
    """Return whether a node gives the same, transposed, when it reads its inputs untransposed."""
    if any(output.uses() or output.is_graph_output() for output in reader.outputs[1:]):
        return False
    others = [value for value in reader.inputs if value is not transpose.outputs[0]]
    if reader.op_type in _UNARY:
        return reader.inputs[0] is transpose.outputs[0]
    if reader.op_type in _BROADCAST or reader.op_type == "Concat":
        return all(_can_transpose(value, reader) for value in others)
    if reader.op_type == "Pad":
        return _has_known_pads(reader) and reader.inputs[0] is transpose.outputs[0]
    return False


def _can_transpose(value: ir.Value | None, reader: ir.Node) -> bool:
    """Return whether a value is a transposed one, or a constant that can be transposed itself."""
    if value is not None and is_private(value) and _is_transpose(value.producer(), _TO_FIRST):
        return True
    array = constant_of(value)
    if array is None:
        return False
    return array.ndim == 4 if reader.op_type == "Concat" else array.ndim <= 4


def _move_past(node: ir.Node, names: NameScope) -> ir.Node:
    """Let a node read untransposed inputs; return the Transpose that now stands behind it."""
    spent = []
    for index, value in enumerate(node.inputs):
        if value is None:
            continue
        producer = value.producer()
        if _is_transpose(producer, _TO_FIRST):
            node.replace_input_with(index, producer.inputs[0])
            spent.append(producer)
        elif node.op_type in _BROADCAST or node.op_type == "Concat":
            _transpose_constant(node, index, value, names)
    remove_nodes(dict.fromkeys(spent))
    if node.op_type == "Concat":
        axis = node.attributes.get_int("axis", 1)
        node.attributes["axis"] = ir.AttrInt64("axis", _TO_LAST.index(axis % 4))
    if node.op_type == "Pad":
        _transpose_pads(node, names)
    return _transpose_result(node, names)


def _transpose_result(node: ir.Node, names: NameScope) -> ir.Node:
    result = node.outputs[0]
    label, shape = result.name, _permuted(result.shape, _TO_LAST)
    renamed, name = names.fresh(f"{label}_nhwc"), names.fresh(f"{label}_transpose")
    settings = {"perm": list(_TO_FIRST)}
    transpose = insert_behind_value(
        result, "Transpose", [], renamed=renamed, name=name, attributes=settings
    )
    result.shape = shape
    return transpose


def _transpose_constant(node: ir.Node, index: int, value: ir.Value, names: NameScope) -> None:
    """Transpose a constant that is broadcast against a transposed tensor."""
    array = constant_of(value)
    if array is None or array.size == 1:
        return
    full = array.reshape((1,) * (4 - array.ndim) + array.shape).transpose(_TO_LAST)
    constant = Builder(node, names).constant(full, f"{value.name}_nhwc")
    node.replace_input_with(index, constant)
    drop_if_unused(value)


# Padding --------------------------------------------------------------------------------------


def _has_known_pads(pad: ir.Node) -> bool:
    """Return whether pads, and the axes that they are for, are known in advance."""
    if "pads" in pad.attributes:
        return True
    axes = input_at(pad, 3)
    return is_constant(input_at(pad, 1)) and (axes is None or is_constant(axes))


def _transpose_pads(pad: ir.Node, names: NameScope) -> None:
    """Reorder the pads, which are all begins and then all ends."""
    if "pads" in pad.attributes:
        given = np.asarray(pad.attributes.get_ints("pads", []))
        pads = given.reshape(2, 4)[:, list(_TO_LAST)].reshape(-1)
        pad.attributes["pads"] = ir.AttrInt64s("pads", [int(size) for size in pads])
        return
    index = 1 if input_at(pad, 3) is None else 3
    old = pad.inputs[index]
    array = constant_of(old)
    assert old is not None and array is not None
    if index == 3:
        new = np.array([_TO_LAST.index(axis % 4) for axis in array.reshape(-1)], np.int64)
    else:
        new = array.reshape(2, 4)[:, list(_TO_LAST)].reshape(-1)
    pad.replace_input_with(index, Builder(pad, names).constant(new, f"{old.name}_nhwc"))
    drop_if_unused(old)
