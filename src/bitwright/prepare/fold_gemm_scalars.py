"""Fold alpha and beta of Gemm into its constants, so that its bias is simply added.

An int32 bias with the scale of input times weight stands for C, not for beta * C: a quantized Gemm
is right only where beta is 1, and integer kernels have no alpha at all.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.graph import float_constant_of, replace_constant
from bitwright.numerics.scales import fits
from bitwright.prepare.passes import Scope, rewrites


@rewrites("Gemm")
def fold_gemm_scalars(node: ir.Node, names: Scope) -> bool:
    """Set alpha and beta of every Gemm to 1 where a constant can take them.

    alpha goes into B, or into A where only that is constant; beta goes into C. Where nothing is
    constant the attribute stays. A constant that other nodes read too is copied.
    """
    alpha = _fold(node, "alpha", (1, 0), names)
    return _fold(node, "beta", (2,), names) or alpha


def _fold(node: ir.Node, attribute: str, inputs: tuple[int, ...], names: Scope) -> bool:
    factor = node.attributes.get_float(attribute, 1.0)
    if factor == 1.0:
        return False
    if attribute == "beta" and (len(node.inputs) < 3 or node.inputs[2] is None):
        node.attributes.pop(attribute)  # there is nothing it could multiply
        return True
    for index in inputs:
        array = float_constant_of(node.inputs[index])
        if array is None:
            continue
        scaled = array.astype(np.float64) * factor
        if not fits(scaled, array.dtype):
            continue
        replace_constant(node, index, scaled.astype(array.dtype), attribute, names)
        node.attributes.pop(attribute)
        return True
    return False
