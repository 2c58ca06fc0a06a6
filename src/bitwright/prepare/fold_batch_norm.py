"""Fold batch normalization into the linear node before it: one multiplication less to quantize.

With y = W x + b before it, a BatchNormalization in inference computes f (y - mean) + beta, where
f = gamma / sqrt(variance + epsilon): a linear node again, with the weights f W and the bias
f (b - mean) + beta (Jacob et al. 2018, arXiv:1712.05877, equation 14).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.graph import float_constant_of, is_training_norm
from bitwright.prepare.linear import absorb_after, linear_before
from bitwright.prepare.passes import Scope, rewrites
from bitwright.support.array_types import Array


@rewrites("BatchNormalization")
def fold_batch_norm(norm: ir.Node, names: Scope) -> bool:
    """Fold every BatchNormalization that directly follows a linear node.

    Linear nodes are Conv, ConvTranspose and Gemm, also with the addition of a constant bias
    behind them, and MatMul with such an addition. The folded node writes the tensor that the
    batch norm wrote. A batch norm stays where the tensor before it has other readers, where
    parameters are computed at run time, and where it is in training mode.
    """
    affine = scale_and_shift(norm) if is_inference_norm(norm, names.opset) else None
    linear = linear_before(norm.inputs[0], norm)
    if affine is None or linear is None:
        return False
    if linear.node.op_type == "MatMul":
        # The channels of a batch norm are axis 1, which is the MatMul's last only in rank 2.
        shape = linear.node.outputs[0].shape
        if shape is None or len(shape) != 2:
            return False
    return absorb_after(linear, norm, *affine, names)


def is_inference_norm(node: ir.Node, opset: int) -> bool:
    """Return whether a node is a batch norm with given statistics, one for each channel."""
    # Before opset 7 the mode was the attribute is_test, and those models are rare: they stay.
    if node.op_type != "BatchNormalization" or node.domain or opset < 7:
        return False
    return not is_training_norm(node, opset) and bool(node.attributes.get_int("spatial", 1))


def scale_and_shift(norm: ir.Node) -> tuple[Array, Array] | None:
    """Return (f, s) such that the batch norm computes f y + s, in float64."""
    arrays = [float_constant_of(value) for value in norm.inputs[1:5]]
    wide = [array.astype(np.float64) for array in arrays if array is not None]
    if len(wide) != 4:
        return None
    gamma, beta, mean, variance = wide
    spread = variance + norm.attributes.get_float("epsilon", 1e-5)
    if not (spread > 0).all():
        return None
    factor = gamma / np.sqrt(spread)
    return factor, beta - mean * factor
