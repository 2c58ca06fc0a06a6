"""Fallback to float where the data shows attention masks, or branches that never ran.

Attention masks hold sentinels like -10000 that only say "not this one" to a Softmax.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec
import onnx_ir as ir

from bitwright.decide.layout.entries import Layout
from bitwright.decide.ops import op_types
from bitwright.graph import constant_of, maker_of, reach
from bitwright.support.wording import counted

if TYPE_CHECKING:
    from bitwright.observe import TensorSketch

# A mask value lies this far below zero; scores do not.
_SENTINEL = -1000.0
# ... and this many times further from zero than the largest score.
_RATIO = 50.0

# What may lie between a mask and its Softmax.
_CARRIERS = op_types(lambda op: op.elementwise == "broadcast" or op.moves) | {"Cast"}


def leave_masks_float(
    model: ir.Model, layout: Layout, sketches: Mapping[str, TensorSketch]
) -> Layout:
    """Return the layout without attention masks, and what they were added to."""
    masked = _masked_tensors(model, layout, sketches)
    if not masked:
        return layout
    gone = {key for key, entry in layout.entries.items() if entry.name in masked}
    reason = "it applies an attention mask, whose range would swallow the scores"
    note = f"left {counted(len(masked), 'tensor')} with attention masks in float"
    return _without(layout, _with_dependents(layout, gone), reason, note)


def leave_unreached_float(
    model: ir.Model, layout: Layout, sketches: Mapping[str, TensorSketch]
) -> Layout:
    """Return the layout without what the data never reached.

    A branch for another sampling rate or an expert that no token went to is none of the data's
    fault. Data that reaches nothing is, and so is a tensor of the main graph that was not observed.
    """
    observed = {key: entry for key, entry in layout.entries.items() if entry.needs_data}
    gone = set()
    for key, entry in observed.items():
        sketch = sketches.get(entry.range_of or entry.name)
        is_inside = entry.value.graph is not model.graph  # a body that never ran shows nothing
        if (sketch is None and is_inside) or (sketch is not None and not sketch.count):
            gone.add(key)
    if not gone or len(gone) == len(observed):
        return layout
    gone = _with_dependents(layout, gone)
    tensors = counted(len(gone), "tensor")
    note = f"left {tensors} that no sample of the calibration data reached in float"
    return _without(layout, gone, "it never ran during calibration", note)


def _with_dependents(layout: Layout, keys: set[str]) -> set[str]:
    """Return these entries, and all that have their parameters or values from them."""
    found = set(keys)
    while more := {
        key
        for key, entry in layout.entries.items()
        if key not in found and not found.isdisjoint(entry.depends_on)
    }:
        found |= more
    return found


def _without(layout: Layout, gone: set[str], reason: str, note: str) -> Layout:
    """Return the layout without these entries, and with a note.

    Nodes without a quantized result become float.
    """
    nodes = dict(layout.nodes)
    for name, node in layout.nodes.items():
        if not gone & {*node.inputs, *node.outputs}:
            continue
        inputs = tuple(None if key in gone else key for key in node.inputs)
        outputs = tuple(None if key in gone else key for key in node.outputs)
        if node.action == "quantize" and not any(outputs):
            # Integers that a float node would only turn back gain nothing.
            inputs = tuple(
                key if key is not None and layout.entries[key].role == "activation" else None
                for key in inputs
            )
            node = msgspec.structs.replace(node, action="float", reason=reason)
        nodes[name] = msgspec.structs.replace(node, inputs=inputs, outputs=outputs)
    return Layout(
        entries={key: entry for key, entry in layout.entries.items() if key not in gone},
        nodes=nodes,
        outputs={name: None if key in gone else key for name, key in layout.outputs.items()},
        notes=[*layout.notes, note],
    )


def _masked_tensors(
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
    def carried(value: ir.Value | None) -> Iterable[ir.Value | None]:
        producer = maker_of(value)
        return producer.inputs if producer is not None and producer.op_type in _CARRIERS else ()

    nodes = (n for n in model.graph.all_nodes() if n.op_type in ("Softmax", "LogSoftmax"))
    found = reach((node.inputs[0] for node in nodes), carried)
    return {value.name for value in found if value is not None and value.name is not None}
