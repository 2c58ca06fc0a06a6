"""Attention masks: sentinels like -10000 that only say "not this one" to a Softmax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import onnx_ir as ir

from bitwright.decide.entries import Layout

if TYPE_CHECKING:
    from bitwright.observe import TensorSketch

__all__ = ["find_masked_tensors"]

# A mask value lies this far below zero; scores do not.
_SENTINEL = -1000.0
# ... and this many times further from zero than the largest score.
_RATIO = 50.0

# What may lie between a mask and its Softmax.
_CARRIERS = frozenset(
    "Add Sub Mul Div Where Min Max Reshape Transpose Squeeze Unsqueeze Expand Slice Identity Cast "
    "Concat Flatten".split()
)


def find_masked_tensors(
    model: ir.Model, layout: Layout, sketches: Mapping[str, TensorSketch]
) -> set[str]:
    """Return the tensors that carry mask sentinels towards a Softmax.

    In one range with a sentinel the scores would share two or three levels. After the Softmax
    both are gone, so leaving this stretch float costs little.
    """
    towards_softmax = _tensors_before_softmax(model)
    return {
        entry.name
        for entry in layout.entries.values()
        if entry.name in towards_softmax
        and (sketch := sketches.get(entry.name)) is not None
        and _holds_sentinels(sketch)
    }


def _holds_sentinels(sketch: TensorSketch) -> bool:
    if sketch.nan:
        return False
    lowest = float("-inf") if sketch.inf else sketch.low
    return lowest <= _SENTINEL and -lowest > _RATIO * max(1.0, sketch.high)


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
