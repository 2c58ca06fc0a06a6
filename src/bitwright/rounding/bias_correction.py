"""Bias correction: subtract the mean error that rounding the weights adds to a layer's output.

M. Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (2019,
arXiv:1906.04721), section 4.2: with weights W + dW instead of W the output of a linear layer is off
by dW x, on average by dW E[x]. Rounding moves whole channels that way, most of all where a channel
has few weights, as in depthwise convolutions; the bias can take it back at no cost.

A convolution reads zeros where its window reaches beyond the input. The means are those of the
values alone, taken to be the same everywhere in a channel: each place of the kernel counts as often
as it meets a value, and not padding. Where sizes are not known, all count as in the interior.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import CONVOLUTIONS, LINEAR_OPS, MATRIX_PRODUCTS
from bitwright.decide.ops.linear import LinearNode, bias_sum_behind
from bitwright.graph.constants import float_constant_of, input_at, is_private
from bitwright.numerics import along_axis, transposed_window_coverage, window_coverage
from bitwright.support.array_types import F64, Array


@dataclass(frozen=True, slots=True, eq=False)
class BiasedLayer:
    """A layer with the constant bias that can be corrected."""

    node: ir.Node
    bias: ir.Value

    @property
    def source(self) -> ir.Value:
        """What the layer reads."""
        value = self.node.inputs[0]
        assert value is not None
        return value

    @property
    def weight(self) -> ir.Value:
        """The constant that it multiplies with."""
        value = self.node.inputs[1]
        assert value is not None
        return value

    @property
    def input_axis(self) -> int:
        """The axis of the source that is summed over: that of its channels."""
        if self.node.op_type in CONVOLUTIONS:
            return 1
        return 0 if self.node.attributes.get_int("transA", 0) else -1

    @property
    def output_axis(self) -> int:
        """The axis of the output along which the bias differs."""
        return 1 if self.node.op_type in CONVOLUTIONS else -1

    @property
    def factor(self) -> float:
        """What the layer multiplies its bias with."""
        return float(self.node.attributes.get_float("beta", 1.0))


def find_biased_layers(
    model: ir.Model, quantized: Collection[str]
) -> tuple[list[BiasedLayer], dict[str, str]]:
    """Return the layers among these nodes of the main graph, in order, and why others have none."""
    layers: list[BiasedLayer] = []
    skipped: dict[str, str] = {}
    taken: set[ir.Value] = set()
    for node in model.graph:
        name = node.name or ""
        if name not in quantized or node.op_type not in LINEAR_OPS or node.domain:
            continue
        found = _biased_layer(node)
        if isinstance(found, BiasedLayer) and found.bias not in taken:
            taken.add(found.bias)
            layers.append(found)
        else:
            skipped[name] = found if isinstance(found, str) else "it shares its bias"
    return layers, skipped


def input_axes(layers: Iterable[BiasedLayer]) -> dict[str, int]:
    """Return what layers read, and along which axis they sum it up; the first reader counts."""
    axes: dict[str, int] = {}
    for layer in layers:
        axes.setdefault(layer.source.name or "", layer.input_axis)
    return axes


def _biased_layer(node: ir.Node) -> BiasedLayer | str:
    """Return a node as a layer with a bias to correct, or why it is none."""
    weight = float_constant_of(node.inputs[1])
    if weight is None or not node.inputs[1].is_initializer():  # type: ignore[union-attr]
        return "its weight is computed at run time"
    found = bias_sum_behind(node)
    if found is None and node.op_type == "MatMul":
        return "nothing adds a bias behind it"
    bias = input_at(node, 2) if found is None else found.bias
    if bias is None:
        return "it has no bias"
    array = float_constant_of(bias)
    if array is None or not bias.is_initializer():
        return "its bias is computed at run time"
    if not is_private(bias):
        return "it shares its bias"
    if node.op_type in MATRIX_PRODUCTS and weight.ndim != 2:
        return "its weight is not one matrix"
    layer = BiasedLayer(node, bias)
    if array.ndim < 1 or array.shape[-1] != LinearNode(node, weight).out_channels:
        return "its bias is one number for all channels"
    return layer if layer.factor else "it multiplies its bias with 0"


def mean_error(layer: BiasedLayer, difference: Array, mean: F64) -> F64:
    """Return what a change of the weights adds to each output channel, for this mean input."""
    node, wide = layer.node, np.asarray(difference, np.float64)
    if node.op_type not in CONVOLUTIONS:
        by_output = wide if node.attributes.get_int("transB", 0) else wide.T
        result: F64 = by_output @ mean * node.attributes.get_float("alpha", 1.0)
        return result
    groups = int(node.attributes.get_int("group", 1))
    shares = reduce(np.multiply.outer, _inside_fractions(layer, wide.shape[2:]), np.ones(()))
    kernels = (wide * shares).reshape(*wide.shape[:2], -1).sum(axis=2)
    by_group = kernels.reshape(groups, -1, kernels.shape[1])
    order = "goi,gi->go" if node.op_type == "Conv" else "gio,gi->go"
    summed: F64 = np.einsum(order, by_group, mean.reshape(groups, -1)).reshape(-1)
    return summed


def add_to_bias(array: Array, shift: Array) -> Array:
    """Return a bias with this added along its last axis, in its own type."""
    return np.asarray((array.astype(np.float64) + shift).astype(array.dtype))


def multiply_channels(array: Array, gain: Array, axis: int | None) -> Array:
    """Return a weight with each channel along an axis multiplied, in its own type.

    >>> multiply_channels(np.ones((2, 3), np.float32), np.array([1.0, 0.5]), 0)[:, 0]
    array([1. , 0.5], dtype=float32)
    """
    wide = array.astype(np.float64) * along_axis(gain, axis, array.ndim)
    return np.asarray(wide.astype(array.dtype))


def _inside_fractions(layer: BiasedLayer, kernel: tuple[int, ...]) -> list[F64]:
    """Return how often each place of the kernel counts, axis by axis."""
    node, rank = layer.node, len(kernel)
    strides = node.attributes.get_ints("strides", [1] * rank)
    dilations = node.attributes.get_ints("dilations", [1] * rank)
    lengths, outputs = _lengths(layer.source, rank), _lengths(node.outputs[0], rank)
    fractions = []
    axes = zip(lengths, outputs, kernel, strides, dilations, strict=True)
    for axis, (length, left, k, s, d) in enumerate(axes):
        if node.op_type == "Conv":
            pads = window_pads(node, axis, length, k, s, d)
            fractions.append(window_coverage(length, k, stride=s, dilation=d, pads=pads))
        else:
            cut = _cut_before(node, axis, length, k, s, d)
            fractions.append(
                transposed_window_coverage(length, k, stride=s, dilation=d, begin=cut, outputs=left)
            )
    return fractions


def _lengths(value: ir.Value, rank: int) -> list[int | None]:
    """Return the sizes of the axes behind batch and channels, where they are known."""
    if value.shape is None or len(value.shape) != rank + 2:
        return [None] * rank
    return [size if isinstance(size, int) else None for size in value.shape[2:]]


def window_pads(
    node: ir.Node, axis: int, length: int | None, kernel: int, stride: int, dilation: int
) -> tuple[int, int]:
    """Return how much a convolution pads an axis before and behind.

    >>> window_pads(ir.node("Conv", [], {"pads": [1, 0, 2, 0]}), 0, 8, 3, 1, 1)
    (1, 2)
    """
    automatic = node.attributes.get_string("auto_pad", "NOTSET")
    if automatic == "NOTSET":
        pads = node.attributes.get_ints("pads", [])
        return (pads[axis], pads[axis + len(pads) // 2]) if pads else (0, 0)
    if automatic == "VALID" or length is None:
        return 0, 0
    windows = -(-length // stride)
    total = max((windows - 1) * stride + (kernel - 1) * dilation + 1 - length, 0)
    before = total // 2 if automatic == "SAME_UPPER" else total - total // 2
    return before, total - before


def _cut_before(
    node: ir.Node, axis: int, length: int | None, kernel: int, stride: int, dilation: int
) -> int:
    """Return how many outputs a transposed convolution drops before its first."""
    given = node.attributes.get_ints("output_shape", [])
    automatic = node.attributes.get_string("auto_pad", "NOTSET")
    if automatic == "NOTSET" and not given:
        pads = node.attributes.get_ints("pads", [])
        return pads[axis] if pads else 0
    if automatic == "VALID" or length is None:
        return 0
    extra = node.attributes.get_ints("output_padding", [])
    wanted = given[axis] if given else length * stride
    full = stride * (length - 1) + (extra[axis] if extra else 0) + (kernel - 1) * dilation + 1
    total = max(full - wanted, 0)
    return total // 2 if automatic == "SAME_UPPER" else total - total // 2
