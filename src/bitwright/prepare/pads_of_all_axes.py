"""Rewrite a Pad with an `axes` input as one with pads of all axes, for hardware without it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.graph.constants import constant_of, input_at
from bitwright.graph.editing import drop_if_unused, replace_inputs
from bitwright.prepare.passes import Builder, Scope, rewrites

__all__ = ["pads_of_all_axes"]


@rewrites("Pad", since=18, stays="Pad {0.name!r} keeps its axes")
def pads_of_all_axes(pad: ir.Node, names: Scope) -> bool | str:
    """Give each Pad with constant axes the pads of all of them."""
    if input_at(pad, 3) is None:
        return False
    axes, pads, source = constant_of(pad.inputs[3]), constant_of(pad.inputs[1]), pad.inputs[0]
    if axes is None or pads is None or source is None or source.shape is None:
        return "they, its pads or its rank are not known"
    rank = len(source.shape)
    written = np.zeros((2, rank), np.int64)
    written[:, axes.reshape(-1) % rank] = pads.reshape(2, -1)
    value = Builder(pad, names).constant(written.reshape(-1), f"{pad.outputs[0].name}_pads")
    given = list(pad.inputs)
    replace_inputs(pad, [source, value, given[2]])
    for constant in (given[1], given[3]):
        drop_if_unused(constant)
    return True
