"""Write out the default attributes of convolutions that a model leaves out.

The NPU's compiler reads kernel_shape, strides, pads, dilations and group from the node and knows no
defaults for them.
"""

from __future__ import annotations

import onnx_ir as ir

from bitwright.graph import input_at, static_shape
from bitwright.prepare.passes import Scope, rewrites


@rewrites("Conv", "ConvTranspose", stays="{0.op_type} {0.name!r} keeps its attributes")
def write_conv_attributes(conv: ir.Node, names: Scope) -> bool | str:
    """Give every Conv and ConvTranspose all five attributes.

    Where `auto_pad` says how to pad, no pads are written: a node has one or the other.
    """
    weight = input_at(conv, 1)
    shape = None if weight is None else static_shape(weight)
    if shape is None:
        return "its weight has no fixed shape"
    kernel = shape[2:]
    ones = [1] * len(kernel)
    wanted: dict[str, int | list[int]] = {
        "kernel_shape": list(kernel),
        "strides": ones,
        "dilations": ones,
        "group": 1,
    }
    if conv.attributes.get_string("auto_pad", "NOTSET") == "NOTSET":
        wanted["pads"] = [0] * (2 * len(kernel))
    missing = {name: value for name, value in wanted.items() if name not in conv.attributes}
    for name, value in missing.items():
        make = ir.AttrInt64(name, value) if isinstance(value, int) else ir.AttrInt64s(name, value)
        conv.attributes.add(make)
    return bool(missing)
