"""Parts of outputs: the tensors that a Concat at the end of the graph joins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from bitwright.assess.judge.kinds import OutputPart, channel_axis, choose_kind, names_scores
from bitwright.graph import is_constant, sizes_of

Array = npt.NDArray[Any]

_SAME_ELEMENTS = frozenset({"Identity", "Cast", "Dropout"})
_LOOKED_THROUGH = _SAME_ELEMENTS | {*"Transpose Reshape Squeeze Unsqueeze Slice Split".split()}
_MAX_STEPS = 32


@dataclass(frozen=True, slots=True)
class Heads:
    """What the graph tells of an output: its maker, and the heads that were concatenated."""

    made_by: str | None = None
    axis: int | None = None
    sizes: tuple[int, ...] = ()
    makers: tuple[str | None, ...] = ()
    divider: str | None = None
    """The last node before it that divides by what it computes, and may do so by nearly zero."""


def cut_output(
    name: str, first: Array, inputs: Iterable[Array], heads: Heads | None = None
) -> tuple[OutputPart, ...]:
    """Return the parts of an output, by its float values for a sample and by the graph."""
    heads = heads or Heads()
    choice = choose_kind(name, first, inputs, made_by=heads.made_by)
    axis = heads.axis
    is_cut = axis is not None and axis < first.ndim and first.shape[axis] == sum(heads.sizes)
    # Two axes alone make no classes of what is put together from several heads.
    is_cut = is_cut and (choice.kind == "sqnr" or (choice.top1 and not names_scores(name)))
    if not is_cut or axis is None:
        return (choice,)
    parts, start = [], 0
    for size, maker in zip(heads.sizes, heads.makers, strict=True):
        span = (start, start + size)
        start += size
        if maker == "Sigmoid":
            parts.append(OutputPart("sigmoid", axis, "a concatenated head of Sigmoid scores", span))
        else:
            parts.append(OutputPart("sqnr", axis, "a concatenated head", span))
    return tuple(parts)


# The graph -----------------------------------------------------------------------------------


def find_heads(model: ir.Model) -> dict[str, Heads]:
    """Return what the graph of a float model tells of each of its outputs."""
    return {
        value.name or "": replace(_heads_of(value), divider=_find_divider(value))
        for value in model.graph.outputs
    }


def _find_divider(output: ir.Value) -> str | None:
    reached: list[ir.Value | None] = [output]
    for value in reached:  # which grows
        node = None if value is None else value.producer()
        if node is None or len(reached) > _MAX_STEPS:
            continue
        place = {"Div": 1, "Reciprocal": 0}.get(node.op_type)
        if place is not None and not node.domain and not is_constant(node.inputs[place]):
            return f"{node.op_type} {node.name!r}"
        reached += node.inputs
    return None


def _heads_of(value: ir.Value) -> Heads:
    maker = _maker(value)
    made_by = None if maker is None else maker.op_type
    # Positions may be dynamic: the axis of channels is the smallest that is known.
    axis = channel_axis([0 if size is None else size for size in sizes_of(value) or ()])
    if axis is None:
        return Heads(made_by)
    split = _split(value, axis, _MAX_STEPS)
    if split is None:
        return Heads(made_by)
    makers = tuple(None if (one := _maker(v)) is None else one.op_type for _, v in split)
    return Heads(made_by, axis, tuple(size for size, _ in split), makers)


def _split(value: ir.Value, axis: int, steps: int) -> list[tuple[int, ir.Value]] | None:
    """Return (size, value) of what lies side by side along an axis, or None for one thing."""
    node = value.producer()
    if node is None or not steps or not node.inputs or node.inputs[0] is None:
        return None
    source = node.inputs[0]
    if node.op_type in _SAME_ELEMENTS:
        return _split(source, axis, steps - 1)
    if node.op_type == "Transpose":
        reverse = range(len(sizes_of(value) or ()))[::-1]
        places = node.attributes.get_ints("perm", reverse)
        return _split(source, places[axis], steps - 1) if axis < len(places) else None
    if node.op_type == "Reshape":
        place = _same_axis(sizes_of(source), sizes_of(value), axis)
        return None if place is None else _split(source, place, steps - 1)
    if node.op_type != "Concat":
        return None
    inputs = [one for one in node.inputs if one is not None]
    rank = len(sizes_of(value) or ()) or axis + 1
    if int(node.attributes["axis"].value) % rank != axis:
        # Levels of a pyramid, one behind the other: each has the same heads, or none is seen.
        splits = [_split(one, axis, steps - 1) for one in inputs]
        first = splits[0]
        same = first is not None and all(
            split is not None and [s for s, _ in split] == [s for s, _ in first] for split in splits
        )
        return first if same else None
    found: list[tuple[int, ir.Value]] = []
    for one in inputs:
        shape = sizes_of(one)
        size = None if shape is None or axis >= len(shape) else shape[axis]
        if size is None:
            return None
        found += _split(one, axis, steps - 1) or [(size, one)]
    return found if len(found) > 1 else None


def _same_axis(
    before: list[int | None] | None, after: list[int | None] | None, axis: int
) -> int | None:
    """Return where the axis of a reshaped tensor was before, if all behind it stayed."""
    if before is None or after is None:
        return None
    place = axis - len(after) + len(before)
    kept = place >= 0 and before[place:] == after[axis:] and None not in after[axis:]
    return place if kept else None


def _maker(value: ir.Value) -> ir.Node | None:
    """Return the node that computes a value; what only moves numbers is looked through."""
    node = value.producer()
    for _ in range(_MAX_STEPS):
        if node is None or not (
            node.op_type in _LOOKED_THROUGH or (node.op_type == "Concat" and len(node.inputs) == 1)
        ):
            return node
        source = node.inputs[0] if node.inputs else None
        if source is None or source.producer() is None:
            return node
        node = source.producer()
    return node
