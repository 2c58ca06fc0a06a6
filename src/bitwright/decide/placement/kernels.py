"""Which kernel ONNX Runtime runs a node with, in float and in integers, and how much work that is.

The conditions are those of its CPU kernels on x86. In float, NchwcTransformer (core/optimizer/
nchwc_transformer.cc) stores images in blocks of 16 channels: a Conv of fewer input channels reads
them as they are, one of more wants a multiple of 4, groups a multiple of 16 each (or one channel
each: depthwise), pools a multiple of 16. All else gathers its windows into columns (im2col) for a
product of matrices. Integer convolutions have a fast kernel by MlasConvSymPackWSize
(core/mlas/lib/convsym.cpp), else columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import onnx_ir as ir

from bitwright.decide.ops import CONVOLUTIONS, MATRIX_PRODUCTS, OPERATORS
from bitwright.graph.constants import constant_of, input_at, is_constant, is_private
from bitwright.targets.costs import Work

__all__ = [
    "KERNELS",
    "Work",
    "dequantize_work",
    "float_host",
    "float_work",
    "integer_host",
    "integer_work",
    "quantize_work",
    "shape_of",
]

_OPEN_SIZE = 128
"""Tokens, say, where a dimension beside the first is open."""
_BLOCK = 16

KERNELS = (
    # Float
    "conv_blocked conv_pointwise conv_depthwise conv_grouped conv_few_channels conv_columns "
    "conv_columns_grouped conv_transpose gemm gemm_row matmul recurrent "
    "pool_blocked pool global_pool_blocked global_pool "
    "add multiply_channels activation_cheap activation_dear gelu normalization "
    "softmax softmax_axis reduce_last reduce transpose copy gather "
    "upsample resize_nearest resize_linear "
    # Integers
    "qconv qconv_pointwise qconv_depthwise qconv_depthwise_plain qconv_columns "
    "qconv_columns_grouped qgemm qgemm_row qmatmul "
    "qpool_max qpool_average qpool_global "
    "qadd qmul qtable qhard_sigmoid qhard_swish qsoftmax qsoftmax_axis "
    "qconcat byte_transpose byte_copy byte_gather byte_resize_nearest byte_resize_linear "
    # Borders, and what costs nothing of its own
    "quantize quantize_image dequantize dequantize_image view fused"
).split()  # fmt: skip
"""Every kernel that a node may be answered with; each is a row of every cost table."""

# What a Conv computes as well, by ConvActivationFusion.
_FUSED_ACTIVATIONS = frozenset("Relu Clip Sigmoid Tanh LeakyRelu HardSigmoid HardSwish".split())
_VIEWS = frozenset("Reshape Squeeze Unsqueeze Flatten Identity Dropout Shape Constant".split())
_COPIES = frozenset(
    "Concat Slice Split Pad Expand Tile DepthToSpace SpaceToDepth Cast Where".split()
)
_GATHERS = frozenset("Gather GatherElements GatherND ScatterND ScatterElements TopK".split())
_DEAR = frozenset(
    "Sigmoid Tanh Erf Exp Log Pow Sqrt Softplus Mish Elu Selu Celu Sin Cos Swish QuickGelu".split()
)
_GELUS = frozenset("Gelu FastGelu BiasGelu".split())
_NORMS = frozenset(
    "LayerNormalization SkipLayerNormalization SimplifiedLayerNormalization RMSNormalization "
    "SkipSimplifiedLayerNormalization InstanceNormalization GroupNormalization LpNormalization "
    "BatchNormalization LRN MeanVarianceNormalization".split()
)
_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
_SOFTMAX = frozenset({"Softmax", "LogSoftmax"})
_POOLS = frozenset({"MaxPool", "AveragePool", "LpPool"})
_GLOBAL_POOLS = frozenset({"GlobalAveragePool", "GlobalMaxPool"})
_ALL_IN_BLOCKS = frozenset({"Add", "Sum", "Mul", "Concat"})
_KEEPS_BLOCKS = _FUSED_ACTIVATIONS | {"Resize", "Upsample", "QuickGelu", "Gelu", "Erf"}
_BYTE_MOVES = frozenset("Slice Split Pad DepthToSpace SpaceToDepth".split())


def shape_of(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return a value's shape, a batch of one where that is open, and 128 for other open sizes.

    >>> shape_of(ir.val("x", shape=["batch", "tokens", 384]))
    (1, 128, 384)
    """
    if value is None or value.shape is None:
        return None
    open_sizes = (1, *[_OPEN_SIZE] * len(value.shape))
    return tuple(
        size if isinstance(size, int) else instead
        for size, instead in zip(value.shape, open_sizes, strict=False)
    )


