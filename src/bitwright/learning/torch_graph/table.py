"""Every operator that can be computed here, by name; arithmetic and norms are written here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional

from bitwright.graph import is_training_norm
from bitwright.learning.torch_graph import movement as move
from bitwright.learning.torch_graph import resize, windows
from bitwright.learning.torch_graph.attributes import Attributes
from bitwright.learning.torch_graph.language_models import LANGUAGE_OPS, why_not_language_op

Op = Callable[..., Any]


def plain(function: Op) -> Op:
    """Return the op of a function of tensors, without attributes."""
    return lambda a, *tensors: function(*tensors)


def fold(function: Op, *, mean: bool = False) -> Op:
    """Return the op of any number of tensors, two at a time (Sum, Max, Min, Mean)."""

    def apply(a: Attributes, *tensors: Tensor) -> Tensor:
        result = tensors[0]
        for other in tensors[1:]:
            result = function(result, other)
        return result / len(tensors) if mean else result

    return apply


def power(a: Attributes, x: Tensor, y: Tensor) -> Tensor:
    """Pow, in the type of the base."""
    # A number as exponent has a derivative that is finite at 0; a tensor's has not.
    exponent = y.item() if y.numel() == 1 and y.ndim <= x.ndim else y
    return torch.pow(x, exponent).to(x.dtype)


def clip(a: Attributes, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Clip: bounds are inputs, or attributes before opset 11."""
    bounds = (
        a.value(name) if bound is None else bound.item()
        for name, bound in (("min", low), ("max", high))
    )
    least, most = bounds
    return x if least is None and most is None else torch.clamp(x, least, most)


def along_axis(function: Op) -> Op:
    """Return the op of a function along an axis; before opset 13 over all axes from it on."""

    def apply(a: Attributes, x: Tensor) -> Tensor:
        if a.opset >= 13:
            return function(x, a.integer("axis", -1))
        axis = a.integer("axis", 1) % x.ndim
        return function(x.flatten(axis), -1).reshape(x.shape)

    return apply


def reduce(function: Op) -> Op:
    """Return the op that reduces axes; `function` takes (tensor, axes, keepdim)."""

    def apply(a: Attributes, x: Tensor, axes: Tensor | None = None) -> Tensor:
        given: Sequence[int] = a.integers("axes") if axes is None else axes.tolist()
        if not given and a.integer("noop_with_empty_axes"):
            return x
        return function(x, tuple(given) or tuple(range(x.ndim)), bool(a.integer("keepdims", 1)))

    return apply


# Products and normalizations ------------------------------------------------------------------


def gemm(a: Attributes, x: Tensor, w: Tensor, c: Tensor | None = None) -> Tensor:
    """Return what Gemm makes."""
    x = x.T if a.integer("transA") else x
    w = w.T if a.integer("transB") else w
    y = a.number("alpha", 1.0) * (x @ w)
    return y if c is None else y + a.number("beta", 1.0) * c


