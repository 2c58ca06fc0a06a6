"""SignRound: learn the roundings and the ranges of weights in blocks (needs torch).

Cheng et al., "Optimize Weight Rounding via Signed Gradient Descent for the Quantization of LLMs",
2023 (arXiv:2309.05516): each weight has an offset of its rounding, each block two factors of its
range, for the lower and the upper end, from which scale and zero point follow.

Unlike there, learning starts from codes that GPTQ or another rounding chose, and a scale that
learns leaves them: so its gradient is exact, and not that of roundings that all follow it. From
codes that are good already, the latter led away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from bitwright.learning.fake_quantize import RoundHalfToEven
from bitwright.learning.learner import Groups, LearnedConstant, Learner, Optimizer
from bitwright.learning.optimizers import SignDescent
from bitwright.numerics import BlockScales, QuantizedBlocks, arrays_on, collect, usable_scales
from bitwright.recipe import SignRound
from bitwright.support.array_types import F32, Array

LIMIT = 0.5
"""How far an offset goes, in steps, and how far a factor of a range goes from 1."""
NEAR = 0.1
"""How far from its code a weight starts, in steps, towards its float value: a code changes where
gradients agree on it for almost all steps, somewhat earlier on that side."""

_ROUND = RoundHalfToEven.apply
Stored = Callable[[Tensor], Tensor]


class SignRoundLearner(Learner["_Blocks"]):
    """The roundings and ranges of a segment's weights, from what was rounded before.

    `weights` are float weights [K, N], what they were rounded to, and how a model stores such
    values.
    """

    def __init__(
        self,
        weights: Mapping[str, tuple[F32, QuantizedBlocks, Stored]],
        method: SignRound,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            {name: _Blocks(name, *given, method, device) for name, given in weights.items()}
        )

    def optimizer(self, groups: Sequence[tuple[Sequence[Tensor], float]]) -> Optimizer:
        """Return what steps by the signs of gradients."""
        return SignDescent(groups, limit=LIMIT)

    def rate_factor(self, part: float) -> float:
        """Return a factor that falls to 0."""
        return 1 - part

    def blocks(self, name: str) -> QuantizedBlocks:
        """Return a weight as it is now, as codes, scales and zero points."""
        with torch.no_grad():
            return self.constants[name].quantized()


class _Blocks(LearnedConstant):
    """A weight in blocks [blocks, length, N]: the last is filled with zeros."""

    def __init__(
        self,
        name: str,
        weight: F32,
        rounded: QuantizedBlocks,
        stored: Stored,
        method: SignRound,
        device: str,
    ) -> None:
        self._name, self._method = name, method
        format = self._format = rounded.format
        self._rows, columns = rounded.shape
        self._length = format.length(self._rows)
        self._stored = stored
        self._xp = arrays_on("torch" if device == "cpu" else device)
        count = format.blocks(self._rows)

        def in_blocks(values: Array) -> Tensor:
            padded = np.zeros((count * self._length, columns), np.float32)
            padded[: self._rows] = values
            return torch.from_numpy(padded).to(device).reshape(count, self._length, columns)

        def of_blocks(values: Array) -> Tensor:
            return torch.from_numpy(values.astype(np.float32)).to(device)[:, None]

        zeros = rounded.zero_points
        self._scale = of_blocks(rounded.scales)
        middle = torch.full_like(self._scale, format.middle)
        self._zero = middle if zeros is None else of_blocks(zeros)
        levels = in_blocks(rounded.codes) - self._zero
        self._steps = (in_blocks(weight) / self._scale).clamp(levels - NEAR, levels + NEAR)
        self.offsets = torch.zeros_like(self._steps).requires_grad_()
        # Less 1: of the range below zero and of that above; a symmetric range has one for both.
        ends = 1 if format.symmetric else 2
        self.factors = [torch.zeros_like(self._scale).requires_grad_() for _ in range(ends)]

    def parameter_groups(self, learning_rate: float | None) -> Groups:
        """Return the offsets, and the factors of ranges with a rate of their own."""
        rate = 1 / self._method.iterations if learning_rate is None else learning_rate
        range_rate = self._method.range_learning_rate
        return [([self.offsets], rate), (self.factors, rate if range_rate is None else range_rate)]

    def soft(self) -> dict[str, Tensor]:
        """Return the weight as the model stores it, gradients straight through."""
        codes, scale, zero = self._quantize()
        return {self._name: self._stored(self._as_matrix((codes - zero) * scale))}

    def quantized(self) -> QuantizedBlocks:
        """Return it as codes, scales and zero points."""
        codes, scale, zero = self._quantize()
        grid = BlockScales(scale[:, 0], zero[:, 0])
        codes = self._xp.codes(self._as_matrix(codes))
        return collect(codes, grid, self._format, self._xp)

    def _as_matrix(self, blocks: Tensor) -> Tensor:
        return blocks.reshape(-1, blocks.shape[-1])[: self._rows]

    def _quantize(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return codes, scales and zero points, gradients straight through all roundings."""
        highest, zero = self._format.highest, self._zero
        if self._format.symmetric:
            ratio = 1 + self.factors[0]
        else:
            below, above = (1 + factor for factor in self.factors)
            span = zero * below + (highest - zero) * above
            ratio, zero = span / highest, _ROUND(zero * below * highest / span)
        scale = self._scale * ratio
        stored = usable_scales(scale.detach(), self._format, self._xp)
        scale = scale + (stored - scale.detach())
        codes = (_ROUND(self._steps + self.offsets) + zero).clamp(0, highest)
        return codes, scale, zero
