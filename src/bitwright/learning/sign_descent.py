"""Descent by the signs of gradients: every step of a tensor is of one size (needs torch)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["SignDescent"]


class SignDescent:
    """SignSGD (Bernstein et al., 2018, algorithm 1 without momentum), within `limit` of 0.

    `groups` are tensors and their learning rates.

    >>> x = torch.tensor([0.3, -0.5], requires_grad=True)
    >>> optimizer = SignDescent([([x], 0.25)], limit=0.5)
    >>> (x[0] * 1e-9 + x[1] * 1e9).backward()
    >>> optimizer.step()
    >>> x.detach()
    tensor([ 0.0500, -0.5000])
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
