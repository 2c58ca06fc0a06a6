"""Add a zero bias to each linear layer that has none, for bias correction to change."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import LINEAR_OPS
from bitwright.decide.ops.linear import LinearNode
from bitwright.decide.ops.matching import index_of, operands
from bitwright.graph import NameScope, float_constant_of, input_at, is_private, replace_constant
from bitwright.prepare.passes import PassResult


def give_biases(model: ir.Model) -> PassResult:
    """Add a zero bias to each Conv, ConvTranspose and Gemm of the main graph that has none.

    A bias that other nodes read too is copied, also one that an Add puts on top of a MatMul; one
    number for all channels of a Gemm is repeated. A MatMul gets none: that would take a node more.
    """
    names = NameScope(model)
    return PassResult(sum(_give(node, names) for node in model.graph if not node.domain))


def _give(node: ir.Node, names: NameScope) -> bool:
    if node.op_type == "Add":
        return _own_addend(node, names)
    if node.op_type not in LINEAR_OPS or node.op_type == "MatMul":
        return False
    weight = float_constant_of(node.inputs[1])
    if weight is None or weight.dtype not in (np.float32, np.float16):
        return False
    channels, old = LinearNode(node, weight).out_channels, input_at(node, 2)
    if old is None:
        # A factor of nothing is any factor.
        node.attributes.pop("beta", None)
        zeros = np.zeros(channels, weight.dtype)
        replace_constant(node, 2, zeros, f"{node.name or node.op_type}_bias", names)
        return True
    array = float_constant_of(old)
    if array is None or (is_private(old) and not (array.size == 1 < channels)):
        return False
    if array.size == 1:
        array = np.repeat(array.reshape(-1), channels)
    replace_constant(node, 2, array.copy(), "bias", names)
    return True


def _own_addend(node: ir.Node, names: NameScope) -> bool:
    for value, other in operands(node, "Add"):
        product, array = value.producer(), float_constant_of(other)
        if product is None or product.op_type != "MatMul" or array is None or is_private(other):
            continue
        replace_constant(node, index_of(node, other), array.copy(), "bias", names)
        return True
    return False
