"""Elementwise operators and reductions: arithmetic, activations, means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from bitwright.learning.torch_graph.attributes import Attributes

__all__ = [
    "binary",
    "clip",
    "divide",
    "elu",
    "fold",
    "gelu",
    "hard_sigmoid",
    "hard_swish",
    "leaky_relu",
    "log_softmax",
    "power",
    "prelu",
    "reduce",
    "softmax",
    "unary",
]

Op = Callable[..., Any]


def unary(function: Op) -> Op:
    """Return the op of a function of one tensor."""

    def apply(a: Attributes, x: torch.Tensor) -> torch.Tensor:
        return function(x)

    return apply


def binary(function: Op) -> Op:
    """Return the op of a function of two tensors."""

    def apply(a: Attributes, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return function(x, y)

    return apply


def fold(function: Op, *, mean: bool = False) -> Op:
    """Return the op of any number of tensors, two at a time (Sum, Max, Min, Mean)."""

    def apply(a: Attributes, *tensors: torch.Tensor) -> torch.Tensor:
        result = tensors[0]
        for other in tensors[1:]:
            result = function(result, other)
        return result / len(tensors) if mean else result

    return apply


def divide(a: Attributes, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Div: integers are cut off towards zero."""
    if x.is_floating_point():
        return x / y
    return torch.div(x, y, rounding_mode="trunc")


def power(a: Attributes, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Pow, in the type of the base."""
    # A number as exponent has a derivative that is finite at 0; a tensor's has not.
    exponent = y.item() if y.numel() == 1 and y.ndim <= x.ndim else y
    return torch.pow(x, exponent).to(x.dtype)


def clip(
    a: Attributes,
    x: torch.Tensor,
    low: torch.Tensor | None = None,
    high: torch.Tensor | None = None,
) -> torch.Tensor:
    """Clip: bounds are inputs, or attributes before opset 11."""
    bounds = (
        a.value(name) if bound is None else bound.item()
        for name, bound in (("min", low), ("max", high))
    )
    least, most = bounds
    return x if least is None and most is None else torch.clamp(x, least, most)


def leaky_relu(a: Attributes, x: torch.Tensor) -> torch.Tensor:
    """LeakyRelu."""
    return functional.leaky_relu(x, a.number("alpha", 0.01))


def prelu(a: Attributes, x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    """PRelu, its slope broadcast from the right."""
    return torch.where(x < 0, slope * x, x)


def elu(a: Attributes, x: torch.Tensor) -> torch.Tensor:
    """Elu."""
    return functional.elu(x, a.number("alpha", 1.0))


def hard_sigmoid(a: Attributes, x: torch.Tensor) -> torch.Tensor:
    """HardSigmoid."""
    return torch.clamp(a.number("alpha", 0.2) * x + a.number("beta", 0.5), 0, 1)


def hard_swish(a: Attributes, x: torch.Tensor) -> torch.Tensor:
    """HardSwish."""
    return x * torch.clamp(x / 6 + 0.5, 0, 1)


def gelu(a: Attributes, x: torch.Tensor) -> torch.Tensor:
    """Gelu."""
    return functional.gelu(x, approximate=a.text("approximate", "none"))


def softmax(a: Attributes, x: torch.Tensor) -> torch.Tensor:
    """Softmax; before opset 13 over all axes from the given one on."""
    return _along(a, x, torch.softmax)


def log_softmax(a: Attributes, x: torch.Tensor) -> torch.Tensor:
    """LogSoftmax; before opset 13 over all axes from the given one on."""
    return _along(a, x, torch.log_softmax)


def _along(a: Attributes, x: torch.Tensor, function: Op) -> torch.Tensor:
    if a.opset >= 13:
        return function(x, a.integer("axis", -1))
    axis = a.integer("axis", 1) % x.ndim
    return function(x.flatten(axis), -1).reshape(x.shape)


def reduce(function: Op) -> Op:
    """Return the op that reduces axes; `function` takes (tensor, axes, keepdim)."""

    def apply(a: Attributes, x: torch.Tensor, axes: torch.Tensor | None = None) -> torch.Tensor:
        given: Sequence[int] = a.integers("axes") if axes is None else axes.tolist()
        if not given and a.integer("noop_with_empty_axes"):
            return x
        return function(x, tuple(given) or tuple(range(x.ndim)), bool(a.integer("keepdims", 1)))

    return apply
