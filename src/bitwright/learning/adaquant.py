"""AdaQuant: learn the float weights that round best, with biases and scales (needs torch).

Hubara et al., "Accurate Post Training Quantization With Small Calibration Sets", 2021; scales
learn as in Esser et al., "Learned Step Size Quantization", 2020.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch

from bitwright.learning.fake_quantize import FakeQuantizer
from bitwright.learning.reconstruction import StraightThroughLearner
from bitwright.recipe import AdaQuant

RATE = 0.01
"""Adam moves a weight by about this part of its step at a time."""


class AdaQuantLearner(StraightThroughLearner):
    """The weights and biases of a segment, and those scales that may learn."""

    def __init__(
        self,
        constants: Mapping[str, tuple[torch.Tensor, FakeQuantizer]],
        method: AdaQuant,
        scales: Collection[str] = (),
    ) -> None:
        self._method = method
        self.names = tuple(constants)
        self._quantizers = {name: quantizer for name, (_, quantizer) in constants.items()}
        # In units that make one learning rate fit all, unless a rate in the weights' own is given.
        self._units = {
            name: _unit(tensor, quantizer)
            if method.learning_rate is None
            else torch.ones_like(quantizer.scale)
            for name, (tensor, quantizer) in constants.items()
        }
        self._floats = {n: (t / self._units[n]).requires_grad_() for n, (t, _) in constants.items()}
        # By its logarithm a scale stays positive, and moves in proportion to its size.
        self._logs = {
            name: constants[name][1].scale.log().clone().requires_grad_() for name in scales
        }

    def parameter_groups(
        self, learning_rate: float | None, names: Iterable[str] | None = None
    ) -> list[tuple[list[torch.Tensor], float]]:
        """Return the weights, and the scales with a rate of their own."""
        chosen = self._chosen(names)
        rate = RATE if learning_rate is None else learning_rate
        scales = [self._logs[name] for name in chosen if name in self._logs]
        return [
            ([self._floats[name] for name in chosen], rate),
            (scales, self._method.scale_learning_rate),
        ]

    def soft(self, names: Iterable[str] | None = None) -> dict[str, torch.Tensor]:
        """Return the constants at their nearest values, gradients straight through."""
        return {
            name: self._quantizer(name).nearest(self._floats[name] * self._units[name])
            for name in self._chosen(names)
        }

    def parameters(self) -> list[torch.Tensor]:
        """Return all weights, biases and scales that learn."""
        return [*self._floats.values(), *self._logs.values()]

    def rate_factor(self, part: float) -> float:
        """Return a falling factor: weights halfway between two integers would else jump to the end.

        A rate that was given stays what it is.
        """
        return 1 - part if self._method.learning_rate is None else 1.0

    def scales(self) -> dict[str, torch.Tensor]:
        """Return the scales that learned."""
        with torch.no_grad():
            return {name: log.exp() for name, log in self._logs.items()}

    def _quantizer(self, name: str) -> FakeQuantizer:
        quantizer = self._quantizers[name]
        return quantizer._replace(scale=self._logs[name].exp()) if name in self._logs else quantizer


def _unit(tensor: torch.Tensor, quantizer: FakeQuantizer) -> torch.Tensor:
    """Return the step of a weight; of a bias, whose steps are tiny, what 8 bits would have."""
    if quantizer.high - quantizer.low < 1 << 17:
        return quantizer.scale.detach()
    return (tensor.square().mean().sqrt() / 64).clamp_min(1e-12).expand(quantizer.scale.shape)
