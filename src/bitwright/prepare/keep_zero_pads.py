"""Keep ONNX Runtime from fusing a Pad of zeros into the max pool behind it.

ONNX Runtime makes one node of both, whose pads are lower than any number, not zero: where all that
a window sees is negative, that is another maximum. It does so once the pads are constant and
nothing is between them, so to fold sizes or transposes would change what a model computes. A pool
that says that it has no pads is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from bitwright.graph import constant_of, input_at, maker_of, reach, static_shape
from bitwright.prepare.passes import Scope, rewrites


@rewrites("MaxPool")
def keep_zero_pads(pool: ir.Node, names: Scope) -> bool:
    """Write explicit zero pads on each MaxPool that a Pad could be fused into."""
    attributes = pool.attributes
    rounds_up = attributes.get_int("ceil_mode", 0) == 1
    padded = attributes.get_string("auto_pad", "NOTSET") != "NOTSET" or any(
        attributes.get_ints("pads", [])
    )
    if rounds_up or padded:
        return False
    before = _before_transposes(pool.inputs[0])
    if before is None or before.op_type != "Pad" or not _puts_zeros_around(before):
        return False
    # Side by side and with pads that it can fold, the runtime joins them as exported, too.
    if before.outputs[0] is pool.inputs[0] and _is_fixed(input_at(before, 1)):
        return False
    source = _before_transposes(before.inputs[0])
    if source is not None and source.op_type == "Relu":
        return False
    attributes.pop("pads", None)
    attributes.add(ir.AttrString("auto_pad", "VALID"))
    return True


def _before_transposes(value: ir.Value | None) -> ir.Node | None:
    """Return what computes a value, but for its order of axes."""
    node = value.producer() if value is not None else None
    while node is not None and node.op_type == "Transpose" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node


def _is_fixed(value: ir.Value | None) -> bool:
    """Return whether a value follows from constants and from shapes without an open size."""

    def sources(each: ir.Value | None) -> Sequence[ir.Value | None]:
        node = maker_of(each)
        return () if node is None or node.op_type == "Shape" else node.inputs

    return all(_is_known(each) for each in reach([value], sources) if each is not None)


def _is_known(value: ir.Value) -> bool:
    """Return whether a value is no input, nor a shape with an open size."""
    node = value.producer()
    if node is None or node.op_type != "Shape":
        return node is not None or value.is_initializer()
    return node.inputs[0] is not None and static_shape(node.inputs[0]) is not None


def _puts_zeros_around(pad: ir.Node) -> bool:
    if pad.attributes.get_string("mode", "constant") != "constant" or "pads" in pad.attributes:
        return False
    value = input_at(pad, 2)
    number = constant_of(value)
    return value is None or (number is not None and not number.any())
