"""Operators with sliding windows: convolutions, transposed convolutions, pools."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bitwright.learning.torch_graph.attributes import Attributes

_CONV = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSE = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}
_MAX = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AVERAGE = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


def conv(a: Attributes, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """Conv in 1, 2 or 3 dimensions."""
    rank = w.ndim - 2
    strides, dilations = a.integers("strides", rank, 1), a.integers("dilations", rank, 1)
    pads = _pads(a, x, w.shape[2:], strides, dilations)
    begins, ends = pads[:rank], pads[rank:]
    if begins != ends:
        x, begins = _pad(x, begins, ends), [0] * rank
    group = a.integer("group", 1)
    is_depthwise = rank == 2 and 1 < group == x.shape[1] == w.shape[0] and max(dilations) == 1
    if is_depthwise and x.device.type == "cpu" and torch.is_grad_enabled():
        return depthwise_conv(x, w, b, strides, begins)
    return _CONV[rank](x, w, b, strides, begins, dilations, group)


def slide(a: Attributes, x: Tensor, kernel: Sequence[int]) -> Tensor:
    """Return what each place of a Conv sees of its input: (batch, channels, places…, taps…)."""
    rank = len(kernel)
    strides, dilations = a.integers("strides", rank, 1), a.integers("dilations", rank, 1)
    pads = _pads(a, x, kernel, strides, dilations)
    x = _pad(x, pads[:rank], pads[rank:])
    steps = zip(kernel, strides, dilations, strict=True)
    for axis, (taps, stride, dilation) in enumerate(steps, start=2):
        x = x.unfold(axis, (taps - 1) * dilation + 1, stride)[..., ::dilation]
    return x


def conv_transpose(a: Attributes, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """ConvTranspose in 1, 2 or 3 dimensions."""
    rank = w.ndim - 2
    strides, dilations = a.integers("strides", rank, 1), a.integers("dilations", rank, 1)
    extra = a.integers("output_padding", rank)
    # Without padding everything comes out; what `pads` take away is cut off behind.
    y = _TRANSPOSE[rank](x, w, b, strides, 0, extra, a.integer("group", 1), dilations)
    wanted: list[int] | None = a.integers("output_shape") or None
    automatic = a.text("auto_pad", "NOTSET")
    if wanted is None and automatic in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [size * stride for size, stride in zip(x.shape[2:], strides, strict=True)]
    if wanted is None:
        pads = a.integers("pads", 2 * rank)
        return _pad(y, [-p for p in pads[:rank]], [-p for p in pads[rank:]])
    totals = [size - want for size, want in zip(y.shape[2:], wanted[-rank:], strict=True)]
    firsts = [t // 2 if automatic == "SAME_UPPER" else t - t // 2 for t in totals]
    return _pad(y, [-f for f in firsts], [f - t for f, t in zip(firsts, totals, strict=True)])


def max_pool(a: Attributes, x: Tensor) -> Tensor:
    """MaxPool."""
    kernel, strides, dilations = _window(a)
    begins, ends, extra = _pool_pads(a, x, kernel, strides, dilations)
    ends = [end + more for end, more in zip(ends, extra, strict=True)]
    x = _pad(x, begins, ends, -math.inf)
    return _MAX[len(kernel)](x, kernel, strides, 0, dilations)


def average_pool(a: Attributes, x: Tensor) -> Tensor:
    """AveragePool: the mean of what lies inside, or of what lies inside and on the padding."""
    kernel, strides, dilations = _window(a)
    begins, ends, extra = _pool_pads(a, x, kernel, strides, dilations)
    if not any((*begins, *ends, *extra)) and set(dilations) == {1}:
        return _AVERAGE[len(kernel)](x, kernel, strides)
    beyond = [end + more for end, more in zip(ends, extra, strict=True)]
    counted = torch.ones_like(x[:1, :1])
    if a.integer("count_include_pad"):
        counted = _pad(_pad(counted, begins, ends, 1.0), [0] * len(kernel), extra)
    else:
        counted = _pad(counted, begins, beyond)
    sums = _window_sums(_pad(x, begins, beyond), kernel, strides, dilations)
    return sums / _window_sums(counted, kernel, strides, dilations)


# Depthwise convolutions, whose gradients torch computes slowly on a CPU ---------------------------


def depthwise_conv(
    x: Tensor, w: Tensor, b: Tensor | None, strides: list[int], pads: list[int]
) -> Tensor:
    """Return conv2d with one filter for each channel of `x`; gradients in a third of the time."""
    y = _Depthwise.apply(x, w, strides, pads)
    return y if b is None else y + b.reshape(1, -1, 1, 1)


class _Depthwise(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, strides: list[int], pads: list[int]) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.strides, ctx.pads = strides, pads
        return functional.conv2d(x, w, None, strides, pads, 1, x.shape[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, w = ctx.saved_tensors
        to_x = _to_input(ctx, x, w, gradient) if ctx.needs_input_grad[0] else None
        to_w = None
        if ctx.needs_input_grad[1]:
            (top, left), (rows, columns) = ctx.pads, w.shape[2:]
            seen = functional.pad(x, (left, left, top, top))
            seen = seen.unfold(2, rows, ctx.strides[0]).unfold(3, columns, ctx.strides[1])
            to_w = torch.einsum("bchwij,bchw->cij", seen, gradient).reshape(w.shape)
        return to_x, to_w, None, None


def _to_input(ctx: Any, x: Tensor, w: Tensor, gradient: Tensor) -> Tensor:
    beyond = [taps - 1 - pad for taps, pad in zip(w.shape[2:], ctx.pads, strict=True)]
    if list(ctx.strides) == [1, 1] and min(beyond) >= 0:
        # Each input reaches the outputs around it: the same convolution with its filter flipped.
        return functional.conv2d(gradient, w.flip(2, 3), None, 1, beyond, 1, x.shape[1])
    found: Tensor = torch.ops.aten.convolution_backward(
        gradient, x, w, None, ctx.strides, ctx.pads, [1, 1], False, [0, 0], x.shape[1],
        [True, False, False],
    )[0]  # fmt: skip
    return found


# Padding --------------------------------------------------------------------------------------


def _window(a: Attributes) -> tuple[list[int], list[int], list[int]]:
    kernel = a.integers("kernel_shape")
    rank = len(kernel)
    return kernel, a.integers("strides", rank, 1), a.integers("dilations", rank, 1)


def _pad(x: Tensor, begins: Sequence[int], ends: Sequence[int], value: float = 0.0) -> Tensor:
    """Pad the spatial axes; negative numbers cut off."""
    if not any((*begins, *ends)):
        return x
    pairs = zip(reversed(begins), reversed(ends), strict=True)
    return functional.pad(x, list(itertools.chain(*pairs)), value=value)


def _pads(
    a: Attributes,
    x: Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[int]:
    """Return all begins, then all ends, with `auto_pad` worked out for this input."""
    rank = len(kernel)
    automatic = a.text("auto_pad", "NOTSET")
    if automatic not in ("SAME_UPPER", "SAME_LOWER"):
        return a.integers("pads", 2 * rank)
    begins, ends = [], []
    for size, taps, stride, dilation in zip(x.shape[2:], kernel, strides, dilations, strict=True):
        reach = (taps - 1) * dilation + 1
        total = max((math.ceil(size / stride) - 1) * stride + reach - size, 0)
        first = total // 2 if automatic == "SAME_UPPER" else total - total // 2
        begins.append(first)
        ends.append(total - first)
    return begins + ends


def _pool_pads(
    a: Attributes,
    x: Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[list[int], list[int], list[int]]:
    """Return begins, ends, and how far the last window reaches beyond in `ceil_mode`."""
    rank = len(kernel)
    pads = _pads(a, x, kernel, strides, dilations)
    begins, ends, extra = pads[:rank], pads[rank:], [0] * rank
    if a.integer("ceil_mode"):
        for i, size in enumerate(x.shape[2:]):
            padded = size + begins[i] + ends[i]
            reach = (kernel[i] - 1) * dilations[i] + 1
            steps = math.ceil((padded - reach) / strides[i])
            # The last window has to begin on the input or on the padding before it.
            if steps * strides[i] >= size + begins[i]:
                steps -= 1
            extra[i] = max(steps * strides[i] + reach - padded, 0)
    return begins, ends, extra


def _window_sums(
    x: Tensor, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Tensor:
    """Return the sum of each window, by channel."""
    taps: Any = torch.ones(x.shape[1], 1, *kernel, dtype=x.dtype, device=x.device)
    return _CONV[len(kernel)](x, taps, None, strides, 0, dilations, x.shape[1])
