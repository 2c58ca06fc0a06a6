"""Rewrite a Pad with an `axes` input as one with pads of all axes, for hardware without it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.graph import constant_of, drop_if_unused, input_at, replace_inputs
from bitwright.prepare.passes import Builder, Scope, rewrites
from bitwright.support.array_types import Array


@rewrites("Pad", since=18, stays="Pad {0.name!r} keeps its axes")
def pads_of_all_axes(pad: ir.Node, names: Scope) -> bool | str:
    """Give each Pad with constant axes the pads of all of them."""
    if input_at(pad, 3) is None:
        return False
    pads, given = pads_of(pad), list(pad.inputs)
    if pads is None:
        return "they, its pads or its rank are not known"
    value = Builder(pad, names).constant(pads.reshape(-1), f"{pad.outputs[0].name}_pads")
    replace_inputs(pad, [given[0], value, given[2]])
    for constant in (given[1], given[3]):
        drop_if_unused(constant)
    return True


def pads_of(pad: ir.Node) -> Array | None:
    """Return [begins, ends] of a Pad along all axes, or None where they are computed."""
    source, pads, axes = pad.inputs[0], constant_of(input_at(pad, 1)), constant_of(input_at(pad, 3))
    if pads is None:
        return None
    if input_at(pad, 3) is None:
        return pads.reshape(2, -1)
    if axes is None or source is None or source.shape is None:
        return None
    written = np.zeros((2, len(source.shape)), np.int64)
    written[:, axes.reshape(-1) % len(source.shape)] = pads.reshape(2, -1)
    return written
