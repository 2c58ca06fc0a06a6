"""Which kernel ONNX Runtime runs a node with, in float and in integers, and how much work that is.

The kernels are those of its CPU provider on x86; `convolutions` has the conditions of shapes, and
`hosts` what a neighbour's kernel computes as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from bitwright.decide.ops import MATRIX_PRODUCTS, OPERATORS
from bitwright.decide.ops.channel_ties import ChannelTies
from bitwright.decide.ops.integer_kernels import averages_whole_windows
from bitwright.decide.placement.convolutions import (
    float_convolution,
    integer_convolution,
    transposed_convolution,
)
from bitwright.decide.placement.hosts import (
    PASSES,
    in_blocks,
    integer_host,
    is_image,
    resizes_blocks,
    stands_by_convolution,
)
from bitwright.decide.placement.shapes import Sizes, count_elements, is_stored, shape_of, sizes_of
from bitwright.graph.constants import constant_of, input_at, is_constant
from bitwright.targets.costs import Work

KERNELS = tuple(
    # Float
    "conv_blocked conv_pointwise conv_depthwise conv_grouped conv_few_channels conv_columns "
    "conv_columns_grouped conv_transpose gemm gemm_row matmul recurrent "
    "pool_blocked pool pool_average_19 global_pool_blocked global_pool "
    "add multiply_channels activation_cheap activation_dear gelu normalization "
    "softmax softmax_axis reduce_last reduce transpose copy gather "
    "resize_nearest resize_nearest_blocked resize_linear resize_linear_blocked "
    # Integers
    "qconv qconv_pointwise qconv_few_channels qconv_depthwise qconv_depthwise_plain qconv_columns "
    "qconv_columns_grouped qgemm qgemm_row qmatmul "
    "qpool_max qpool_max_plain qpool_average qpool_global "
    "qadd qmul qtable qhard_sigmoid qhard_swish qsoftmax qsoftmax_axis qconcat "
    "byte_transpose byte_copy byte_gather byte_resize_nearest "
    # Borders of a tensor, what only names its input anew, and what a neighbour computes
    "quantize quantize_image dequantize dequantize_image view fused".split()
)
"""Every kernel that a node may be answered with; each is a row of every cost table."""

_FUSED = Work("fused")
_DILATED_AVERAGES = 19
"""The opset from which an average may have dilations, and has a kernel that is slow without them,
too."""


def float_work(node: ir.Node) -> Work | None:
    """Return the kernel of a node in the prepared float model; None: shapes are not known.

    A node that has a `float_host` takes this where the host is not float, else its `hosted_work`.

    >>> x, y = (ir.val(name, shape=[1, 64, 28, 28]) for name in "xy")
    >>> float_work(ir.node("Sigmoid", [x], outputs=[y])).kernel
    'activation_dear'
    """
    op = node.op_type
    if op in _FLOAT_PRODUCTS:
        return _FLOAT_PRODUCTS[op](node)
    sizes = sizes_of(node)
    if sizes is None:
        return None
    if op in ("MaxPool", "AveragePool"):
        sizes = _windows(node, sizes)
    kernel = _choose(_FLOAT_KERNELS.get(op), node)
    if kernel == "multiply_channels":
        image = max(node.inputs, key=lambda value: count_elements([shape_of(value)]))
        # No kernel scales the channels of blocks: they are taken apart, and put together again.
        sizes = Sizes(sizes.read + 2 * sizes.written * in_blocks(image), sizes.written)
    if kernel is None:
        rule = OPERATORS.get(op)
        cheap = rule is not None and rule.elementwise == "unary"
        kernel = "activation_cheap" if cheap else "add"
    return Work(kernel, 0, *sizes)


def hosted_work(node: ir.Node) -> Work | None:
    """Return what a node adds to its `float_host`, where both are float.

    Bounds, sums and gates cost nothing there. All other activations are a pass of their own over
    what the kernel has just written (MlasActivation, core/mlas/lib/activate.cpp).

    >>> x, y, z = (ir.val(name, shape=[1, 64, 28, 28]) for name in "xyz")
    >>> hosted_work(ir.node("Relu", [x], outputs=[y])).kernel
    'fused'
    >>> hosted_work(ir.node("HardSwish", [x], outputs=[z])).calls
    0
    """
    work = float_work(node) if node.op_type in PASSES else _FUSED
    return None if work is None else work._replace(calls=0)


def integer_work(node: ir.Node, ties: ChannelTies | None = None) -> Work | None:
    """Return the cheapest exact integer kernel of a node; None: it can only run in float.

    `ties` are the model's `channel_ties`: without them no channels are padded.

    >>> x, y, z = (ir.val(name, shape=[1, 64, 28, 28]) for name in "xyz")
    >>> integer_work(ir.node("Add", [x, x], outputs=[y])).kernel
    'qadd'
    >>> integer_work(ir.node("Erf", [x], outputs=[z])) is None
    True
    """
    op = node.op_type
    if op in ("Relu", "Clip"):
        return None if integer_host(node) is None else _FUSED
    if op in _INTEGER_PRODUCTS:
        return _INTEGER_PRODUCTS[op](node, ties)
    kernel, sizes = _choose(_INTEGER_KERNELS.get(op), node), sizes_of(node)
    if kernel is None or sizes is None:
        return None
    return Work(kernel, 0, *(_windows(node, sizes) if op == "MaxPool" else sizes))


def quantize_work(value: ir.Value) -> Work:
    """Return what it costs to take one tensor from float to integers."""
    return _border("quantize", value)


def dequantize_work(value: ir.Value) -> Work:
    """Return what it costs to take one tensor from integers to float."""
    return _border("dequantize", value)


def transpose_work(value: ir.Value | None) -> Work:
    """Return what it costs to transpose a float tensor."""
    count = count_elements([shape_of(value)])
    return Work("transpose", 0, count, count)


def _border(kernel: str, value: ir.Value) -> Work:
    count = count_elements([shape_of(value)])
    return Work(f"{kernel}_image" if is_image(value) else kernel, 0, count, count)


# Products of matrices, recurrent layers, averages as convolutions


def _matrix_product(node: ir.Node, prefix: str) -> Work | None:
    sizes, result = sizes_of(node), shape_of(node.outputs[0])
    source = shape_of(input_at(node, 0))
    if sizes is None or not result or not source:
        return None
    transposed = node.op_type == "Gemm" and node.attributes.get_int("transA", 0) == 1
    depth = source[0 if transposed else -1]
    macs = math.prod(result) * depth
    if not is_constant(node.inputs[1]):
        return Work(f"{prefix}matmul", macs, *sizes)
    # With few rows, reading the weights takes the time.
    read = sizes.read + depth * result[-1]
    is_row = math.prod(result[:-1]) == 1
    return Work(f"{prefix}gemm_row" if is_row else f"{prefix}gemm", macs, read, sizes.written)


def _recurrent(node: ir.Node) -> Work | None:
    source, sizes = shape_of(node.inputs[0]), sizes_of(node)
    weights = [shape_of(input_at(node, index)) for index in (1, 2)]
    if source is None or sizes is None or None in weights:
        return None
    return Work("recurrent", math.prod(source[:-1]) * count_elements(weights), *sizes)


def _average_pool(node: ir.Node, ties: ChannelTies | None) -> Work | None:
    """Return the work of an average: without pads it is a depthwise convolution of ones."""
    sizes = sizes_of(node)
    if sizes is None or averages_whole_windows(node):
        return integer_convolution(node, ties)
    return Work("qpool_average", 0, *_windows(node, sizes))


def _windows(node: ir.Node, sizes: Sizes) -> Sizes:
    """Count what all windows of a pool read."""
    window = math.prod(node.attributes.get_ints("kernel_shape", ()))
    return Sizes(sizes.written * window, sizes.written)


_FLOAT_PRODUCTS: dict[str, Callable[[ir.Node], Work | None]] = {
    "Conv": float_convolution,
    "ConvTranspose": transposed_convolution,
    **dict.fromkeys([*MATRIX_PRODUCTS, "FusedMatMul"], lambda node: _matrix_product(node, "")),
    **dict.fromkeys(["LSTM", "GRU", "RNN"], _recurrent),
}
_INTEGER_PRODUCTS: dict[str, Callable[[ir.Node, ChannelTies | None], Work | None]] = {
    "Conv": integer_convolution,
    "AveragePool": _average_pool,
    **dict.fromkeys(MATRIX_PRODUCTS, lambda node, _: _matrix_product(node, "q")),
}


# All other operators: a kernel's name, or what chooses it


def _by_axis(kernel: str, other: str) -> Callable[[ir.Node], str]:
    return lambda node: kernel if _is_last_axis(node) else other


def _by_blocks(kernel: str) -> Callable[[ir.Node], str]:
    return lambda node: f"{kernel}_blocked" if in_blocks(node.outputs[0]) else kernel


def _average(node: ir.Node) -> str:
    if in_blocks(node.outputs[0]):
        return "pool_blocked"
    opset = {} if node.graph is None else node.graph.opset_imports
    return "pool_average_19" if opset.get("", 0) >= _DILATED_AVERAGES else "pool"


def _resize(node: ir.Node) -> str:
    mode = node.attributes.get_string("mode", "nearest")
    kernel = "resize_nearest" if mode == "nearest" else "resize_linear"
    return f"{kernel}_blocked" if resizes_blocks(node) else kernel


def _byte_resize(node: ir.Node) -> str | None:
    nearest = node.attributes.get_string("mode", "nearest") == "nearest"
    return "byte_resize_nearest" if nearest else None


def _multiply(node: ir.Node) -> str:
    shapes = {shape_of(value) for value in node.inputs if not is_stored(value)}
    return "multiply_channels" if len(shapes) > 1 else "add"


def _mean(node: ir.Node) -> str | None:
    """A mean over both axes of an image is a GlobalAveragePool."""
    source, result = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    if source is None or len(source) != 4:
        return None
    return "qpool_global" if result in (source[:2], (*source[:2], 1, 1)) else None


def _is_last_axis(node: ir.Node) -> bool:
    """Return whether a node reduces or normalizes what lies side by side."""
    shape = shape_of(node.inputs[0])
    reduces = node.op_type.startswith("Reduce")
    stored = constant_of(input_at(node, 1)) if reduces else None
    axes = [] if stored is None else [int(axis) for axis in stored.reshape(-1)]
    usual = 0 if node.op_type.startswith("Arg") else -1
    axes = axes or [*node.attributes.get_ints("axes", ())]
    axes = axes or [node.attributes.get_int("axis", usual)]
    return shape is None or any(axis in (-1, len(shape) - 1) for axis in axes)


_Kernel = str | Callable[[ir.Node], "str | None"]


def _choose(row: _Kernel | None, node: ir.Node) -> str | None:
    return row(node) if callable(row) else row


def _rows(kernel: _Kernel, op_types: str) -> dict[str, _Kernel]:
    return dict.fromkeys(op_types.split(), kernel)


_FLOAT_KERNELS: dict[str, _Kernel] = {
    **_rows("view", "Reshape Squeeze Unsqueeze Flatten Identity Dropout Shape"),
    **_rows("fused", "Constant"),
    **_rows("copy", "Concat Slice Split Pad Expand Tile DepthToSpace SpaceToDepth Cast Where"),
    **_rows("gather", "Gather GatherElements GatherND ScatterND ScatterElements TopK"),
    **_rows("transpose", "Transpose"),
    **_rows("activation_cheap", "Relu Clip LeakyRelu HardSigmoid PRelu Neg Abs"),
    **_rows("activation_dear", "Sigmoid Tanh HardSwish Exp Log Pow Sqrt Softplus Mish Elu Selu"),
    **_rows("activation_dear", "Celu Sin Cos Swish QuickGelu Reciprocal Div"),
    **_rows("gelu", "Gelu FastGelu BiasGelu Erf"),
    **_rows(
        "normalization",
        "LayerNormalization SkipLayerNormalization SimplifiedLayerNormalization RMSNormalization "
        "SkipSimplifiedLayerNormalization InstanceNormalization GroupNormalization "
        "BatchNormalization LRN LpNormalization MeanVarianceNormalization",
    ),
    **_rows(_by_axis("softmax", "softmax_axis"), "Softmax LogSoftmax"),
    **_rows(_by_axis("reduce_last", "reduce"), "ArgMax ArgMin CumSum ReduceMax ReduceMean"),
    **_rows(_by_axis("reduce_last", "reduce"), "ReduceMin ReduceProd ReduceSum ReduceL2"),
    **_rows(_by_blocks("pool"), "MaxPool LpPool"),
    **_rows(_average, "AveragePool"),
    **_rows(_by_blocks("global_pool"), "GlobalAveragePool GlobalMaxPool"),
    **_rows(_resize, "Resize Upsample"),
    **_rows(_multiply, "Mul"),
}

_INTEGER_KERNELS: dict[str, _Kernel] = {
    **_rows("qadd", "Add"),
    **_rows("qmul", "Mul"),
    **_rows("qtable", "Sigmoid LeakyRelu"),
    **_rows("qhard_sigmoid", "HardSigmoid"),
    **_rows("qhard_swish", "HardSwish"),
    **_rows("qconcat", "Concat"),
    **_rows(_by_axis("qsoftmax", "qsoftmax_axis"), "Softmax"),
    **_rows("qpool_global", "GlobalAveragePool"),
    **_rows(_mean, "ReduceMean"),
    **_rows(lambda n: "qpool_max" if stands_by_convolution(n) else "qpool_max_plain", "MaxPool"),
    **_rows("view", "Reshape Squeeze Unsqueeze Flatten Identity"),
    **_rows("byte_transpose", "Transpose"),
    **_rows("byte_copy", "Slice Split Pad DepthToSpace SpaceToDepth"),
    **_rows("byte_gather", "Gather GatherElements"),
    **_rows(_byte_resize, "Resize"),
}
