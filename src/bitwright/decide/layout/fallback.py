"""Fallback to float where the data shows attention masks, or branches that never ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import onnx_ir as ir

from bitwright.decide.layout.attention_masks import find_masked_tensors
from bitwright.decide.layout.entries import Layout
from bitwright.support.wording import counted

if TYPE_CHECKING:
    from bitwright.observe import TensorSketch

__all__ = ["leave_masks_float", "leave_unseen_branches_float"]


def leave_masks_float(
    model: ir.Model, layout: Layout, sketches: Mapping[str, TensorSketch]
) -> list[str]:
    """Take attention masks, and what they were added to, out of the layout; return notes."""
    masked = find_masked_tensors(model, layout, sketches)
    if not masked:
        return []
    gone = {key for key, entry in layout.entries.items() if entry.name in masked}
    _drop(layout, gone, "it applies an attention mask, whose range would swallow the scores")
    return [f"left {counted(len(masked), 'tensor')} with attention masks in float"]


def leave_unseen_branches_float(
    model: ir.Model, layout: Layout, sketches: Mapping[str, TensorSketch]
) -> list[str]:
    """Take what the data never reached inside If, Loop and Scan bodies out of the layout.

    A branch for another sampling rate, say, is none of the data's fault; in the main graph a
    tensor without values is.
    """
    gone = {
        key
        for key, entry in layout.entries.items()
        if entry.needs_data
        and entry.value.graph is not model.graph
        and ((sketch := sketches.get(entry.name)) is None or sketch.count == 0)
    }
    if not gone:
        return []
    _drop(layout, gone, "it never ran during calibration")
    tensors = counted(len(gone), "tensor")
    return [f"left {tensors} of branches that never ran during calibration in float"]


def _drop(layout: Layout, gone: set[str], reason: str) -> None:
    """Remove entries and all that hangs on them; nodes without a quantized result become float."""
    while more := {
        key
        for key, entry in layout.entries.items()
        if key not in gone and not gone.isdisjoint(entry.depends_on)
    }:
        gone |= more
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
        layout.nodes[name] = msgspec.structs.replace(node, inputs=inputs, outputs=outputs)
    for name, key in layout.outputs.items():
        if key in gone:
            layout.outputs[name] = None
    for key in gone:
        del layout.entries[key]