def float_work(node: ir.Node) -> Work | None:
    """Return the kernel of a node in the prepared float model; None: shapes are not known.

    >>> x, y = (ir.val(name, shape=[1, 64, 28, 28]) for name in "xy")
    >>> float_work(ir.node("Sigmoid", [x], outputs=[y])).kernel
    'activation_dear'
    """
    if float_host(node) is not None:
        return Work("fused")
    sizes = _sizes(node)
    if sizes is None:
        return None
    op = node.op_type
    if op in CONVOLUTIONS:
        return _convolution(node, _FLOAT_CONVOLUTIONS)
    if op in MATRIX_PRODUCTS or op == "FusedMatMul":
        return _matrix_product(node, "")
    if op in _RECURRENT:
        return _recurrent(node)
    return Work(_float_kernel(node), 0, sizes.read, sizes.written)


def integer_work(node: ir.Node) -> Work | None:
    """Return the cheapest exact integer kernel of a node; None: it can only run in float.

    >>> x, y, z = (ir.val(name, shape=[1, 64, 28, 28]) for name in "xyz")
    >>> integer_work(ir.node("Add", [x, x], outputs=[y]))
    Work(kernel='qadd', macs=0, read=100352, written=50176)
    >>> integer_work(ir.node("Erf", [x], outputs=[z])) is None
    True
    """
    sizes = _sizes(node)
    if sizes is None:
        return None
    op = node.op_type
    if op in ("Relu", "Clip"):
        return None if integer_host(node) is None else Work("fused")
    if op == "Conv":
        return _convolution(node, _INTEGER_CONVOLUTIONS)
    if op in MATRIX_PRODUCTS:
        return _matrix_product(node, "q")
    if op == "AveragePool":
        return _average_pool(node, sizes)
    kernel = _integer_kernel(node)
    return None if kernel is None else Work(kernel, 0, sizes.read, sizes.written)


def float_host(node: ir.Node) -> ir.Node | None:
    """Return the node whose float kernel computes this one as well, as a Conv does its Relu.

    A residual Add is computed by the Conv in front of it where both its inputs are in blocks, and
    the Relu behind that Add by the same kernel: its host is the Add.
    """
    if node.op_type in ("Add", "Sum"):
        return _host_of_add(node)
    if node.op_type == "Mul":
        return _sigmoid_of_swish(node)
    if node.op_type not in _FUSED_ACTIVATIONS:
        return None
    if node.op_type == "Clip" and not all(map(_is_given, node.inputs[1:])):
        return None
    host = _sole_producer(node.inputs[0])
    if host is None:
        return None
    if host.op_type == "Conv":
        # HardSwish is a function of two nodes, which are not put together at the model's end.
        ends = node.op_type == "HardSwish" and node.outputs[0].is_graph_output()
        return None if ends else host
    if host.op_type in ("Add", "Sum") and node.op_type == "Relu":
        return host if _host_of_add(host) is not None else None
    fits_gemm = node.op_type in ("Relu", "LeakyRelu", "Sigmoid", "Tanh")
    return host if host.op_type == "Gemm" and fits_gemm else None


