"""Optimizers, without what torch's own load and check for other uses (needs torch)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

BETAS, EPSILON = (0.9, 0.999), 1e-8
"""The settings that its paper tested."""


class Adam:
    """Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, algorithm 1.

    `groups` are tensors and their learning rates.
    """

    def __init__(self, groups: Sequence[tuple[Sequence[torch.Tensor], float]]) -> None:
        self._steps = 0
        self._all = [
            (tensor, rate, torch.zeros_like(tensor), torch.zeros_like(tensor))
            for tensors, rate in groups
            for tensor in tensors
        ]

    def step(self, rate_factor: float = 1.0) -> None:
        """Move every tensor against its gradient at this part of its rate; clear the gradient."""
        self._steps += 1
        first, second = BETAS
        with torch.no_grad():
            for tensor, rate, mean, square in self._all:
                if tensor.grad is None:
                    continue
                mean.lerp_(tensor.grad, 1 - first)
                square.mul_(second).addcmul_(tensor.grad, tensor.grad, value=1 - second)
                root = (square / (1 - second**self._steps)).sqrt_().add_(EPSILON)
                tensor.addcdiv_(mean, root, value=-rate_factor * rate / (1 - first**self._steps))
                tensor.grad = None


class SignDescent:
    """SignSGD (Bernstein et al., 2018, algorithm 1 without momentum), within `limit` of 0.

    `groups` are tensors and their learning rates.
    """

    def __init__(
        self, groups: Sequence[tuple[Sequence[torch.Tensor], float]], *, limit: float
    ) -> None:
        self._all = [(tensor, rate) for tensors, rate in groups for tensor in tensors]
        self._limit = limit

    def step(self, rate_factor: float = 1.0) -> None:
        """Move every tensor against its gradient at this part of its rate; clear the gradient."""
        with torch.no_grad():
            for tensor, rate in self._all:
                if tensor.grad is not None:
                    tensor.add_(tensor.grad.sign_(), alpha=-rate_factor * rate)
                    tensor.clamp_(-self._limit, self._limit)
                    tensor.grad = None
