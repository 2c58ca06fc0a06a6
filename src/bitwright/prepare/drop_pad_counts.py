"""Drop `count_include_pad` of average pools without pads, where it has no effect.

ONNX Runtime's integer kernel takes it for the places behind the edge, too, which `ceil_mode` lets a
window reach: it divides by the whole window, and its float kernel by what lies inside. PyTorch
writes both for every `AvgPool2d(ceil_mode=True)`.
"""

from __future__ import annotations

import onnx_ir as ir

from bitwright.prepare.passes import Scope, rewrites


@rewrites("AveragePool")
def drop_pad_counts(pool: ir.Node, names: Scope) -> bool:
    """Take the attribute from every AveragePool that rounds up and has no pads."""
    attributes = pool.attributes
    padded = any(attributes.get_ints("pads", [])) or (
        attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    )
    if padded or not attributes.get_int("ceil_mode", 0):
        return False
    return attributes.pop("count_include_pad", None) is not None