def integer_host(node: ir.Node) -> ir.Node | None:
    """Return the node whose quantizer clips as this Relu or Clip does, where both are integers."""
    rule = OPERATORS.get(node.op_type)
    if rule is None or rule.bounds is None or rule.bounds(node) is None:
        return None
    host = _sole_producer(node.inputs[0])
    if host is None or host.op_type in ("Relu", "Clip"):
        return None
    return host if _has_quantizer(host) else None


def quantize_work(value: ir.Value) -> Work:
    """Return what it costs to take one tensor from float to integers."""
    return _border("quantize", value)


def dequantize_work(value: ir.Value) -> Work:
    """Return what it costs to take one tensor from integers to float."""
    return _border("dequantize", value)


class _Sizes(NamedTuple):
    read: int
    written: int


def _sizes(node: ir.Node) -> _Sizes | None:
    """Return how many computed elements a node reads and writes; None: not known."""
    read = [shape_of(value) for value in node.inputs if value is not None and not _is_given(value)]
    written = [shape_of(value) for value in node.outputs if value.name or value.shape]
    shapes = [*read, *written]
    if any(shape is None for shape in shapes) or not written:
        return None
    return _Sizes(_count(read), _count(written))


def _count(shapes: Sequence[tuple[int, ...] | None]) -> int:
    return sum(math.prod(shape) for shape in shapes if shape is not None)


def _is_given(value: ir.Value | None) -> bool:
    return value is None or is_constant(value)


def _border(kernel: str, value: ir.Value) -> Work:
    count = math.prod(shape_of(value) or ())
    kernel = f"{kernel}_image" if _is_image(value) else kernel
    return Work(kernel, 0, count, count)


# Convolutions


class _Convolution(NamedTuple):
    """The sizes of a Conv, as the conditions of kernels ask for them."""

    inputs: int
    """Channels read by one group."""
    outputs: int
    """Channels written by all groups."""
    group: int
    window: int
    """Weights for one channel of input: 9 for 3x3."""
    axes: int
    """Dimensions of the image: 2."""
    places: int
    """Pixels written, of all images."""
    slides: bool
    """Whether a window is wider than one pixel, or has pads beside it."""

    @property
    def depthwise(self) -> bool:
        return self.group > 1 and self.inputs == 1 and self.outputs == self.group


def _of_conv(node: ir.Node) -> tuple[_Convolution, _Sizes] | None:
    weight, result, sizes = shape_of(node.inputs[1]), shape_of(node.outputs[0]), _sizes(node)
    if weight is None or result is None or sizes is None or len(weight) < 3:
        return None
    window = math.prod(weight[2:])
    pads = node.attributes.get_ints("pads", ())
    return _Convolution(
        inputs=weight[1],
        outputs=weight[0],
        group=node.attributes.get_int("group", 1),
        window=window,
        axes=len(weight) - 2,
        places=math.prod(result) // max(result[1], 1),
        slides=window > 1 or any(pads),
    ), sizes


