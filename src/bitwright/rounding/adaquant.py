"""AdaQuant: learn the float weights that round best, with biases and scales (needs torch).

Hubara et al., "Accurate Post Training Quantization With Small Calibration Sets", 2021; scales
learn as in Esser et al., "Learned Step Size Quantization", 2020.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from bitwright.recipe import AdaQuant
from bitwright.rounding.grid import Grid

__all__ = ["AdaQuantLearner"]


class AdaQuantLearner:
    """The weights and biases of a block, and those scales that may learn.

    >>> grid = Grid(torch.tensor(0.5), torch.tensor(0), -128, 127)
    >>> learner = AdaQuantLearner({"w": (torch.tensor([0.3, 0.6]), grid)}, AdaQuant())
    >>> learner.hard()["w"]
    tensor([0.5000, 0.5000])
    """

    def __init__(
        self,
        constants: Mapping[str, tuple[torch.Tensor, Grid]],
        method: AdaQuant,
        scales: Collection[str] = (),
    ) -> None:
        self._method = method
        self._grids = {name: grid for name, (_, grid) in constants.items()}
        self._floats = {n: t.clone().requires_grad_() for n, (t, _) in constants.items()}
        # By its logarithm a scale stays positive, and moves in proportion to its size.
        self._logs = {
            name: constants[name][1].scale.log().clone().requires_grad_() for name in scales
        }

    def groups(self, learning_rate: float) -> list[tuple[list[torch.Tensor], float]]:
        """Return the weights, and the scales with a rate of their own."""
        scales = list(self._logs.values()), self._method.scale_learning_rate
        return [(list(self._floats.values()), learning_rate), scales]

    def soft(self) -> dict[str, torch.Tensor]:
        """Return the constants at their nearest values, gradients straight through."""
        return {name: self._grid(name).nearest(t) for name, t in self._floats.items()}

    def hard(self) -> dict[str, torch.Tensor]:
        """Return the same without gradients."""
        with torch.no_grad():
            return self.soft()

    def penalty(self, step: int) -> torch.Tensor | None:
        """Return nothing: every value is a stored one all along."""
        return None

    def scales(self) -> dict[str, torch.Tensor]:
        """Return the scales that learned."""
        with torch.no_grad():
            return {name: log.exp() for name, log in self._logs.items()}

    def _grid(self, name: str) -> Grid:
        grid = self._grids[name]
        return grid._replace(scale=self._logs[name].exp()) if name in self._logs else grid
