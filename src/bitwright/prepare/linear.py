"""Absorb a constant scale and shift into the linear node (y = W x + b) before or behind it.

Behind the node, f y + s is linear again with the weights f W and the bias f b + s (Jacob et al.
2018, arXiv:1712.05877, equation 14, has it for batch norms). Before it, W (f x + s) + b has the
weights W f, taken along the input channels, and the bias b + W s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import LINEAR_OPS
from bitwright.decide.ops.linear import LinearNode
from bitwright.decide.ops.matching import index_of, least_rank, private_producer, private_reader
from bitwright.graph import NameScope, float_constant_of
from bitwright.graph.editing import remove_nodes, replace_constant, replace_value
from bitwright.numerics.scales import fits, scale_limits
from bitwright.support.array_types import Array


@dataclass(frozen=True, slots=True, eq=False)
class Linear(LinearNode):
    """A linear node with what is added behind it."""

    addition: ir.Node | None = None
    """The Add of a constant behind it that counts as its bias."""

    @property
    def rank(self) -> int:
        """The rank of what it writes; the least possible one for a MatMul of unknown shape."""
        if self.node.op_type == "MatMul":
            return max(1, least_rank(self.node.outputs[0]))
        return self.weight.ndim

    @property
    def out_axis(self) -> int:
        """The axis of the channels that it writes."""
        return self.rank - 1 if self.node.op_type == "MatMul" else 1

    @property
    def is_padded(self) -> bool:
        """Whether a Conv reads zeros around its input, which no shift before it has touched."""
        auto_pad = self.node.attributes.get_string("auto_pad", "NOTSET")
        return auto_pad not in ("NOTSET", "VALID") or any(self.node.attributes.get_ints("pads", []))


def linear_before(value: ir.Value | None, reader: ir.Node) -> Linear | None:
    """Return the linear node that writes a value for this reader alone.

    A constant that is added in between counts as part of it.
    """
    producer = private_producer(value, reader)
    if producer is None:
        return None
    if producer.op_type != "Add":
        return _linear_of(producer)
    for index in (0, 1):
        if float_constant_of(producer.inputs[1 - index]) is not None:
            node = private_producer(producer.inputs[index], producer)
            linear = None if node is None else _linear_of(node)
            if linear is not None:
                return replace(linear, addition=producer)
    return None


def linear_after(value: ir.Value) -> Linear | None:
    """Return the linear node that alone reads a value, as its input and not as its weight."""
    reader = private_reader(value)
    linear = None if reader is None else _linear_of(reader)
    if linear is None or linear.node.inputs[0] is not value:
        return None
    if linear.node.op_type == "MatMul":
        output = linear.node.outputs[0]
        behind = private_reader(output)
        if behind is not None and behind.op_type == "Add":
            return replace(linear, addition=behind)
    return linear


def _linear_of(node: ir.Node) -> Linear | None:
    is_linear = not node.domain and node.op_type in LINEAR_OPS
    weight = float_constant_of(node.inputs[1]) if is_linear else None
    linear = None if weight is None else Linear(node, weight)
    return linear if linear is not None and linear.is_well_formed else None


def spread(constant: Array, channels: int, rank: int, axis: int) -> Array | None:
    """Return what a constant, broadcast against a tensor of this rank, is for each channel.

    None says that it differs within a channel, or would make the tensor larger.
    """
    if constant.ndim > rank:
        return None
    padded = constant.reshape((1,) * (rank - constant.ndim) + constant.shape)
    if padded.size not in (1, channels) or padded.size != padded.shape[axis]:
        return None
    return np.broadcast_to(padded.reshape(-1).astype(np.float64), (channels,))


def absorb_after(
    linear: Linear, replaced: ir.Node, factor: Array, shift: Array, names: NameScope
) -> bool:
    """Fold f y + s, which the node behind computes, into a linear node.

    Factor and shift hold one number for each output channel. The linear node, or the addition
    behind a MatMul, writes the tensor that the replaced node wrote. Return whether it could.
    """
    bias = _bias_of(linear)
    if bias is None or factor.shape != bias.shape or shift.shape != bias.shape:
        return False
    weight = None
    if (factor != 1).any():
        weight = linear.weight.astype(np.float64, order="C")
        view = linear.by_channel(weight)
        view *= factor.reshape(view.shape[0], -1, 1, 1)
    moved = bias * factor + shift
    has_bias = linear.addition is not None or _has_own_bias(linear.node)
    if not _store(linear, weight, moved if has_bias or shift.any() else None, names):
        return False
    addition = linear.addition
    if addition is not None and linear.node.op_type == "MatMul":
        replace_value(replaced.outputs[0], addition.outputs[0])
        remove_nodes([replaced])
    else:
        replace_value(replaced.outputs[0], linear.node.outputs[0])
        remove_nodes([replaced] if addition is None else [replaced, addition])
    return True


def absorb_before(linear: Linear, factor: Array, shift: Array, names: NameScope) -> bool:
    """Fold f x + s, which the node before computes, into a linear node; return whether it could.

    Factor and shift hold one number for each input channel. What it reads is left to the caller.
    """
    wide = linear.weight.astype(np.float64, order="C")
    view = linear.by_channel(wide)
    bias = None
    if shift.any():
        bias = _bias_of(linear)
        # A transposed convolution adds up fewer products at its border than inside.
        if bias is None or linear.is_padded or linear.node.op_type == "ConvTranspose":
            return False
        sums = np.einsum("goik,gi->go", view, shift.reshape(view.shape[0], -1)).reshape(-1)
        bias = bias + sums * linear.node.attributes.get_float("alpha", 1.0)
    changes = bool((factor != 1).any())
    view *= factor.reshape(view.shape[0], 1, -1, 1)
    return _store(linear, wide if changes else None, bias, names)


def _has_own_bias(node: ir.Node) -> bool:
    return node.op_type != "MatMul" and len(node.inputs) > 2 and node.inputs[2] is not None


def _bias_of(linear: Linear) -> Array | None:
    """Return what is added to each output channel, or None where that is not a constant."""
    node, channels = linear.node, linear.out_channels
    total = np.zeros(channels)
    if _has_own_bias(node):
        own = float_constant_of(node.inputs[2])
        if own is None:
            return None
        if node.op_type == "Gemm":
            added = spread(own, channels, 2, 1)
        else:
            added = own.astype(np.float64) if own.shape == (channels,) else None
        if added is None:
            return None
        total = total + added * node.attributes.get_float("beta", 1.0)
    if linear.addition is not None:
        index = 1 - index_of(linear.addition, node.outputs[0])
        constant = float_constant_of(linear.addition.inputs[index])
        if constant is None:
            return None
        added = spread(constant, channels, linear.rank, linear.out_axis)
        if added is None:
            return None
        total = total + added
    return total


def _store(linear: Linear, weight: Array | None, bias: Array | None, names: NameScope) -> bool:
    """Give a linear node new numbers where its type can hold them; return whether it can."""
    node, dtype = linear.node, linear.weight.dtype
    if bias is not None and node.op_type == "MatMul" and linear.addition is None:
        return False  # it has no place for a bias
    if not all(_fits(array, dtype) for array in (weight, bias) if array is not None):
        return False
    if weight is not None:
        replace_constant(node, 1, weight.astype(dtype), "weight", names)
    if bias is None:
        return True
    if node.op_type == "MatMul" and linear.addition is not None:
        index = 1 - index_of(linear.addition, node.outputs[0])
        replace_constant(linear.addition, index, bias.astype(dtype), "bias", names)
        return True
    node.attributes.pop("beta", None)  # the new bias holds beta * C already
    name = node.inputs[1].name if node.inputs[1] is not None else None
    replace_constant(node, 2, bias.astype(dtype), f"{name}_bias", names)
    return True


def _fits(array: Array, dtype: np.dtype[Any]) -> bool:
    """Return whether a type holds the numbers without overflow, and not all as subnormals.

    float16 needs this: two nodes can each stay within its range where their product does not.
    """
    largest = np.abs(array).max(initial=0.0)
    return fits(array, dtype) and bool(largest == 0 or largest >= scale_limits(dtype)[0])
