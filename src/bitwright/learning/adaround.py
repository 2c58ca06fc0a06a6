"""AdaRound: learn for each weight whether it is rounded up or down (needs torch).

Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch

from bitwright.learning.fake_quantize import (
    GAMMA,
    ZETA,
    FakeQuantizer,
    dequantize,
    rounding_for,
)
from bitwright.learning.layer_error import GramError, LayerError
from bitwright.learning.reconstruction import Learner
from bitwright.recipe import AdaRound, LearningDetails

FROZEN = 20.0
"""The alpha of a weight that has one integer only: its sigmoid has no slope."""
UNFROZEN = rounding_for(torch.tensor(0.9)).item()
"""The alpha of a weight that may change again: rounded up, or down, by nine tenths."""
BIAS_RATE = 0.01
"""Adam moves a bias by about this part of a 64th of its typical size at a time."""


class Bias(NamedTuple):
    """A bias that is fitted to what its layer's weights are rounded to."""

    name: str
    value: torch.Tensor
    """What it is stored as, at first."""
    quantizer: FakeQuantizer


class AdaRoundLearner(Learner):
    """The roundings of a segment's weights, and the biases that make up for them."""

    def __init__(
        self,
        weights: Mapping[str, tuple[torch.Tensor, FakeQuantizer]],
        method: AdaRound,
        biases: Mapping[str, Bias] | None = None,
        details: LearningDetails = LearningDetails(),  # noqa: B008 (frozen)
    ) -> None:
        self._method, self._details = method, details
        self._biases = dict(biases or {})
        self._units = {
            name: (bias.value.square().mean().sqrt() / 64).clamp_min(1e-12)
            for name, bias in self._biases.items()
        }
        # In units that make one learning rate fit all.
        self._shifts = {
            name: torch.zeros_like(bias.value).requires_grad_()
            for name, bias in self._biases.items()
        }
        self.names = tuple(weights)
        self._quantizers = {name: quantizer for name, (_, quantizer) in weights.items()}
        self._floors: dict[str, torch.Tensor] = {}
        self._bases: dict[str, torch.Tensor] = {}
        self._alphas: dict[str, torch.Tensor] = {}
        for name, (weight, quantizer) in weights.items():
            scaled = weight / quantizer.scale
            below = torch.floor(scaled)
            floor = below + quantizer.zero_point
            alpha = rounding_for(scaled - below)
            # Beyond the ends of the type there is one integer only.
            alpha = alpha.masked_fill(floor < quantizer.low, -FROZEN)
            alpha = alpha.masked_fill(floor >= quantizer.high, FROZEN)
            floor = floor.clamp(quantizer.low, quantizer.high - 1)
            self._floors[name] = floor
            self._bases[name] = dequantize(floor, quantizer.scale, quantizer.zero_point)
            self._alphas[name] = alpha.requires_grad_()

    def parameter_groups(
        self, learning_rate: float | None, names: Iterable[str] | None = None
    ) -> list[tuple[list[torch.Tensor], float]]:
        """Return the roundings, all with one learning rate."""
        rate = self._method.learning_rate if learning_rate is None else learning_rate
        chosen = self._chosen(names)
        shifts = [self._shifts[name] for name in chosen if name in self._shifts]
        return [([self._alphas[name] for name in chosen], rate), (shifts, BIAS_RATE)]

    def soft(self, names: Iterable[str] | None = None) -> dict[str, torch.Tensor]:
        """Return weights between two integers, and their biases."""
        found = {}
        for name in self._chosen(names):
            scale = self._quantizers[name].scale
            found[name] = _SoftRounding.apply(self._alphas[name], self._bases[name], scale)
            found.update(self._bias(name))
        return found

    def hard(self, names: Iterable[str] | None = None) -> dict[str, torch.Tensor]:
        """Return weights at one integer each, and their biases."""
        found = {}
        with torch.no_grad():
            for name in self._chosen(names):
                integers = self._floors[name] + (self._alphas[name] >= 0)
                quantizer = self._quantizers[name]
                found[name] = dequantize(integers, quantizer.scale, quantizer.zero_point)
                found.update(self._bias(name))
        return found

    def learns_bias(self, name: str) -> bool:
        """Whether a weight has a bias that learns with it."""
        return name in self._biases

    def solve(self, name: str, layer: LayerError, stored: torch.Tensor) -> bool:
        """Choose the roundings of a layer by itself without a step; False where it is too wide."""
        if not isinstance(layer, GramError):
            return False
        with torch.no_grad():
            up, free, step = self._roundings(name)
            self._put(name, layer.round_by_gptq(self._bases[name] - stored, up, step, free))
        self.polish(name, layer, stored)
        return True

    def polish(self, name: str, layer: LayerError, stored: torch.Tensor) -> None:
        """Flip single roundings of a layer while its error falls, and fit its bias to them.

        Gradients bring weights to rest one by one; whether one should flip now that all others
        rest, they do not say.
        """
        with torch.no_grad():
            self._descend(name, layer, stored)
            if name in self._biases:
                bias, shift = self._biases[name], self._shifts[name]
                wanted = layer.bias(self.hard([name])[name] - stored).reshape(shift.shape)
                shift.add_(wanted / self._units[name])
                if isinstance(layer, GramError):
                    # A low-bit bias comes near to where it should be; the weights do the rest.
                    moved = self._bias(name)[bias.name] - bias.value
                    layer.fix_bias(moved.reshape(-1))
                    self._descend(name, layer, stored)

    def _descend(self, name: str, layer: LayerError, stored: torch.Tensor) -> None:
        up, free, step = self._roundings(name)
        if isinstance(layer, GramError):
            change = self._bases[name] + up * step - stored
            up = layer.coordinate_descent(change, up, step, free)
        self._put(name, up)

    def _roundings(self, name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return which weights are up, which may flip, and by how much that moves them."""
        alpha = self._alphas[name]
        return alpha >= 0, alpha.abs() < FROZEN, self._quantizers[name].scale.expand_as(alpha)

    def _put(self, name: str, up: torch.Tensor) -> None:
        """Set roundings, near to their integers as `unfreeze` leaves them."""
        alpha = self._alphas[name]
        free = alpha.abs() < FROZEN
        alpha.copy_(torch.where(free, torch.where(up, UNFROZEN, -UNFROZEN), alpha))

    def parameters(self) -> list[torch.Tensor]:
        """Return all roundings, and what is added to biases."""
        return [*self._alphas.values(), *self._shifts.values()]

    def unfreeze(self) -> None:
        """Bring weights near to their integers, but not to them, so that they can change again."""
        with torch.no_grad():
            for alpha in self._alphas.values():
                fixed = alpha.abs() >= FROZEN
                alpha.copy_(torch.where(fixed, alpha, alpha.clamp(-UNFROZEN, UNFROZEN)))

    def add_regularizer(self, part: float) -> torch.Tensor | None:
        """Add the gradient of the term that draws weights to their integers, and return the term.

        It is steeper the larger the `part` of all steps that is done, and absent at first.
        """
        beta = self._beta(part)
        if beta is None:
            return None
        alphas = list(self._alphas.values())
        # A mean, beside a loss that is relative too: so one strength fits segments of any size.
        strength = self._details.regularization / sum(alpha.numel() for alpha in alphas)
        total = torch.zeros((), device=alphas[0].device)
        with torch.no_grad():
            for alpha in alphas:
                up, slope = _soft_rounding(torch.sigmoid(alpha))
                ahead = up.mul_(2).sub_(1)
                power = ahead.abs().pow_(beta - 1)
                total += alpha.numel() - (power * ahead.abs()).sum()
                slope.mul_(power).mul_(torch.sign(ahead)).mul_(-2 * beta * strength)
                alpha.grad = slope if alpha.grad is None else alpha.grad.add_(slope)
        return strength * total

    def backpropagate(
        self, name: str, part: float, gradient_at: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        """Set the gradients of one weight from those of its layer's error and the regularizer."""
        alpha, beta, scale = self._alphas[name], self._beta(part), self._quantizers[name].scale
        with torch.no_grad():
            up, slope = _soft_rounding(torch.sigmoid(alpha))
            gradient = gradient_at(torch.addcmul(self._bases[name], up, scale)).mul_(scale)
            if beta is not None:
                ahead = up.mul_(2).sub_(1)
                slope_to_integer = ahead.abs().pow_(beta - 1).mul_(torch.sign(ahead))
                strength = self._details.regularization / alpha.numel()
                gradient.add_(slope_to_integer, alpha=-2 * beta * strength)
            alpha.grad = gradient.mul_(slope)

    def _bias(self, name: str) -> dict[str, torch.Tensor]:
        """Return the bias of a weight, if it has one that learns."""
        if name not in self._biases:
            return {}
        bias = self._biases[name]
        moved = torch.addcmul(bias.value, self._shifts[name], self._units[name])
        return {bias.name: bias.quantizer.nearest(moved)}

    def _beta(self, part: float) -> float | None:
        """Return beta of the regularizer where this part of all steps is done; None: absent yet."""
        start = self._details.warm_start
        if part < start:
            return None
        rest = (part - start) / (1 - start)
        first, last = self._details.beta
        return last + 0.5 * (first - last) * (1 + math.cos(math.pi * rest))


class _SoftRounding(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    """base + soft_rounding(alpha) * scale, in few passes over the weights."""

    @staticmethod
    def forward(
        ctx: Any, alpha: torch.Tensor, base: torch.Tensor, scale: torch.Tensor
    ) -> torch.Tensor:
        sigmoid = torch.sigmoid(alpha)
        ctx.save_for_backward(sigmoid, scale)
        return torch.addcmul(base, _soft_rounding(sigmoid)[0], scale)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        sigmoid, scale = ctx.saved_tensors
        return _soft_rounding(sigmoid)[1].mul_(gradient).mul_(scale), None, None


def _soft_rounding(sigmoid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the soft rounding of a sigmoid, and its derivative: 0 where it is clipped."""
    up = (sigmoid * (ZETA - GAMMA)).add_(GAMMA)
    slope = (1 - sigmoid).mul_(sigmoid).mul_(ZETA - GAMMA)
    slope.masked_fill_((up < 0) | (up > 1), 0)
    return up.clamp_(0, 1), slope
