"""Fold Pads into the pads of the max pools and convolutions that read them, exactly.

    MaxPool(Pad(x, lowest number))  ->  MaxPool(x, pads)
    Conv(Pad(x, 0))                 ->  Conv(x, pads)

A max pool takes what lies behind the edge for lower than any number, a convolution for zero, so one
node computes both; TensorFlow's pictures are padded so. Left alone, the one Pad has no range, and
the other takes a pass over bytes that ONNX Runtime saves in float. An average pool keeps its Pad:
without pads it is a depthwise convolution in integers.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.graph import constant_of, input_at, remove_nodes
from bitwright.prepare.pads_of_all_axes import pads_of
from bitwright.prepare.passes import Scope, rewrites
from bitwright.support.array_types import Array


@rewrites("MaxPool", since=11)
def lowest_pads_into_pools(pool: ir.Node, names: Scope) -> bool:
    """Fold every Pad with minus infinity, or the lowest number, into its MaxPool."""
    pad = _pad_before(pool)
    if pad is None or not _counts_every_place(pool):
        return False
    value = constant_of(input_at(pad, 2))
    if value is None or value.dtype.kind != "f" or value.item() > np.finfo(value.dtype).min:
        return False
    pads, kernel = _joined_pads(pad, pool), np.array(pool.attributes.get_ints("kernel_shape", []))
    # A window that sees nothing but pads would give the lowest number of another type.
    if pads is None or pads.shape[1] != kernel.size or (pads >= kernel).any():
        return False
    return _read_unpadded(pool, pad, pads)


@rewrites("Conv", since=11)
def zero_pads_into_convolutions(conv: ir.Node, names: Scope) -> bool:
    """Fold every Pad with zeros into the Convs that read it; other readers keep the Pad."""
    pad = _pad_before(conv)
    if pad is None or conv.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return False
    filled = input_at(pad, 2)
    value = constant_of(filled)
    if filled is not None and (value is None or value.any()):
        return False
    pads = _joined_pads(pad, conv)
    return pads is not None and _read_unpadded(conv, pad, pads)


def _pad_before(node: ir.Node) -> ir.Node | None:
    """Return the Pad with a constant that writes what a node reads."""
    pad = node.inputs[0].producer() if node.inputs[0] is not None else None
    if pad is None or pad.op_type != "Pad" or pad.domain:
        return None
    return pad if pad.attributes.get_string("mode", "constant") == "constant" else None


def _joined_pads(pad: ir.Node, reader: ir.Node) -> Array | None:
    """Return begins and ends that a Pad and its reader add to images, or None where it adds others.

    Negative ones crop, also where the reader would pad again.
    """
    pads = pads_of(pad)
    if pads is None or pads[:, :2].any() or (pads < 0).any():
        return None
    own = np.array(reader.attributes.get_ints("pads", [0] * (pads.size - 4)))
    joined: Array = pads[:, 2:] + own.reshape(2, -1)
    return joined


def _counts_every_place(pool: ir.Node) -> bool:
    """Return whether windows begin at the edge and end within it, side by side."""
    attributes = pool.attributes
    return (
        attributes.get_string("auto_pad", "NOTSET") == "NOTSET"
        and not attributes.get_int("ceil_mode", 0)
        and set(attributes.get_ints("dilations", [1])) == {1}
        and len(pool.outputs) == 1
    )


def _read_unpadded(node: ir.Node, pad: ir.Node, pads: Array) -> bool:
    node.replace_input_with(0, pad.inputs[0])
    node.attributes.add(ir.AttrInt64s("pads", pads.reshape(-1).tolist()))
    [padded] = pad.outputs
    if not padded.uses() and not padded.is_graph_output():
        remove_nodes([pad])
    return True
