"""AdaQuant: learn the float weights that round best, with biases and scales (needs torch).

Hubara et al., "Accurate Post Training Quantization With Small Calibration Sets", 2021; scales
learn as in Esser et al., "Learned Step Size Quantization", 2020.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from bitwright.learning.fake_quantize import FakeQuantizer
from bitwright.learning.learner import Groups, LearnedConstant, Learner
from bitwright.recipe import AdaQuant

RATE = 0.01
"""Adam moves a weight by about this part of its step at a time."""


class AdaQuantLearner(Learner["_FloatConstant"]):
    """The weights and biases of a segment, and those scales that may learn."""

    def __init__(
        self,
        constants: Mapping[str, tuple[Tensor, FakeQuantizer]],
        method: AdaQuant,
        scales: Collection[str] = (),
    ) -> None:
        super().__init__(
            {
                name: _FloatConstant(name, *given, method, learns_scale=name in scales)
                for name, given in constants.items()
            }
        )
        self._method = method

    def rate_factor(self, part: float) -> float:
        """Return a falling factor: weights halfway between two integers would else jump to the end.

        A rate that was given stays what it is.
        """
        return 1 - part if self._method.learning_rate is None else 1.0

    def scales(self) -> dict[str, Tensor]:
        """Return the scales that learned."""
        with torch.no_grad():
            return {
                name: one.log_scale.exp()
                for name, one in self.constants.items()
                if one.log_scale is not None
            }


class _FloatConstant(LearnedConstant):
    """A weight or bias in float, and the scale that it is rounded by."""

    def __init__(
        self,
        name: str,
        tensor: Tensor,
        quantizer: FakeQuantizer,
        method: AdaQuant,
        *,
        learns_scale: bool,
    ) -> None:
        self._name, self._quantizer, self._method = name, quantizer, method
        # In units that make one learning rate fit all, unless a rate in the weights' own is given.
        is_own = method.learning_rate is None
        self._unit = _unit(tensor, quantizer) if is_own else torch.ones_like(quantizer.scale)
        self._float = (tensor / self._unit).requires_grad_()
        # By its logarithm a scale stays positive, and moves in proportion to its size.
        self.log_scale = quantizer.scale.log().clone().requires_grad_() if learns_scale else None

    def parameter_groups(self, learning_rate: float | None) -> Groups:
        rate = RATE if learning_rate is None else learning_rate
        scales = [] if self.log_scale is None else [self.log_scale]
        return [([self._float], rate), (scales, self._method.scale_learning_rate)]

    def soft(self) -> dict[str, Tensor]:
        quantizer = self._quantizer
        if self.log_scale is not None:
            quantizer = quantizer._replace(scale=self.log_scale.exp())
        return {self._name: quantizer.nearest(self._float * self._unit)}


def _unit(tensor: Tensor, quantizer: FakeQuantizer) -> Tensor:
    """Return the step of a weight; of a bias, whose steps are tiny, what 8 bits would have."""
    if quantizer.high - quantizer.low < 1 << 17:
        return quantizer.scale.detach()
    return (tensor.square().mean().sqrt() / 64).clamp_min(1e-12).expand(quantizer.scale.shape)
