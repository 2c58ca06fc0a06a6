"""Transposes between channels-first and channels-last: moved down, and gone where two meet.

An operator that works element by element gives the same, transposed, when it reads its inputs
before their transposes instead of behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import op_types
from bitwright.graph.constants import constant_of, is_constant, is_private
from bitwright.graph.editing import drop_if_unused
from bitwright.graph.names import NameScope
from bitwright.prepare.building import Builder
from bitwright.prepare.rewiring import private_reader, remove_nodes

__all__ = [
    "TO_FIRST",
    "TO_LAST",
    "cancel_before",
    "make_transpose",
    "permuted",
    "sink_transpose",
]

TO_LAST = (0, 2, 3, 1)
TO_FIRST = (0, 3, 1, 2)

# Computed element by element, from one input and perhaps parameters of one element.
_UNARY = op_types(lambda op: op.elementwise == "unary")
# Computed element by element, from inputs that are broadcast against each other.
_BROADCAST = op_types(lambda op: op.elementwise == "broadcast")


def make_transpose(value: ir.Value, perm: Sequence[int], output: ir.Value, name: str) -> ir.Node:
    """Return a Transpose that writes this output."""
    return ir.node("Transpose", [value], {"perm": list(perm)}, outputs=[output], name=name)


def permuted(shape: ir.Shape | None, perm: Sequence[int]) -> ir.Shape | None:
    """Return a shape in another order.

    >>> permuted(ir.Shape([1, 3, 8, 9]), TO_LAST)
    Shape([1, 8, 9, 3])
    """
    return None if shape is None else ir.Shape([shape[axis] for axis in perm])


def sink_transpose(turn: ir.Node, names: NameScope) -> None:
    """Move a Transpose to NCHW down as far as it goes, and drop it where it meets its inverse."""
    while turn.graph is not None:
        if _cancel(turn):
            return
        reader = private_reader(turn.outputs[0])
        if reader is None or not _can_pass(turn, reader):
            return
        turn = _pass(reader, names)


def _cancel(turn: ir.Node) -> bool:
    """Let readers that undo the Transpose read what it reads; return whether it is gone."""
    for reader, _ in list(turn.outputs[0].uses()):
        if not _is_transpose(reader, TO_LAST) or reader.graph is not turn.graph:
            continue
        result, source = reader.outputs[0], turn.inputs[0]
        if result.is_graph_output():
            producer = None if source is None else source.producer()
            if source is None or producer is None or source.is_graph_output():
                continue  # the model would return its own input
            source.name, result.name = result.name, source.name
        assert source is not None
        ir.convenience.replace_all_uses_with(result, source, replace_graph_outputs=True)
        remove_nodes([reader])
    if turn.outputs[0].uses() or turn.outputs[0].is_graph_output():
        return False
    remove_nodes([turn])
    return True


def cancel_before(output: ir.Value) -> None:
    """Drop the Transpose that an output was given, where it undoes one of the model's own."""
    turn = output.producer()
    if turn is not None and _is_transpose(turn, TO_LAST) and turn.inputs[0] is not None:
        before = turn.inputs[0].producer()
        if before is not None and _is_transpose(before, TO_FIRST):
            _cancel(before)


def _is_transpose(node: ir.Node | None, perm: Sequence[int]) -> bool:
    if node is None or node.op_type != "Transpose" or node.domain:
        return False
    return tuple(node.attributes.get_ints("perm", [])) == tuple(perm)


def _can_pass(turn: ir.Node, reader: ir.Node) -> bool:
    """Return whether a node gives the same, turned, when it reads its inputs unturned."""
    if any(output.uses() or output.is_graph_output() for output in reader.outputs[1:]):
        return False
    others = [value for value in reader.inputs if value is not turn.outputs[0]]
    if reader.op_type in _UNARY:
        return reader.inputs[0] is turn.outputs[0]
    if reader.op_type in _BROADCAST or reader.op_type == "Concat":
        return all(_is_turned(value) or _is_plain(value, reader) for value in others)
    if reader.op_type == "Pad":
        return _pad_axes(reader) is not None and reader.inputs[0] is turn.outputs[0]
    return False


