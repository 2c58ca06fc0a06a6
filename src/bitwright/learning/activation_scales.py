"""Scales of activations that learn with the weights that read them (needs torch).

A scale gets the gradient of a learned step size (Esser et al., "Learned Step Size Quantization",
2020, eq. 3 and section 2.2); zero points stay, so that zero stays exact. While learning, elements
are left float at random (Wei et al., "QDrop", 2022): what fits the few samples only because of how
they happen to be rounded is not learned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from bitwright.learning.fake_quantize import FakeQuantizer, RoundHalfToEven

MAX_FACTOR = 16.0
"""No scale becomes larger, or smaller, by more than this."""


class ActivationScales:
    """The scales of a segment's activations, as factors of what they were.

    Args:
        smallest: the names of the scales that learn, and how small each factor may become.
    """

    def __init__(self, smallest: Mapping[str, float], device: str = "cpu") -> None:
        # By its logarithm a factor stays positive; that of 0 is exactly 1.
        self._logs = {key: torch.zeros((), device=device, requires_grad=True) for key in smallest}
        self._lowest = {key: math.log(max(f, 1 / MAX_FACTOR)) for key, f in smallest.items()}
        self._ratio, self._generator = 1.0, torch.Generator()

    def __len__(self) -> int:
        return len(self._logs)

    def parameters(self) -> list[Tensor]:
        """Return the logarithms of all factors."""
        return list(self._logs.values())

    def factors(self) -> dict[str, float]:
        """Return what each scale is multiplied with."""
        with torch.no_grad():
            return {key: float(self._factor(key)) for key in self._logs}

    @contextmanager
    def dropping(self, ratio: float, generator: torch.Generator) -> Iterator[None]:
        """Quantize only this part of all elements within the block, chosen at random."""
        before = self._ratio, self._generator
        self._ratio, self._generator = ratio, generator
        try:
            yield
        finally:
            self._ratio, self._generator = before

    def quantize(self, key: str, tensor: Tensor, quantizer: FakeQuantizer) -> Tensor:
        """Return an activation at its nearest levels, or the part that is not dropped."""
        if key in self._logs:
            factor = _ScaleGradient.apply(self._factor(key), gradient_scale(tensor, quantizer))
            scale = quantizer.scale * factor
            low, high = (end - quantizer.zero_point for end in (quantizer.low, quantizer.high))
            # Clipped before it is rounded, as published: the last half step beyond an end moves
            # with the scale, too. The values are the same.
            levels = RoundHalfToEven.apply(torch.clamp(tensor.float() / scale, low, high))
            found = (levels * scale).to(tensor.dtype)
        else:
            found = quantizer.nearest(tensor)
        if self._ratio >= 1:
            return found
        chance = torch.rand(tensor.shape, generator=self._generator).to(tensor.device)
        return torch.where(chance < self._ratio, found, tensor)

    def _factor(self, key: str) -> Tensor:
        return self._logs[key].clamp(self._lowest[key], math.log(MAX_FACTOR)).exp()


def gradient_scale(tensor: Tensor, quantizer: FakeQuantizer) -> float:
    """Return 1 / sqrt(N Q), N the elements of one sample and Q the levels beside zero."""
    zero_point = float(quantizer.zero_point.max())
    levels = max(quantizer.high - zero_point, zero_point - quantizer.low)
    elements = tensor.numel() // max(tensor.shape[0], 1) if tensor.ndim else 1
    return 1 / math.sqrt(max(elements, 1) * levels)


class _ScaleGradient(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    """The same tensor, its gradient times a number."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None
