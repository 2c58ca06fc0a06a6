"""What a node's neighbours compute as well, and where images lie in blocks of channels."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from bitwright.decide.ops import CONVOLUTIONS, OPERATORS
from bitwright.decide.placement.convolutions import BLOCK, float_convolution
from bitwright.decide.placement.shapes import Shape, is_stored, shape_of
from bitwright.graph.constants import is_private, maker_of

# ConvActivationFusion and GemmActivationFusion of the runtime.
_OF_CONV = frozenset("Relu Clip Sigmoid Tanh LeakyRelu HardSigmoid HardSwish".split())
_OF_GEMM = frozenset("Relu LeakyRelu Sigmoid Tanh".split())
_CLIPS = frozenset({"Relu", "Clip"})
PASSES = _OF_CONV - _CLIPS
"""Activations that their host computes in a pass of its own."""
_SUMS = frozenset({"Add", "Sum"})
_GATES = frozenset({"Sigmoid", "HardSigmoid"})
_POOLS = frozenset("MaxPool AveragePool GlobalAveragePool GlobalMaxPool".split())
_ALL_IN_BLOCKS = _SUMS | {"Mul", "Concat"}
_KEEPS_BLOCKS = _OF_CONV | {"QuickGelu", "Gelu", "Erf"}
# Which pixels a Resize may take that is computed on blocks.
_NEAREST = frozenset({"asymmetric"})
_LINEAR = frozenset({"asymmetric", "align_corners", "half_pixel"})
_STEPS_TO_CONVOLUTION = 8
"""How many nodes are looked through for a Conv in front of a tensor."""


def float_host(node: ir.Node) -> ir.Node | None:
    """Return the node whose float kernel computes this one as well, as a Conv does its Relu.

    A residual Add is computed by the Conv in front of it where both its inputs are in blocks, and
    the Relu behind that Add by the same kernel: its host is the Add. The host of the Mul in
    x * Sigmoid(x) is the Sigmoid.
    """
    if node.op_type in _SUMS:
        return _conv_that_adds(node)
    if node.op_type == "Mul":
        return _gate_of(node)
    host = _sole_producer(node.inputs[0]) if node.op_type in _OF_CONV else None
    if host is None or not all(map(is_stored, node.inputs[1:])):
        return None
    if host.op_type == "Conv":
        # HardSwish is a function of two nodes, which are not put together at the model's end.
        ends = node.op_type == "HardSwish" and node.outputs[0].is_graph_output()
        return None if ends else host
    if host.op_type == "Gemm":
        return host if node.op_type in _OF_GEMM else None
    adds = host.op_type in _SUMS and node.op_type == "Relu"
    return host if adds and _conv_that_adds(host) is not None else None


def integer_host(node: ir.Node) -> ir.Node | None:
    """Return the node whose quantizer clips as this Relu or Clip does, where both are integers."""
    own = OPERATORS.get(node.op_type)
    if own is None or own.bounds is None or own.bounds(node) is None:
        return None
    host = _sole_producer(node.inputs[0])
    rule = None if host is None else OPERATORS.get(host.op_type)
    if host is None or rule is None or rule.integer_op is None or host.op_type in _CLIPS:
        return None
    return None if rule.keeps_scale_of(host) else host


def in_blocks(value: ir.Value | None) -> bool:
    """Return whether the float model has a value in blocks of channels."""
    node = maker_of(value)
    if node is None:
        return False
    op = node.op_type
    if op == "Conv":
        work = float_convolution(node)
        return work is not None and not work.kernel.startswith("conv_columns")
    if op in _POOLS:
        return len(node.outputs) == 1 and _fills_blocks(shape_of(node.inputs[0]))
    gate = _gate_of(node) if op == "Mul" else None
    if gate is not None:
        return in_blocks(gate.inputs[0])
    if op in _ALL_IN_BLOCKS:
        shapes = [shape_of(source) for source in node.inputs]
        fits = all(map(_fills_blocks, shapes)) if op == "Concat" else len(set(shapes)) == 1
        return fits and all(map(in_blocks, node.inputs))
    if op == "Resize":
        return resizes_blocks(node)
    return op in _KEEPS_BLOCKS and in_blocks(node.inputs[0])


def resizes_blocks(node: ir.Node) -> bool:
    """Return whether a Resize runs on blocks of channels: by whole factors, in plain ways."""
    small, large = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    if small is None or large is None or len(small) != 4 or small[:2] != large[:2]:
        return False
    nearest = node.attributes.get_string("mode", "nearest") == "nearest"
    pixels = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    if nearest and node.attributes.get_string("nearest_mode", "round_prefer_floor") != "floor":
        return False
    whole = all(after % before == 0 for before, after in zip(small[2:], large[2:], strict=True))
    return whole and pixels in (_NEAREST if nearest else _LINEAR) and in_blocks(node.inputs[0])


def is_image(value: ir.Value) -> bool:
    """Return whether a tensor lies between convolutions, whose kernels have layouts of their own.

    >>> is_image(ir.val("x"))
    False
    """
    spatial = CONVOLUTIONS | _POOLS
    read = any(use.node.op_type in spatial for use in value.uses())
    return read or _comes_from(value, spatial, through=("Concat", "Resize"))


def stands_by_convolution(node: ir.Node) -> bool:
    """Return whether a Conv reads what a node gives, or gives what it reads: images by channels.

    Pools, sums and the like between them take the layout of the Conv.
    """
    readers = [use.node.op_type for output in node.outputs for use in output.uses()]
    through = ("Concat", "Resize", *_POOLS)
    return "Conv" in readers or _comes_from(node.inputs[0], {"Conv"}, through)


def _comes_from(value: ir.Value | None, ends: Collection[str], through: Collection[str]) -> bool:
    """Return whether one of these operators gives a value, with no others behind it."""
    for _ in range(_STEPS_TO_CONVOLUTION):
        node = maker_of(value)
        if node is None or node.op_type in ends:
            return node is not None
        rule = OPERATORS.get(node.op_type)
        if not ((rule is not None and rule.elementwise) or node.op_type in through):
            return False
        value = node.inputs[0] if node.inputs else None
    return False


def _sole_producer(value: ir.Value | None) -> ir.Node | None:
    """Return the node that makes a value for one reader alone."""
    return None if value is None or not is_private(value) else value.producer()


def _gate_of(node: ir.Node) -> ir.Node | None:
    """Return the (Hard)Sigmoid s of x * s(x): both run as one QuickGelu or HardSwish."""
    if len(node.inputs) != 2:
        return None
    for value, other in (node.inputs, node.inputs[::-1]):
        gate = _sole_producer(value)
        if gate is not None and gate.op_type in _GATES and gate.inputs[0] is other:
            return gate
    return None


def _conv_that_adds(node: ir.Node) -> ir.Node | None:
    """Return the Conv that adds up as well: one without an activation, both inputs in blocks."""
    if len(node.inputs) != 2 or not all(map(in_blocks, node.inputs)):
        return None
    if shape_of(node.inputs[0]) != shape_of(node.inputs[1]):
        return None
    producers = map(_sole_producer, node.inputs)
    return next((host for host in producers if host is not None and host.op_type == "Conv"), None)


def _fills_blocks(shape: Shape | None) -> bool:
    return shape is not None and len(shape) == 4 and shape[1] % BLOCK == 0