def _is_turned(value: ir.Value | None) -> bool:
    return value is not None and is_private(value) and _is_transpose(value.producer(), TO_FIRST)


def _is_plain(value: ir.Value | None, reader: ir.Node) -> bool:
    """Return whether a constant can be turned itself."""
    array = constant_of(value)
    if array is None:
        return False
    return array.ndim == 4 if reader.op_type == "Concat" else array.ndim <= 4


def _pass(node: ir.Node, names: NameScope) -> ir.Node:
    """Let a node read unturned inputs; return the Transpose that now stands behind it."""
    spent = []
    for index, value in enumerate(node.inputs):
        if value is None:
            continue
        producer = value.producer()
        if producer is not None and _is_transpose(producer, TO_FIRST):
            node.replace_input_with(index, producer.inputs[0])
            spent.append(producer)
        elif node.op_type in _BROADCAST or node.op_type == "Concat":
            _turn_constant(node, index, value, names)
    remove_nodes(dict.fromkeys(spent))
    if node.op_type == "Concat":
        axis = node.attributes.get_int("axis", 1)
        node.attributes["axis"] = ir.AttrInt64("axis", TO_LAST.index(axis % 4))
    if node.op_type == "Pad":
        _turn_pads(node, names)
    return _turn_behind(node, names)


def _turn_behind(node: ir.Node, names: NameScope) -> ir.Node:
    result = node.outputs[0]
    outside = ir.Value(type=copy(result.type), shape=result.shape)
    ir.convenience.replace_all_uses_with(result, outside, replace_graph_outputs=True)
    label = result.name
    result.shape = permuted(result.shape, TO_LAST)
    result.name, outside.name = names.fresh(f"{label}_nhwc"), label
    turn = make_transpose(result, TO_FIRST, outside, names.fresh(f"{label}_transpose"))
    graph = node.graph
    assert graph is not None
    graph.insert_after(node, turn)
    return turn


def _turn_constant(node: ir.Node, index: int, value: ir.Value, names: NameScope) -> None:
    """Turn a constant that is broadcast against a turned tensor."""
    array = constant_of(value)
    if array is None or array.size == 1:
        return
    full = array.reshape((1,) * (4 - array.ndim) + array.shape).transpose(TO_LAST)
    constant = Builder(node, names).constant(full, f"{value.name}_nhwc")
    node.replace_input_with(index, constant)
    drop_if_unused(value)


# Padding --------------------------------------------------------------------------------------


def _pad_axes(pad: ir.Node) -> list[int] | None:
    """Return which axes a Pad with pads known in advance treats."""
    if "pads" in pad.attributes:
        return list(range(4))
    if len(pad.inputs) < 2 or not is_constant(pad.inputs[1]):
        return None
    if len(pad.inputs) < 4 or pad.inputs[3] is None:
        return list(range(4))
    axes = constant_of(pad.inputs[3])
    return None if axes is None else [int(axis) % 4 for axis in axes.reshape(-1)]


def _turn_pads(pad: ir.Node, names: NameScope) -> None:
    """Reorder the pads, which are all begins and then all ends."""
    axes = _pad_axes(pad)
    assert axes is not None
    turned = [TO_LAST.index(axis) for axis in axes]
    if "pads" in pad.attributes:
        given = np.asarray(pad.attributes.get_ints("pads", []))
        pads = given.reshape(2, 4)[:, list(TO_LAST)].reshape(-1)
        pad.attributes["pads"] = ir.AttrInt64s("pads", [int(size) for size in pads])
        return
    if len(pad.inputs) > 3 and pad.inputs[3] is not None:
        index, new = 3, np.asarray(turned, np.int64)
    else:
        sizes = constant_of(pad.inputs[1])
        assert sizes is not None
        index, new = 1, sizes.reshape(2, 4)[:, list(TO_LAST)].reshape(-1)
    old = pad.inputs[index]
    assert old is not None
    pad.replace_input_with(index, Builder(pad, names).constant(new, f"{old.name}_nhwc"))
    drop_if_unused(old)