def _up(count: int, step: int) -> int:
    return -(-count // step) * step


# (kernel, whether it takes a Conv, multiply-adds for a pixel), the first that fits.
_Row = tuple[str, Callable[[_Convolution], bool], Callable[[_Convolution], int]]


def _blocks(conv: _Convolution) -> int:
    return _up(conv.outputs, _BLOCK) * conv.inputs * conv.window


def _plain(conv: _Convolution) -> int:
    return conv.outputs * conv.inputs * conv.window


def _dense(conv: _Convolution) -> int:
    """Count a convolution with the zeros between its groups written out."""
    return _up(conv.outputs, _BLOCK) * _up(conv.inputs * conv.group, 4) * conv.window


_FLOAT_CONVOLUTIONS: tuple[_Row, ...] = (
    ("conv_depthwise", lambda c: c.axes == 2 and c.depthwise and c.outputs % 4 == 0, _blocks),
    (
        "conv_grouped",
        lambda c: (
            c.axes == 2
            and c.group > 1
            and c.inputs % _BLOCK == 0
            and c.outputs // c.group % _BLOCK == 0
        ),
        _blocks,
    ),
    ("conv_columns_grouped", lambda c: c.group > 1, _plain),
    ("conv_few_channels", lambda c: c.axes == 2 and c.inputs < _BLOCK, _blocks),
    ("conv_pointwise", lambda c: c.axes == 2 and c.inputs % 4 == 0 and not c.slides, _blocks),
    ("conv_blocked", lambda c: c.axes == 2 and c.inputs % 4 == 0, _blocks),
    ("conv_columns", lambda c: True, _plain),
)


def _is_faster_dense(conv: _Convolution) -> bool:
    # A kernel for all channels takes `group` times the multiply-adds, but none of the columns.
    channels = conv.inputs * conv.group
    return (conv.inputs <= 8 and channels <= 128) or (conv.inputs <= 16 and channels <= 64)


_INTEGER_CONVOLUTIONS: tuple[_Row, ...] = (
    ("qconv_depthwise", lambda c: c.depthwise and c.group % 16 == 0, _blocks),
    ("qconv_depthwise_plain", lambda c: c.depthwise, _plain),
    ("qconv", lambda c: c.group > 1 and _is_faster_dense(c) and c.outputs % 4 == 0, _dense),
    ("qconv_columns_grouped", lambda c: c.group > 1, _plain),
    ("qconv_columns", lambda c: c.outputs < 16 or c.outputs % 4 > 0 or c.inputs % 4 > 0, _plain),
    ("qconv_pointwise", lambda c: not c.slides, _dense),
    ("qconv", lambda c: True, _dense),
)


def _convolution(node: ir.Node, rows: tuple[_Row, ...]) -> Work | None:
    found = _of_conv(node)
    if found is None:
        return None
    conv, sizes = found
    if node.op_type == "ConvTranspose":
        source = shape_of(node.inputs[0]) or ()
        macs = math.prod(source) * conv.inputs * conv.window
        return Work("conv_transpose", macs, sizes.read, sizes.written)
    kernel, count = next((row[0], row[2]) for row in rows if row[1](conv))
    return Work(kernel, conv.places * count(conv), sizes.read, sizes.written)


# Products of matrices, recurrent layers


def _matrix_product(node: ir.Node, prefix: str) -> Work | None:
    """Return a product's work; of a product that a weight is read for once (a row), in elements."""
    sizes, result = _sizes(node), shape_of(node.outputs[0])
    source, weight = shape_of(input_at(node, 0)), shape_of(input_at(node, 1))
    if sizes is None or not result or not source or not weight:
        return None
    turned = node.op_type == "Gemm" and node.attributes.get_int("transA", 0) == 1
    depth = source[0] if turned else source[-1]
    macs = math.prod(result) * depth
    if not is_constant(node.inputs[1]):
        return Work(f"{prefix}matmul", macs, sizes.read, sizes.written)
    rows = math.prod(result) // max(result[-1], 1)
    if rows == 1:
        return Work(f"{prefix}gemm_row", macs, sizes.read, sizes.written)
    return Work(f"{prefix}gemm", macs, sizes.read, sizes.written)


def _recurrent(node: ir.Node) -> Work | None:
    source, sizes = shape_of(node.inputs[0]), _sizes(node)
    weights = [shape_of(input_at(node, index)) for index in (1, 2)]
    if source is None or sizes is None or None in weights:
        return None
    macs = math.prod(source[:-1]) * _count(weights)
    return Work("recurrent", macs, sizes.read, sizes.written)


# All other operators


def _float_kernel(node: ir.Node) -> str:
    op = node.op_type
    if op in _POOLS or op in _GLOBAL_POOLS:
        kind = "pool" if op in _POOLS else "global_pool"
        return f"{kind}_blocked" if _takes_blocks(node) else kind
    if op in _SOFTMAX:
        return "softmax" if _is_last_axis(node) else "softmax_axis"
    if op == "Mul" and _is_broadcast(node):
        return "multiply_channels"
    if op.startswith("Reduce") or op in ("ArgMax", "ArgMin", "CumSum"):
        return "reduce_last" if _is_last_axis(node) else "reduce"
    if op in ("Resize", "Upsample"):
        return _resize(node)
    for kernel, ops in _FLOAT_KERNELS.items():
        if op in ops:
            return kernel
    rule = OPERATORS.get(op)
    return "activation_cheap" if rule is not None and rule.elementwise == "unary" else "add"


_FLOAT_KERNELS = {
    "view": _VIEWS,
    "copy": _COPIES,
    "gather": _GATHERS,
    "transpose": {"Transpose"},
    "activation_dear": _DEAR,
    "activation_cheap": {"Relu", "Clip", "LeakyRelu", "HardSigmoid", "PRelu", "Neg", "Abs"},
    "gelu": _GELUS,
    "normalization": _NORMS,
}


def _integer_kernel(node: ir.Node) -> str | None:
    op = node.op_type
    if op in _SOFTMAX and op != "LogSoftmax":
        return "qsoftmax" if _is_last_axis(node) else "qsoftmax_axis"
    if op == "Resize":
        return f"byte_{_resize(node)}" if _resize(node) != "upsample" else "byte_resize_nearest"
    if op == "ReduceMean":
        return "qpool_global" if _is_global_mean(node) else None
    if op in _BYTE_MOVES:
        return "byte_copy"
    return _INTEGER_KERNELS.get(op)


_INTEGER_KERNELS = {
    "Add": "qadd",
    "Mul": "qmul",
    "Sigmoid": "qtable",
    "LeakyRelu": "qtable",
    "HardSigmoid": "qhard_sigmoid",
    "HardSwish": "qhard_swish",
    "MaxPool": "qpool_max",
    "GlobalAveragePool": "qpool_global",
    "Concat": "qconcat",
    "Transpose": "byte_transpose",
    "Gather": "byte_gather",
    "GatherElements": "byte_gather",
    **dict.fromkeys(["Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"], "view"),
}


def _average_pool(node: ir.Node, sizes: _Sizes) -> Work:
    """Return the work of an average: without pads it is a depthwise convolution of ones."""
    kernel = node.attributes.get_ints("kernel_shape", ())
    result = shape_of(node.outputs[0])
    if result is None or any(node.attributes.get_ints("pads", ())):
        return Work("qpool_average", 0, sizes.read, sizes.written)
    name = "qconv_depthwise" if result[1] % 16 == 0 else "qconv_depthwise_plain"
    return Work(name, math.prod(result) * math.prod(kernel), sizes.read, sizes.written)


def _resize(node: ir.Node) -> str:
    mode = node.attributes.get_string("mode", "nearest")
    if mode != "nearest":
        return "resize_linear"
    return "upsample" if _in_blocks(node.inputs[0]) else "resize_nearest"


def _is_last_axis(node: ir.Node) -> bool:
    """Return whether a node reduces or normalizes neighbours in memory."""
    shape = shape_of(node.inputs[0])
    axes = node.attributes.get_ints("axes", ())
    stored = constant_of(input_at(node, 1)) if node.op_type.startswith("Reduce") else None
    axes = axes if stored is None else tuple(int(axis) for axis in stored.reshape(-1))
    usual = 0 if node.op_type.startswith("Arg") else -1
    axes = axes or (node.attributes.get_int("axis", usual),)
    return shape is None or any(axis in (-1, len(shape) - 1) for axis in axes)


def _is_global_mean(node: ir.Node) -> bool:
    """Return whether a ReduceMean is a GlobalAveragePool: over both axes of an image, kept."""
    shape = shape_of(node.inputs[0])
    result = shape_of(node.outputs[0])
    if shape is None or result is None or len(shape) != 4:
        return False
    return result == (*shape[:2], 1, 1)


def _is_broadcast(node: ir.Node) -> bool:
    shapes = [shape_of(value) for value in node.inputs]
    return len(shapes) == 2 and shapes[0] != shapes[1] and not any(map(_is_given, node.inputs))


# What stands beside a node


def _sole_producer(value: ir.Value | None) -> ir.Node | None:
    """Return the node that makes a value for one reader alone."""
    return None if value is None or not is_private(value) else value.producer()


def _sigmoid_of_swish(node: ir.Node) -> ir.Node | None:
    """Return the (Hard)Sigmoid s of x * s(x): both run as one QuickGelu or HardSwish."""
    for value, other in (node.inputs, node.inputs[::-1]) if len(node.inputs) == 2 else ():
        gate = _sole_producer(value)
        is_gate = gate is not None and gate.op_type in ("Sigmoid", "HardSigmoid")
        if gate is not None and is_gate and gate.inputs[0] is other:
            return gate
    return None


def _host_of_add(node: ir.Node) -> ir.Node | None:
    """Return the Conv that adds up as well: one without an activation, both inputs in blocks."""
    if len(node.inputs) != 2 or not all(_in_blocks(value) for value in node.inputs):
        return None
    if shape_of(node.inputs[0]) != shape_of(node.inputs[1]):
        return None
    producers = (_sole_producer(value) for value in node.inputs)
    return next((host for host in producers if host is not None and host.op_type == "Conv"), None)


def _in_blocks(value: ir.Value | None) -> bool:
    """Return whether the float model has a value in blocks of channels."""
    node = None if value is None else value.producer()
    if node is None:
        return False
    op = node.op_type
    if op == "Conv":
        work = _convolution(node, _FLOAT_CONVOLUTIONS)
        return work is not None and not work.kernel.startswith("conv_columns")
    if op in _POOLS or op in _GLOBAL_POOLS:
        return _takes_blocks(node)
    gate = _sigmoid_of_swish(node) if op == "Mul" else None
    if gate is not None:
        return _in_blocks(gate.inputs[0])
    if op in _ALL_IN_BLOCKS:
        shapes = [shape_of(source) for source in node.inputs]
        fits = len(set(shapes)) == 1 if op != "Concat" else all(map(_fills_blocks, shapes))
        return fits and all(map(_in_blocks, node.inputs))
    return op in _KEEPS_BLOCKS and _in_blocks(node.inputs[0])


def _fills_blocks(shape: tuple[int, ...] | None) -> bool:
    return shape is not None and len(shape) == 4 and shape[1] % _BLOCK == 0


def _takes_blocks(node: ir.Node) -> bool:
    """Return whether a pool runs on blocks of channels."""
    return len(node.outputs) == 1 and _fills_blocks(shape_of(node.inputs[0]))


def _is_image(value: ir.Value) -> bool:
    """Return whether a tensor lies between convolutions, whose kernels want other layouts."""
    node = value.producer()
    for _ in range(8):
        if node is None:
            break
        if node.op_type in CONVOLUTIONS or node.op_type in _POOLS or node.op_type in _GLOBAL_POOLS:
            return True
        rule = OPERATORS.get(node.op_type)
        if rule is None or not (rule.elementwise or node.op_type in ("Concat", "Resize")):
            break
        node = None if not node.inputs or node.inputs[0] is None else node.inputs[0].producer()
    return any(
        use.node.op_type in CONVOLUTIONS or use.node.op_type in _POOLS for use in value.uses()
    )


def _has_quantizer(node: ir.Node) -> bool:
    """Return whether an integer kernel of this node writes what it computes with a new scale."""
    rule = OPERATORS.get(node.op_type)
    return rule is not None and integer_work(node) is not None and not rule.keeps_scale_of(node)
