"""Fake quantization with straight-through gradients, bit by bit as ONNX Runtime (needs torch).

Rounding has no useful derivative. The straight-through estimate takes it for the identity, so that
what is left of a quantizer is a clamp: the gradient passes inside the range and stops outside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from bitwright.numerics.broadcasting import broadcast_parameters
from bitwright.plan import Parameters

ZETA = 1.1
"""Upper end of the stretched sigmoid (AdaRound, Nagel et al. 2020, eq. 23)."""
GAMMA = -0.1
"""Its lower end: beyond both, weights stop at 0 and 1 and no longer move."""

Round = Callable[[Tensor], Tensor]


class RoundHalfToEven(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    """Round to the nearest integer, ties to even; the gradient passes as it is."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        """Round."""
        return torch.round(t)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        """Pass the gradient on."""
        return grad_output


_STRAIGHT = RoundHalfToEven.apply


def quantize(
    tensor: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    low: Any,
    high: Any,
    rounding: Round = _STRAIGHT,
) -> Tensor:
    """Return round(tensor / scale) + zero_point within [low, high], as whole floats.

    Halves are computed in float32, as ONNX Runtime does.

    >>> quantize(torch.tensor([0.3, -9.0]), torch.tensor(0.1), torch.tensor(10), 0, 255)
    tensor([13.,  0.])
    """
    work = _work_type(tensor)
    values = rounding(tensor.to(work) / scale.to(work)) + zero_point.to(work)
    return torch.clamp(values, low, high)


def dequantize(
    tensor: Tensor, scale: Tensor, zero_point: Tensor, dtype: torch.dtype | None = None
) -> Tensor:
    """Return (tensor - zero_point) * scale, in the type of the scale if no other is given."""
    work = _work_type(tensor)
    values = (tensor.to(work) - zero_point.to(work)) * scale.to(work)
    return values.to(dtype or scale.dtype)


def fake_quantize(
    tensor: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    low: Any,
    high: Any,
    rounding: Round = _STRAIGHT,
) -> Tensor:
    """Return the tensor as it reads after quantizing and dequantizing, in its own type.

    A scale that learns gets the gradient of a learned step size (LSQ, Esser et al. 2020, eq. 3):
    it is what the straight-through estimate gives.
    """
    plain = rounding is _STRAIGHT and {tensor.dtype, scale.dtype} == {torch.float32}
    if plain and not scale.requires_grad:
        found: Tensor = _FakeQuantize.apply(tensor, scale, zero_point, low, high)
        return found
    values = quantize(tensor, scale, zero_point, low, high, rounding)
    return dequantize(values, scale, zero_point, tensor.dtype)


class _FakeQuantize(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    """The same with a gradient for the tensor only, in a third of the passes over it."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, scale: Tensor, zero_point: Tensor, low: Any, high: Any
    ) -> Tensor:
        values = (tensor / scale).round_().add_(zero_point)
        inside = values.clamp(low, high)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(values == inside)
        return inside.sub_(zero_point).mul_(scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        return gradient * ctx.saved_tensors[0], None, None, None, None


class FakeQuantizer(NamedTuple):
    """A scale and zero point in a shape that broadcasts over a tensor, and the ends of the type."""

    scale: Tensor
    zero_point: Tensor
    low: float
    high: float

    @classmethod
    def of(cls, parameters: Parameters, shape: tuple[int, ...], device: Any = "cpu") -> Self:
        """Return the quantizer of a tensor of this shape, its scales in float32 as stored."""
        layout = shape, parameters.axis, parameters.block_size
        scale, zero_point = (
            torch.tensor(broadcast_parameters(np.asarray(values, np.float32), *layout)).to(device)
            for values in (parameters.scale, parameters.zero_point)
        )
        qtype = parameters.qtype
        return cls(scale, zero_point, float(qtype.lowest), float(qtype.highest))

    def nearest(self, tensor: Tensor) -> Tensor:
        """Return each value at its nearest level; gradients pass straight through."""
        return fake_quantize(tensor, self.scale, self.zero_point, self.low, self.high)


def cast_to_type(
    tensor: Tensor, scale: Tensor, zero_point: Tensor, low: Any, high: Any, dtype: torch.dtype
) -> Tensor:
    """Return tensor / scale + zero_point within [low, high] as float16 or bfloat16."""
    work = _work_type(tensor)
    values = tensor.to(work) / scale.to(work) + zero_point.to(work)
    # First within the range: what lies beyond a type's end would turn into infinity.
    info = torch.finfo(dtype)
    values = torch.clamp(values, max(float(low), info.min), min(float(high), info.max))
    return values.to(dtype)


# AdaRound -------------------------------------------------------------------------------------


def soft_rounding(alpha: Tensor) -> Tensor:
    """Return how far each weight is rounded up: 0 is down, 1 is up.

    >>> soft_rounding(torch.tensor([-9.0, 0.0, 9.0]))
    tensor([0.0000, 0.5000, 1.0000])
    """
    return torch.clamp(torch.sigmoid(alpha) * (ZETA - GAMMA) + GAMMA, 0, 1)


def rounding_for(fraction: Tensor) -> Tensor:
    """Return the alpha whose soft rounding is this fraction of a step, from 0 up to 1."""
    return -torch.log((ZETA - GAMMA) / (fraction - GAMMA) - 1)


# Shapes and types -----------------------------------------------------------------------------


def _work_type(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
