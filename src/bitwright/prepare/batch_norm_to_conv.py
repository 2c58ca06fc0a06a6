"""Rewrite batch norms that fold into no other node as depthwise convolutions.

f (x - mean) + beta, with f = gamma / sqrt(variance + epsilon), is a depthwise convolution with a
kernel of one: its weights are f, its bias is beta - f mean.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import CONVOLUTIONS
from bitwright.graph.shapes import element_type
from bitwright.prepare.fold_batch_norm import is_inference_norm, scale_and_shift
from bitwright.prepare.passes import Builder, Scope, rewrites


@rewrites("BatchNormalization", stays="batch norm {0.name!r} became no convolution")
def batch_norm_to_conv(norm: ir.Node, names: Scope) -> bool | str:
    """Replace every BatchNormalization of known rank 3 to 5.

    The convolution has the batch norm's name and writes its tensor.
    """
    x, y = norm.inputs[0], norm.outputs[0]
    if x is None or not is_inference_norm(norm, names.opset):
        return "it is in training mode, or of an opset before 7"
    affine = scale_and_shift(norm)
    if affine is None:
        return "its parameters are computed at run time"
    rank = _rank(x) or _rank(y)
    if rank is None:
        return "the rank of its input is not known"
    if not 3 <= rank <= 5:
        return f"its input has {rank} dimensions, not 3 to 5"
    if element_type(x) not in (ir.DataType.FLOAT, None):
        return f"it computes in {element_type(x)}"
    factor, shift = (array.astype(np.float32) for array in affine)
    if not (np.isfinite(factor).all() and np.isfinite(shift).all()):
        return "its factors overflow float32"
    ones = (1,) * (rank - 2)
    build = Builder(norm, names)
    weight = build.constant(factor.reshape(-1, 1, *ones), f"{y.name}_weight")
    bias = build.constant(shift, f"{y.name}_bias")
    settings = {"group": factor.size, "kernel_shape": list(ones)}
    build.replace("Conv", [x, weight, bias], "_conv", settings)
    return True


def _rank(value: ir.Value) -> int | None:
    """Return the rank of a tensor, where shape inference gave up that of the kernel before it."""
    if value.shape is not None:
        return len(value.shape)
    conv = value.producer()
    if conv is None or conv.domain or conv.op_type not in CONVOLUTIONS:
        return None
    weight = conv.inputs[1]
    return None if weight is None or weight.shape is None else len(weight.shape)
