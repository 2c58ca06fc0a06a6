"""The values that a constant may take, as torch needs them (needs torch)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from bitwright.learning.fake_quantize import fake_quantize
from bitwright.numerics.broadcasting import broadcast_parameters
from bitwright.plan import Parameters

__all__ = ["Grid"]


class Grid(NamedTuple):
    """A scale and zero point in a shape that covers a tensor, and the ends of the type.

    >>> grid = Grid(torch.tensor(0.5), torch.tensor(0), -128, 127)
    >>> grid.nearest(torch.tensor([0.3, 99.0]))
    tensor([ 0.5000, 63.5000])
    """

    scale: torch.Tensor
    zero_point: torch.Tensor
    low: float
    high: float

    @classmethod
    def of(cls, parameters: Parameters, shape: tuple[int, ...], device: Any = "cpu") -> Grid:
        """Return the grid of a tensor of this shape; scales as they are stored, in float32."""
        layout = shape, parameters.axis, parameters.block_size
        scale, zero_point = (
            torch.tensor(broadcast_parameters(np.asarray(values, np.float32), *layout)).to(device)
            for values in (parameters.scale, parameters.zero_point)
        )
        qtype = parameters.qtype
        return cls(scale, zero_point, float(qtype.lowest), float(qtype.highest))

    def nearest(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return each value at its nearest place; gradients pass straight through."""
        return fake_quantize(tensor, self.scale, self.zero_point, self.low, self.high)
