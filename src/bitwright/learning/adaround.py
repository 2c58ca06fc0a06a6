"""AdaRound: learn for each weight whether it is rounded up or down (needs torch).

Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bitwright.learning.fake_quantize import GAMMA, ZETA, FakeQuantizer, dequantize, rounding_for
from bitwright.learning.layer_error import GramError, LayerError
from bitwright.learning.learner import Groups, LearnedConstant, Learner
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
    value: Tensor
    """What it is stored as, at first."""
    quantizer: FakeQuantizer


class AdaRoundLearner(Learner["_Roundings"]):
    """The roundings of a segment's weights, and the biases that make up for them."""

    is_hard = False

    def __init__(
        self,
        weights: Mapping[str, tuple[Tensor, FakeQuantizer]],
        method: AdaRound,
        biases: Mapping[str, Bias] | None = None,
        details: LearningDetails = LearningDetails(),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__(
            {
                name: _Roundings(name, *given, (biases or {}).get(name), method, details)
                for name, given in weights.items()
            }
        )
        self._details = details

    def unfreeze(self) -> None:
        """Bring weights near to their integers, but not to them, so that they can change again."""
        with torch.no_grad():
            for one in self.constants.values():
                alpha = one.alpha
                fixed = alpha.abs() >= FROZEN
                alpha.copy_(torch.where(fixed, alpha, alpha.clamp(-UNFROZEN, UNFROZEN)))

    def add_regularizer(self, part: float) -> Tensor | None:
        """Add the gradient of the term that draws weights to their integers, and return the term.

        It is steeper the larger the `part` of all steps that is done, and absent at first.
        """
        beta = _beta(self._details, part)
        if beta is None:
            return None
        alphas = [one.alpha for one in self.constants.values()]
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


class _Roundings(LearnedConstant):
    """The roundings of a weight, and the bias that makes up for them."""

    def __init__(
        self,
        name: str,
        weight: Tensor,
        quantizer: FakeQuantizer,
        bias: Bias | None,
        method: AdaRound,
        details: LearningDetails,
    ) -> None:
        self._name, self._quantizer, self._bias = name, quantizer, bias
        self._method, self._details = method, details
        self.learns_bias = bias is not None
        if bias is not None:  # in units that make one learning rate fit all
            self._unit = (bias.value.square().mean().sqrt() / 64).clamp_min(1e-12)
            self._shift = torch.zeros_like(bias.value).requires_grad_()
        scaled = weight / quantizer.scale
        below = torch.floor(scaled)
        floor = below + quantizer.zero_point
        alpha = rounding_for(scaled - below)
        # Beyond the ends of the type there is one integer only.
        alpha = alpha.masked_fill(floor < quantizer.low, -FROZEN)
        alpha = alpha.masked_fill(floor >= quantizer.high, FROZEN)
        self._floor = floor.clamp(quantizer.low, quantizer.high - 1)
        self._base = dequantize(self._floor, quantizer.scale, quantizer.zero_point)
        self.alpha = alpha.requires_grad_()

    def parameter_groups(self, learning_rate: float | None) -> Groups:
        rate = self._method.learning_rate if learning_rate is None else learning_rate
        return [([self.alpha], rate), ([self._shift] if self.learns_bias else [], BIAS_RATE)]

    def soft(self) -> dict[str, Tensor]:
        """Return the weight between two integers, and its bias."""
        weight = _SoftRounding.apply(self.alpha, self._base, self._quantizer.scale)
        return {self._name: weight, **self._moved_bias()}

    def hard(self) -> dict[str, Tensor]:
        """Return the weight at one integer for each number, and its bias."""
        with torch.no_grad():
            return {self._name: self._stored(), **self._moved_bias()}

    def backpropagate(self, part: float, gradient_at: Callable[[Tensor], Tensor]) -> None:
        """Set its gradients from those of its layer's error and the regularizer."""
        beta, scale = _beta(self._details, part), self._quantizer.scale
        with torch.no_grad():
            up, slope = _soft_rounding(torch.sigmoid(self.alpha))
            gradient = gradient_at(torch.addcmul(self._base, up, scale)).mul_(scale)
            if beta is not None:
                ahead = up.mul_(2).sub_(1)
                slope_to_integer = ahead.abs().pow_(beta - 1).mul_(torch.sign(ahead))
                strength = self._details.regularization / self.alpha.numel()
                gradient.add_(slope_to_integer, alpha=-2 * beta * strength)
            self.alpha.grad = gradient.mul_(slope)

    def solve(self, layer: LayerError, stored: Tensor) -> bool:
        """Choose the roundings of a layer by itself without a step; False where it is too wide."""
        if not isinstance(layer, GramError):
            return False
        with torch.no_grad():
            up, free, step = self._choices()
            self._put(layer.round_by_gptq(self._base - stored, up, step, free))
        self.polish(layer, stored)
        return True

    def polish(self, layer: LayerError, stored: Tensor) -> None:
        """Flip single roundings of a layer while its error falls, and fit its bias to them.

        Gradients bring weights to rest one by one; whether one should flip now that all others
        rest, they do not say.
        """
        with torch.no_grad():
            self._descend(layer, stored)
            if self._bias is not None:
                wanted = layer.bias(self._stored() - stored).reshape(self._shift.shape)
                self._shift.add_(wanted / self._unit)
                if isinstance(layer, GramError):
                    # A low-bit bias comes near to where it should be; the weights do the rest.
                    moved = self._moved_bias()[self._bias.name] - self._bias.value
                    layer.fix_bias(moved.reshape(-1))
                    self._descend(layer, stored)

    def _descend(self, layer: LayerError, stored: Tensor) -> None:
        up, free, step = self._choices()
        if isinstance(layer, GramError):
            change = self._base + up * step - stored
            up = layer.coordinate_descent(change, up, step, free)
        self._put(up)

    def _choices(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return which weights are up, which may flip, and by how much that moves them."""
        alpha = self.alpha
        return alpha >= 0, alpha.abs() < FROZEN, self._quantizer.scale.expand_as(alpha)

    def _put(self, up: Tensor) -> None:
        """Set roundings, near to their integers as `unfreeze` leaves them."""
        free = self.alpha.abs() < FROZEN
        chosen = torch.where(up, UNFROZEN, -UNFROZEN)
        self.alpha.copy_(torch.where(free, chosen, self.alpha))

    def _stored(self) -> Tensor:
        """Return the weight at one integer for each number."""
        quantizer = self._quantizer
        return dequantize(self._floor + (self.alpha >= 0), quantizer.scale, quantizer.zero_point)

    def _moved_bias(self) -> dict[str, Tensor]:
        """Return the bias, if one learns."""
        if self._bias is None:
            return {}
        moved = torch.addcmul(self._bias.value, self._shift, self._unit)
        return {self._bias.name: self._bias.quantizer.nearest(moved)}


def _beta(details: LearningDetails, part: float) -> float | None:
    """Return beta of the regularizer where this part of all steps is done; None: absent yet."""
    start = details.warm_start
    if part < start:
        return None
    rest = (part - start) / (1 - start)
    first, last = details.beta
    return last + 0.5 * (first - last) * (1 + math.cos(math.pi * rest))


class _SoftRounding(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    """base + soft_rounding(alpha) * scale, in few passes over the weights."""

    @staticmethod
    def forward(ctx: Any, alpha: Tensor, base: Tensor, scale: Tensor) -> Tensor:
        sigmoid = torch.sigmoid(alpha)
        ctx.save_for_backward(sigmoid, scale)
        return torch.addcmul(base, _soft_rounding(sigmoid)[0], scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        sigmoid, scale = ctx.saved_tensors
        return _soft_rounding(sigmoid)[1].mul_(gradient).mul_(scale), None, None


def _soft_rounding(sigmoid: Tensor) -> tuple[Tensor, Tensor]:
    """Return the soft rounding of a sigmoid, and its derivative: 0 where it is clipped."""
    up = (sigmoid * (ZETA - GAMMA)).add_(GAMMA)
    slope = (1 - sigmoid).mul_(sigmoid).mul_(ZETA - GAMMA)
    slope.masked_fill_((up < 0) | (up > 1), 0)
    return up.clamp_(0, 1), slope
