"""Matrix products and normalizations."""

from __future__ import annotations

import torch
from torch.nn import functional

from bitwright.learning.torch_graph.attributes import Attributes

__all__ = [
    "batch_norm",
    "einsum",
    "gemm",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "lp_norm",
    "matmul",
]


def gemm(
    a: Attributes, x: torch.Tensor, w: torch.Tensor, c: torch.Tensor | None = None
) -> torch.Tensor:
    """Gemm."""
    x = x.T if a.integer("transA") else x
    w = w.T if a.integer("transB") else w
    y = a.number("alpha", 1.0) * (x @ w)
    return y if c is None else y + a.number("beta", 1.0) * c


def matmul(a: Attributes, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """MatMul."""
    return x @ w


def einsum(a: Attributes, *tensors: torch.Tensor) -> torch.Tensor:
    """Einsum."""
    return torch.einsum(a.text("equation"), *tensors)


def batch_norm(
    a: Attributes,
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
) -> torch.Tensor:
    """BatchNormalization with its stored statistics."""
    return functional.batch_norm(
        x, mean, variance, scale, bias, training=False, eps=a.number("epsilon", 1e-5)
    )


def instance_norm(
    a: Attributes, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """InstanceNormalization."""
    axes = tuple(range(2, x.ndim))
    centred = x - x.mean(axes, keepdim=True)
    variance = centred.square().mean(axes, keepdim=True)
    shape = (1, -1, *(1 for _ in axes))
    normal = centred * torch.rsqrt(variance + a.number("epsilon", 1e-5))
    return normal * scale.reshape(shape) + bias.reshape(shape)


def layer_norm(
    a: Attributes, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """LayerNormalization; only its first output."""
    axis = a.integer("axis", -1) % x.ndim
    axes = tuple(range(axis, x.ndim))
    centred = x - x.mean(axes, keepdim=True)
    variance = centred.square().mean(axes, keepdim=True)
    normal = centred * torch.rsqrt(variance + a.number("epsilon", 1e-5)) * scale
    return normal if bias is None else normal + bias


def group_norm(
    a: Attributes, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """GroupNormalization, with a scale for each channel (from opset 21)."""
    return functional.group_norm(x, a.integer("num_groups"), scale, bias, a.number("epsilon", 1e-5))


def lp_norm(a: Attributes, x: torch.Tensor) -> torch.Tensor:
    """LpNormalization."""
    axis = a.integer("axis", -1)
    norm = torch.linalg.vector_norm(x, a.integer("p", 2), dim=axis, keepdim=True)
    return torch.where(norm == 0, torch.zeros_like(x), x / norm)
