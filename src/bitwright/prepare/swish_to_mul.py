"""Rewrite HardSwish and Swish as x times (hard) sigmoid of x.

HardSwish(x) = x max(0, min(1, x / 6 + 1 / 2)) is x times the HardSigmoid with alpha 1/6, and
Swish(x) = x / (1 + exp(-alpha x)) is x times a Sigmoid.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.prepare.passes import Builder, Scope, rewrites


@rewrites("HardSwish", "Swish")
def swish_to_mul(swish: ir.Node, names: Scope) -> bool:
    """Replace every HardSwish and Swish by its two factors and their product."""
    x, y = swish.inputs[0], swish.outputs[0]
    assert x is not None  # both ops have just one input
    build = Builder(swish, names)
    stem = y.name or "swish"
    if swish.op_type == "HardSwish":
        gate = build.add("HardSigmoid", [x], f"{stem}_gate", {"alpha": 1 / 6, "beta": 0.5})
    else:
        gate = build.add("Sigmoid", [_scaled(swish, x, build)], f"{stem}_gate")
    gate.shape = x.shape
    build.finish(build.add("Mul", [x, gate], f"{stem}_product", node_name=swish.name))
    return True


def _scaled(swish: ir.Node, x: ir.Value, build: Builder) -> ir.Value:
    alpha = swish.attributes.get_float("alpha", 1.0)
    if alpha == 1:
        return x
    dtype = np.dtype(np.float32) if x.dtype is None else x.dtype.numpy()
    factor = build.constant(np.array(alpha, dtype), f"{x.name}_alpha")
    return build.add("Mul", [x, factor], f"{x.name}_scaled", shape=x.shape)
