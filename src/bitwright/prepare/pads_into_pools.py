"""Fold a Pad with minus infinity into the pads of the max pool behind it.

A max pool takes what lies behind the edge for lower than any number, so one node computes both.
Left alone, such a Pad (timm writes it for pictures padded as TensorFlow does) has no range.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.graph.constants import constant_of, input_at
from bitwright.graph.editing import remove_nodes, replace_inputs
from bitwright.prepare.passes import Scope, rewrites

__all__ = ["pads_into_pools"]


@rewrites("MaxPool", since=11)
def pads_into_pools(pool: ir.Node, names: Scope) -> bool:
    """Fold every Pad with minus infinity, or the lowest number, into its MaxPool."""
    pad = pool.inputs[0].producer() if pool.inputs[0] is not None else None
    if pad is None or pad.op_type != "Pad" or pad.domain or not _counts_every_place(pool):
        return False
    [padded] = pad.outputs
    pads = _pads_of_lowest(pad)
    if pads is None or padded.is_graph_output() or len(padded.uses()) > 1:
        return False
    kernel = np.array(pool.attributes.get_ints("kernel_shape", []))
    own = np.array(pool.attributes.get_ints("pads", [0] * 2 * kernel.size)).reshape(2, -1)
    if pads.shape[1] != kernel.size + 2 or pads[:, :2].any():
        return False
    both = pads[:, 2:] + own
    # A window that sees nothing but pads would give the lowest number of another type.
    if (both < 0).any() or (both >= kernel).any():
        return False
    replace_inputs(pool, [pad.inputs[0]])
    pool.attributes.add(ir.AttrInt64s("pads", both.reshape(-1).tolist()))
    remove_nodes([pad])
    return True


def _counts_every_place(pool: ir.Node) -> bool:
    """Return whether windows begin at the edge and end within it, side by side."""
    attributes = pool.attributes
    return (
        attributes.get_string("auto_pad", "NOTSET") == "NOTSET"
        and not attributes.get_int("ceil_mode", 0)
        and set(attributes.get_ints("dilations", [1])) == {1}
        and len(pool.outputs) == 1
    )


def _pads_of_lowest(pad: ir.Node) -> npt.NDArray[Any] | None:
    """Return begins and ends of a Pad with the lowest number, of all axes, or None."""
    value, pads = constant_of(input_at(pad, 2)), constant_of(input_at(pad, 1))
    if pad.attributes.get_string("mode", "constant") != "constant" or input_at(pad, 3) is not None:
        return None
    if value is None or pads is None or value.dtype.kind != "f":
        return None
    return pads.reshape(2, -1) if value.item() <= np.finfo(value.dtype).min else None