def _normalized(a: Attributes, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    centred = x - x.mean(axes, keepdim=True)
    variance = centred.square().mean(axes, keepdim=True)
    return centred * torch.rsqrt(variance + a.number("epsilon", 1e-5))


def instance_norm(a: Attributes, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Return what InstanceNormalization makes."""
    axes = tuple(range(2, x.ndim))
    shape = (1, -1, *(1 for _ in axes))
    return _normalized(a, x, axes) * scale.reshape(shape) + bias.reshape(shape)


def layer_norm(a: Attributes, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """LayerNormalization; only its first output."""
    axis = a.integer("axis", -1) % x.ndim
    normal = _normalized(a, x, tuple(range(axis, x.ndim))) * scale
    return normal if bias is None else normal + bias


def lp_norm(a: Attributes, x: Tensor) -> Tensor:
    """Return what LpNormalization makes, with zeros where the norm is zero."""
    axis = a.integer("axis", -1)
    norm = torch.linalg.vector_norm(x, a.integer("p", 2), dim=axis, keepdim=True)
    return torch.where(norm == 0, torch.zeros_like(x), x / norm)


# The table ------------------------------------------------------------------------------------

OPS: dict[str, Op] = {
    # Windows
    "AveragePool": windows.average_pool,
    "Conv": windows.conv,
    "ConvTranspose": windows.conv_transpose,
    "GlobalAveragePool": plain(lambda x: x.mean(dim=tuple(range(2, x.ndim)), keepdim=True)),
    "GlobalMaxPool": plain(lambda x: x.amax(dim=tuple(range(2, x.ndim)), keepdim=True)),
    "MaxPool": windows.max_pool,
    # Products and normalizations
    "BatchNormalization": lambda a, x, scale, bias, mean, variance: functional.batch_norm(
        x, mean, variance, scale, bias, eps=a.number("epsilon", 1e-5)
    ),
    "Einsum": lambda a, *tensors: torch.einsum(a.text("equation"), *tensors),
    "Gemm": gemm,
    "GroupNormalization": lambda a, x, scale, bias: functional.group_norm(
        x, a.integer("num_groups"), scale, bias, a.number("epsilon", 1e-5)
    ),
    "InstanceNormalization": instance_norm,
    "LayerNormalization": layer_norm,
    "LpNormalization": lp_norm,
    "MatMul": plain(torch.matmul),
    # Activations
    "Clip": clip,
    "Elu": lambda a, x: functional.elu(x, a.number("alpha", 1.0)),
    "Erf": plain(torch.erf),
    "Gelu": lambda a, x: functional.gelu(x, approximate=a.text("approximate", "none")),
    "HardSigmoid": lambda a, x: torch.clamp(
        a.number("alpha", 0.2) * x + a.number("beta", 0.5), 0, 1
    ),
    "HardSwish": plain(lambda x: x * torch.clamp(x / 6 + 0.5, 0, 1)),
    "LeakyRelu": lambda a, x: functional.leaky_relu(x, a.number("alpha", 0.01)),
    "LogSoftmax": along_axis(torch.log_softmax),
    "Mish": plain(functional.mish),
    "PRelu": plain(lambda x, slope: torch.where(x < 0, slope * x, x)),
    "Relu": plain(torch.relu),
    "Sigmoid": plain(torch.sigmoid),
    "Softmax": along_axis(torch.softmax),
    "Softplus": plain(functional.softplus),
    "Tanh": plain(torch.tanh),
    # Arithmetic
    "Abs": plain(torch.abs),
    "Add": plain(torch.add),
    "And": plain(torch.logical_and),
    "Cos": plain(torch.cos),
    # Integers are cut off towards zero.
    "Div": lambda a, x, y: torch.div(
        x, y, rounding_mode=None if x.is_floating_point() else "trunc"
    ),
    "Equal": plain(torch.eq),
    "Exp": plain(torch.exp),
    "Floor": plain(torch.floor),
    "Greater": plain(torch.gt),
    "GreaterOrEqual": plain(torch.ge),
    "Less": plain(torch.lt),
    "LessOrEqual": plain(torch.le),
    "Log": plain(torch.log),
    "Max": fold(torch.maximum),
    "Mean": fold(torch.add, mean=True),
    "Min": fold(torch.minimum),
    "Mul": plain(torch.mul),
    "Neg": plain(torch.neg),
    "Not": plain(torch.logical_not),
    "Or": plain(torch.logical_or),
    "Pow": power,
    "Reciprocal": plain(torch.reciprocal),
    "Sin": plain(torch.sin),
    "Sqrt": plain(torch.sqrt),
    "Sub": plain(torch.sub),
    "Sum": fold(torch.add),
    "Where": move.where,
    # Reductions
    "ReduceL2": reduce(lambda x, axes, keep: torch.linalg.vector_norm(x, 2, axes, keep)),
    "ReduceMax": reduce(torch.amax),
    "ReduceMean": reduce(torch.mean),
    "ReduceMin": reduce(torch.amin),
    "ReduceSum": reduce(torch.sum),
    "ReduceSumSquare": reduce(lambda x, axes, keep: torch.sum(x.square(), axes, keep)),
    # Movement and shapes
    "Cast": lambda a, x, *rest: x.to(move.torch_type(a.integer("to"))),
    "Concat": lambda a, *tensors: torch.cat(tensors, a.integer("axis")),
    "ConstantOfShape": move.constant_of_shape,
    "DepthToSpace": move.depth_to_space,
    "Dropout": lambda a, x, *rest: x,
    "Expand": lambda a, x, shape: x.expand(torch.broadcast_shapes(x.shape, tuple(shape.tolist()))),
    "Flatten": move.flatten,
    "Gather": move.gather,
    "Identity": lambda a, x: x,
    "Pad": move.pad,
    "Range": move.range_,
    "Reshape": move.reshape,
    "Resize": resize.resize,
    "Shape": move.shape_of,
    "Slice": move.slice_,
    "SpaceToDepth": move.space_to_depth,
    "Split": move.split,
    "Squeeze": move.squeeze,
    "Tile": lambda a, x, repeats: x.tile(repeats.tolist()),
    "Transpose": lambda a, x: x.permute(a.integers("perm") or list(reversed(range(x.ndim)))),
    "Unsqueeze": move.unsqueeze,
    "Upsample": lambda a, x, scales: resize.resize(a, x, None, scales),
}


def op_of(node: ir.Node) -> Op:
    """Return what computes a node that nothing speaks against."""
    return LANGUAGE_OPS[node.op_type] if node.op_type in LANGUAGE_OPS else OPS[node.op_type]


def why_not(node: ir.Node, opset: int) -> str | None:
    """Return why a node cannot be computed here, or None if it can."""
    if node.op_type in LANGUAGE_OPS:
        return why_not_language_op(node)
    if node.domain not in ("", "ai.onnx") or node.op_type not in OPS:
        return f"there is no {node.op_type} in torch here"
    bodies = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    if any(attribute.type in bodies for attribute in node.attributes.values()):
        return f"{node.op_type} has a body"
    more = () if node.op_type == "Split" else node.outputs[1:]
    if any(value.uses() or value.is_graph_output() for value in more):
        return f"a second output of {node.op_type} is read"
    refusal = _REFUSALS.get(node.op_type)
    return refusal(node, opset) if refusal is not None else None


_REFUSALS: dict[str, Callable[[ir.Node, int], str | None]] = {
    "BatchNormalization": lambda node, opset: (
        "it is in training mode" if is_training_norm(node, opset) else None
    ),
    "GroupNormalization": lambda node, opset: (
        "its scales are those of groups (before opset 21)" if opset < 21 else None
    ),
    "Resize": lambda node, opset: resize.refuse_resize(node),
    "Upsample": lambda node, opset: resize.refuse_resize(node),
}
