"""Attention masks: sentinels like -10000 that only say "not this one" to a Softmax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import onnx_ir as ir

from bitwright.decide.layout.entries import Layout
from bitwright.decide.ops import op_types
from bitwright.graph.constants import constant_of

if TYPE_CHECKING:
    from bitwright.observe import TensorSketch

__all__ = ["find_masked_tensors"]

# A mask value lies this far below zero; scores do not.
_SENTINEL = -1000.0
# ... and this many times further from zero than the largest score.
_RATIO = 50.0

# What may lie between a mask and its Softmax.
_CARRIERS = op_types(lambda op: op.elementwise == "broadcast" or op.moves) | {"Cast"}


def find_masked_tensors(
    model: ir.Model, layout: Layout, sketches: Mapping[str, TensorSketch]
) -> set[str]:
    """Return the tensors that carry mask sentinels towards a Softmax.

    In one range with a sentinel, or one block, the scores would share two or three levels. After
    the Softmax both are gone, so leaving this stretch float costs little. Blocks are not observed;
    a sentinel reaches them from a constant of the model.
    """
    towards_softmax = _tensors_before_softmax(model)
    from_constants = _tensors_behind_sentinels(model)
    found = set()
    for entry in layout.entries.values():
        sketch = sketches.get(entry.name)
        if entry.name in towards_softmax and (
            entry.name in from_constants
            if sketch is None and entry.qtype.shares_exponent
            else sketch is not None and _seen_with_sentinels(sketch)
        ):
            found.add(entry.name)
    return found


def _seen_with_sentinels(sketch: TensorSketch) -> bool:
    if sketch.nan:
        return False
    return _are_sentinels(float("-inf") if sketch.inf else sketch.low, sketch.high)


def _are_sentinels(lowest: float, highest: float) -> bool:
    return lowest <= _SENTINEL and -lowest > _RATIO * max(1.0, highest)


def _tensors_behind_sentinels(model: ir.Model) -> set[str]:
    """Return what constant sentinels go into, and what carries them on."""
    found: set[str] = set()
    for node in model.graph.all_nodes():
        if node.op_type in _CARRIERS and any(
            value is not None and (value.name in found or _is_sentinel(value))
            for value in node.inputs
        ):
            sentinels = [
                value for value in node.inputs if value is not None and _is_sentinel(value)
            ]
            found.update(value.name for value in (*sentinels, *node.outputs) if value.name)
    return found


def _is_sentinel(value: ir.Value) -> bool:
    array = constant_of(value)
    if array is None or array.dtype.kind != "f" or not array.size:
        return False
    return _are_sentinels(float(array.min()), float(array.max()))


def _tensors_before_softmax(model: ir.Model) -> set[str]:
    found: set[str] = set()
    waiting = [
        node.inputs[0]
        for node in model.graph.all_nodes()
        if node.op_type in ("Softmax", "LogSoftmax")
    ]
    while waiting:
        value = waiting.pop()
        if value is None or value.name is None or value.name in found:
            continue
        found.add(value.name)
        producer = value.producer()
        if producer is not None and producer.op_type in _CARRIERS:
            waiting.extend(producer.inputs)
    return found
