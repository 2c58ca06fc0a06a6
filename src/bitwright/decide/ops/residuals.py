"""Residual additions: which input of an Add comes straight from a convolution, and which skips it.

Hardware that computes a convolution, its activation and the Add behind it in one kernel reads the
other input, the skip, from memory: that is the one to quantize.
"""

from __future__ import annotations

import onnx_ir as ir

from bitwright.decide.ops import CONVOLUTIONS
from bitwright.graph import DEQUANTIZERS, QUANTIZERS, is_constant, is_private

_FUSED_WITH_IT = frozenset({"BatchNormalization", "Clip", "LeakyRelu", "Relu"})
_PAIRS = QUANTIZERS | DEQUANTIZERS


def find_skip_input(add: ir.Node) -> int | None:
    """Return the input of a residual Add that does not come straight from a convolution.

    Where both do, it is that from further away, and of two that are alike the first. None: the node
    is no residual Add.
    """
    if add.op_type != "Add" or add.domain or len(add.inputs) != 2:
        return None
    if any(value is None or is_constant(value) for value in add.inputs):
        return None
    (first, near), (second, far) = (_convolution_before(value) for value in add.inputs)
    if first is None and second is None:
        return None
    if first is None or second is None:
        return 0 if first is None else 1
    if first is second:
        return None
    return 1 if near < far else 0


def _convolution_before(value: ir.Value | None) -> tuple[ir.Node | None, int]:
    """Return the convolution that only the reader of a value needs, and how far away it is."""
    distance = 0
    while value is not None and is_private(value):
        node = value.producer()
        if node is None or (node.domain and node.op_type not in _PAIRS):
            break
        if node.op_type in CONVOLUTIONS:
            return node, distance
        if node.op_type not in _FUSED_WITH_IT | _PAIRS:
            break
        value, distance = node.inputs[0], distance + 1
    return None, distance
