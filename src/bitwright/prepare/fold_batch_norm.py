"""Fold batch normalization into the linear node before it: one multiplication less to quantize.

With y = W x + b before it, a BatchNormalization in inference computes f (y - mean) + beta, where
f = gamma / sqrt(variance + epsilon): a linear node again, with the weights f W and the bias
f (b - mean) + beta (Jacob et al. 2018, arXiv:1712.05877, equation 14).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.graph.naming import NameScope
from bitwright.graph.walking import iter_graphs
from bitwright.prepare.constants import (
    drop_if_unused,
    is_private,
    read_constant,
    replace_constant,
)

__all__ = ["fold_batch_norm"]

Array = npt.NDArray[Any]


def fold_batch_norm(model: ir.Model) -> int:
    """Fold every BatchNormalization that directly follows a linear node; return how many.

    Linear nodes are Conv, ConvTranspose and Gemm, also with the addition of a constant bias
    behind them, and MatMul with such an addition. The folded node writes the tensor that the
    batch norm wrote. A batch norm stays where the tensor before it has other readers, where
    parameters are computed at run time, and where it is in training mode.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> fold_batch_norm(ir.Model(graph, ir_version=10))
    0
    """
    names = NameScope(model)
    opset = model.opset_imports.get("", 0)
    folded = 0
    for _, graph in iter_graphs(model):
        for node in list(graph):
            if _is_inference(node, opset):
                folded += _fold(node, names)
    return folded


def _is_inference(node: ir.Node, opset: int) -> bool:
    # Before opset 7 the mode was the attribute is_test, and those models are rare: they stay.
    if node.op_type != "BatchNormalization" or node.domain or opset < 7:
        return False
    if node.attributes.get_int("training_mode", 0) or not node.attributes.get_int("spatial", 1):
        return False
    return not any(output.uses() or output.is_graph_output() for output in node.outputs[1:])


def _fold(norm: ir.Node, names: NameScope) -> bool:
    affine = _scale_and_shift(norm)
    found = _linear_before(norm)
    if affine is None or found is None:
        return False
    factor, shift = affine
    linear, addition = found
    weight = read_constant(linear.inputs[1])
    if weight is None:
        return False
    channels = factor.size
    scaled = _scale_weight(linear, weight, factor)
    bias = _bias_of(linear, channels)
    if scaled is None or bias is None:
        return False
    if addition is not None:
        added = _per_channel(addition[1], channels, _rank_of(linear, weight))
        if added is None:
            return False
        bias = bias + added
    with np.errstate(over="ignore"):
        new_weight = scaled.astype(weight.dtype)
        new_bias = (bias * factor + shift).astype(weight.dtype)
    if not (np.isfinite(new_weight).all() and np.isfinite(new_bias).all()):
        return False  # float16 weights can overflow where the two nodes did not

    replace_constant(linear, 1, new_weight, "weight", names)
    parameters = list(norm.inputs[1:])
    if linear.op_type == "MatMul" and addition is not None:
        last = addition[0]
        index = 1 - _index_of(last, linear.outputs[0])
        replace_constant(last, index, new_bias, "bias", names)
    else:
        last = linear
        # The new bias holds beta * C already.
        linear.attributes.pop("beta", None)
        weight_name = linear.inputs[1].name if linear.inputs[1] is not None else None
        replace_constant(linear, 2, new_bias, f"{weight_name}_bias", names)
    dropped = [norm]
    if addition is not None and last is linear:
        dropped.append(addition[0])
        parameters += addition[0].inputs
    _take_over(last, norm)
    for node in dropped:
        graph = node.graph
        if graph is not None:
            graph.remove(node, safe=True)
    for value in parameters:
        drop_if_unused(value)
    return True


def _scale_and_shift(norm: ir.Node) -> tuple[Array, Array] | None:
    """Return (f, s) such that the batch norm computes f y + s, in float64."""
    arrays = [read_constant(value) for value in norm.inputs[1:5]]
    if len(arrays) != 4:
        return None
    wide = [array.astype(np.float64) for array in arrays if array is not None]
    if len(wide) != 4:
        return None
    gamma, beta, mean, variance = wide
    spread = variance + norm.attributes.get_float("epsilon", 1e-5)
    if not (spread > 0).all():
        return None
    factor = gamma / np.sqrt(spread)
    return factor, beta - mean * factor


def _linear_before(norm: ir.Node) -> tuple[ir.Node, tuple[ir.Node, Array] | None] | None:
    """Return the linear node that feeds a batch norm, and an Add between them with its constant."""
    producer = _private_producer(norm.inputs[0], norm)
    if producer is None:
        return None
    if producer.op_type in ("Conv", "ConvTranspose", "Gemm"):
        return producer, None
    if producer.op_type != "Add":
        return None
    for index in (0, 1):
        constant = read_constant(producer.inputs[1 - index])
        linear = _private_producer(producer.inputs[index], producer)
        if constant is None or linear is None:
            continue
        if linear.op_type in ("Conv", "ConvTranspose", "Gemm"):
            return linear, (producer, constant)
        # The channels of a batch norm are axis 1, which is the MatMul's last only in rank 2.
        shape = linear.outputs[0].shape
        if linear.op_type == "MatMul" and shape is not None and len(shape) == 2:
            return linear, (producer, constant)
    return None


def _private_producer(value: ir.Value | None, reader: ir.Node) -> ir.Node | None:
    """Return the node in the same graph that writes a value for this one reader."""
    if value is None or not is_private(value):
        return None
    node = value.producer()
    if node is None or node.domain or node.graph is not reader.graph:
        return None
    return node


def _scale_weight(linear: ir.Node, weight: Array, factor: Array) -> Array | None:
    """Return the weight with each output channel multiplied, or None if the shapes disagree."""
    channels = factor.size
    wide = weight.astype(np.float64)
    if linear.op_type == "ConvTranspose":
        # (in, out/group, kernel...): the output channels are counted group by group.
        group = linear.attributes.get_int("group", 1)
        if weight.shape[1] * group != channels or weight.shape[0] % group:
            return None
        grouped = wide.reshape(group, weight.shape[0] // group, weight.shape[1], -1)
        grouped *= factor.reshape(group, 1, weight.shape[1], 1)
        return grouped.reshape(weight.shape)
    if linear.op_type == "Conv":
        axis = 0
    elif weight.ndim != 2:
        return None
    else:
        axis = 0 if linear.attributes.get_int("transB", 0) else 1
    if weight.shape[axis] != channels:
        return None
    wide *= factor.reshape([-1 if i == axis else 1 for i in range(weight.ndim)])
    return wide


def _bias_of(linear: ir.Node, channels: int) -> Array | None:
    """Return the bias a linear node adds to each channel, or None if it is not a constant."""
    if linear.op_type == "MatMul" or len(linear.inputs) < 3 or linear.inputs[2] is None:
        return np.zeros(channels)
    bias = read_constant(linear.inputs[2])
    if bias is None:
        return None
    if linear.op_type != "Gemm":
        return bias.astype(np.float64) if bias.shape == (channels,) else None
    per_channel = _per_channel(bias, channels, 2)
    if per_channel is None:
        return None
    return per_channel * linear.attributes.get_float("beta", 1.0)


def _rank_of(linear: ir.Node, weight: Array) -> int:
    return weight.ndim if linear.op_type.startswith("Conv") else 2


def _per_channel(constant: Array, channels: int, rank: int) -> Array | None:
    """Return what a constant, broadcast against (batch, channel, ...), adds to each channel."""
    if constant.ndim > rank:
        return None
    padded = constant.reshape((1,) * (rank - constant.ndim) + constant.shape)
    if padded.size not in (1, channels) or padded.size != padded.shape[1]:
        return None
    return np.broadcast_to(padded.reshape(-1).astype(np.float64), (channels,))


def _index_of(node: ir.Node, value: ir.Value) -> int:
    return next(i for i, read in enumerate(node.inputs) if read is value)


def _take_over(node: ir.Node, norm: ir.Node) -> None:
    """Let a node write the tensor, by name and by readers, that the batch norm wrote."""
    old, new = norm.outputs[0], node.outputs[0]
    new.shape = old.shape if old.shape is not None else new.shape
    new.type = old.type if old.type is not None else new.type
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    new.name = old.name
