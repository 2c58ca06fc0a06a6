"""Every operator that can be computed here, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch
from torch.nn import functional

from bitwright.learning.torch_graph import elementwise as each
from bitwright.learning.torch_graph import movement as move
from bitwright.learning.torch_graph import products, resize, windows

__all__ = ["OPS", "why_not"]

OPS: dict[str, Callable[..., Any]] = {
    # Windows
    "AveragePool": windows.average_pool,
    "Conv": windows.conv,
    "ConvTranspose": windows.conv_transpose,
    "GlobalAveragePool": windows.global_average_pool,
    "GlobalMaxPool": windows.global_max_pool,
    "MaxPool": windows.max_pool,
    # Products and normalizations
    "BatchNormalization": products.batch_norm,
    "Einsum": products.einsum,
    "Gemm": products.gemm,
    "GroupNormalization": products.group_norm,
    "InstanceNormalization": products.instance_norm,
    "LayerNormalization": products.layer_norm,
    "LpNormalization": products.lp_norm,
    "MatMul": products.matmul,
    # Activations
    "Clip": each.clip,
    "Elu": each.elu,
    "Erf": each.unary(torch.erf),
    "Gelu": each.gelu,
    "HardSigmoid": each.hard_sigmoid,
    "HardSwish": each.hard_swish,
    "LeakyRelu": each.leaky_relu,
    "LogSoftmax": each.log_softmax,
    "Mish": each.unary(functional.mish),
    "PRelu": each.prelu,
    "Relu": each.unary(torch.relu),
    "Sigmoid": each.unary(torch.sigmoid),
    "Softmax": each.softmax,
    "Softplus": each.unary(functional.softplus),
    "Tanh": each.unary(torch.tanh),
    # Arithmetic
    "Abs": each.unary(torch.abs),
    "Add": each.binary(torch.add),
    "And": each.binary(torch.logical_and),
    "Div": each.divide,
    "Equal": each.binary(torch.eq),
    "Exp": each.unary(torch.exp),
    "Floor": each.unary(torch.floor),
    "Greater": each.binary(torch.gt),
    "Less": each.binary(torch.lt),
    "Log": each.unary(torch.log),
    "Max": each.fold(torch.maximum),
    "Mean": each.fold(torch.add, mean=True),
    "Min": each.fold(torch.minimum),
    "Mul": each.binary(torch.mul),
    "Neg": each.unary(torch.neg),
    "Not": each.unary(torch.logical_not),
    "Pow": each.power,
    "Reciprocal": each.unary(torch.reciprocal),
    "Sqrt": each.unary(torch.sqrt),
    "Sub": each.binary(torch.sub),
    "Sum": each.fold(torch.add),
    "Where": move.where,
    # Reductions
    "ReduceL2": each.reduce(lambda x, axes, keep: torch.linalg.vector_norm(x, 2, axes, keep)),
    "ReduceMax": each.reduce(torch.amax),
    "ReduceMean": each.reduce(torch.mean),
    "ReduceMin": each.reduce(torch.amin),
    "ReduceSum": each.reduce(torch.sum),
    "ReduceSumSquare": each.reduce(lambda x, axes, keep: torch.sum(x.square(), axes, keep)),
    # Movement and shapes
    "Cast": move.cast,
    "Concat": move.concat,
    "ConstantOfShape": move.constant_of_shape,
    "DepthToSpace": move.depth_to_space,
    "Dropout": move.identity,
    "Expand": move.expand,
    "Flatten": move.flatten,
    "Gather": move.gather,
    "Identity": move.identity,
    "Pad": move.pad,
    "Reshape": move.reshape,
    "Resize": resize.resize,
    "Shape": move.shape_of,
    "Slice": move.slice_,
    "SpaceToDepth": move.space_to_depth,
    "Split": move.split,
    "Squeeze": move.squeeze,
    "Tile": move.tile,
    "Transpose": move.transpose,
    "Unsqueeze": move.unsqueeze,
    "Upsample": resize.upsample,
}


def why_not(node: ir.Node, opset: int) -> str | None:
    """Return why a node cannot be computed here, or None if it can.

    >>> why_not(ir.node("NonMaxSuppression", []), 21)
    'there is no NonMaxSuppression in torch here'
    """
    if node.domain not in ("", "ai.onnx") or node.op_type not in OPS:
        return f"there is no {node.op_type} in torch here"
    if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in _attributes(node)):
        return f"{node.op_type} has a body"
    if sum(bool(value.uses()) or value.is_graph_output() for value in node.outputs[1:]) and (
        node.op_type not in ("Split",)
    ):
        return f"a second output of {node.op_type} is read"
    refusal = _REFUSALS.get(node.op_type)
    return refusal(node, opset) if refusal is not None else None


def _attributes(node: ir.Node) -> list[ir.Attr]:
    return list(node.attributes.values())


def _refuse_training(node: ir.Node, opset: int) -> str | None:
    return "it is in training mode" if node.attributes.get_int("training_mode", 0) else None


def _refuse_group_norm(node: ir.Node, opset: int) -> str | None:
    return "its scales are those of groups (before opset 21)" if opset < 21 else None


_REFUSALS: dict[str, Callable[[ir.Node, int], str | None]] = {
    "BatchNormalization": _refuse_training,
    "GroupNormalization": _refuse_group_norm,
    "Resize": lambda node, opset: resize.refuse_resize(node),
    "Upsample": lambda node, opset: resize.refuse_resize(node),
}
