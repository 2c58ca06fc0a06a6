"""AdaRound: learn for each weight whether it is rounded up or down (needs torch).

Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", 2020.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from bitwright.recipe import AdaRound
from bitwright.rounding.grid import Grid
from bitwright.rounding.torch_quantizers import dequantize, rounding_for, soft_rounding

__all__ = ["AdaRoundLearner"]


class AdaRoundLearner:
    """The roundings of a block's weights.

    >>> grid = Grid(torch.tensor(0.5), torch.tensor(0), -128, 127)
    >>> learner = AdaRoundLearner({"w": (torch.tensor([0.3, 0.6]), grid)}, AdaRound())
    >>> learner.hard()["w"]
    tensor([0.5000, 0.5000])
    """

    def __init__(self, weights: Mapping[str, tuple[torch.Tensor, Grid]], method: AdaRound) -> None:
        self._method = method
        self._grids = {name: grid for name, (_, grid) in weights.items()}
        self._floors = {}
        self._alphas = {}
        for name, (weight, grid) in weights.items():
            scaled = weight / grid.scale
            self._floors[name] = torch.floor(scaled) + grid.zero_point
            self._alphas[name] = rounding_for(scaled - torch.floor(scaled)).requires_grad_()

    def groups(self, learning_rate: float) -> list[tuple[list[torch.Tensor], float]]:
        """Return the roundings, all with one learning rate."""
        return [(list(self._alphas.values()), learning_rate)]

    def soft(self) -> dict[str, torch.Tensor]:
        """Return weights between two integers."""
        return {name: self._weight(name, soft_rounding(a)) for name, a in self._alphas.items()}

    def hard(self) -> dict[str, torch.Tensor]:
        """Return weights at one integer each."""
        with torch.no_grad():
            return {
                name: self._weight(name, (alpha >= 0).to(alpha.dtype))
                for name, alpha in self._alphas.items()
            }

    def _weight(self, name: str, up: torch.Tensor) -> torch.Tensor:
        grid = self._grids[name]
        integers = torch.clamp(self._floors[name] + up, grid.low, grid.high)
        return dequantize(integers, grid.scale, grid.zero_point)

    def penalty(self, step: int) -> torch.Tensor | None:
        """Return how far the weights are from their integers, more steeply as time goes by."""
        method = self._method
        start = method.warm_start * method.iterations
        if step < start:
            return None
        part = (step - start) / max(method.iterations - start, 1)
        first, last = method.beta
        beta = last + 0.5 * (first - last) * (1 + math.cos(math.pi * part))
        total = sum(
            (1 - (2 * soft_rounding(alpha) - 1).abs().pow(beta)).sum()
            for alpha in self._alphas.values()
        )
        # A mean, beside a loss that is relative too: so one strength fits blocks of any size.
        return method.regularization * total / sum(a.numel() for a in self._alphas.values())
