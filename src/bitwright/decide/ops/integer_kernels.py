"""The shapes at which ONNX Runtime's integer convolutions are fast on x86.

The conditions stand in `onnxruntime/core/mlas/lib/convsym.cpp` (`MlasConvSymPackWSize`): kernels
without im2col take convolutions of one group with a multiple of 4 input channels, and at least 16
and a multiple of 4 output channels; or depthwise ones with a multiple of 16 channels. All others
copy patches (im2col) and multiply them group by group: `core/providers/cpu/quantization/
qlinearconv.cc`. The numbers here were measured with ONNX Runtime 1.31.1, AVX-512 VNNI, one thread.
"""

from __future__ import annotations

import onnx_ir as ir

_GROUP_OVERHEAD = 1600
"""Multiply-adds at the speed of a group's product that its im2col and call take a pixel and tap."""

_DENSE_COST = 0.8
"""Time of a multiply-add of the dense kernel, over that of a group's product.

Both fit 3x3 convolutions of 32 to 512 channels with 2 to 64 channels a group: time dense / grouped
.13 for 64 channels, 4 a group; .74 for 128, 16 a group; .83 for 256, 8 a group; 1.4 for 256, 16.
"""

_MAX_PADDING = 1.36
"""Channels after padding over those before it, above which the zeros cost as much as they save."""

_MAX_DEPTHWISE_PADDING = 1.9
"""The same beside a depthwise convolution: 18 channels between 24 and 24 took .49 as 32."""

_SHUFFLE_MACS = 700
"""Multiply-adds of the dense kernel that take as long as to shuffle a channel of a pixel of bytes.

Units of ShuffleNetV2 with their shuffle as zeros took .47 to .57 of the time with 120 channels, .64
with 240, .74 with 464, .88 with 720 and 1.0 with 960, where the zeros are .75 times the channels'
square.
"""


def is_depthwise(group: int, channels_in: int, channels_out: int) -> bool:
    """Return whether a convolution has one filter a channel, which has a kernel of its own."""
    return group == channels_in == channels_out and group > 1


def has_depthwise_kernel(channels: int) -> bool:
    """Return whether a depthwise convolution of these channels is computed without im2col.

    >>> has_depthwise_kernel(96), has_depthwise_kernel(72)
    (True, False)
    """
    return channels % 16 == 0


def has_dense_kernel(channels_in: int, channels_out: int) -> bool:
    """Return whether a convolution of one group is computed without im2col.

    >>> has_dense_kernel(4, 16), has_dense_kernel(3, 16), has_dense_kernel(16, 12)
    (True, False, False)
    """
    return channels_in % 4 == 0 and channels_out % 4 == 0 and channels_out >= 16


def averages_whole_windows(pool: ir.Node) -> bool:
    """Return whether an AveragePool has no pads, so that it is a depthwise convolution of ones.

    >>> averages_whole_windows(ir.node("AveragePool", [ir.val("x")], {"kernel_shape": [2, 2]}))
    True
    """
    rounded = pool.attributes.get_int("ceil_mode", 0)
    padded = any(pool.attributes.get_ints("pads", ()) or ())
    auto = pool.attributes.get_string("auto_pad", "NOTSET")
    return not rounded and not padded and auto in ("NOTSET", "VALID")


def is_faster_dense(group: int, channels_in: int, channels_out: int) -> bool:
    """Return whether a grouped integer convolution is faster with the zeros between groups stored.

    >>> is_faster_dense(32, 128, 128), is_faster_dense(2, 128, 128), is_faster_dense(64, 64, 64)
    (True, False, False)
    """
    if group < 2 or is_depthwise(group, channels_in, channels_out):
        return False
    dense = channels_in * channels_out
    grouped = group * (_GROUP_OVERHEAD + dense / group**2)
    return _DENSE_COST * dense < grouped


def is_faster_unshuffled(channels: int, zeros: int) -> bool:
    """Return whether a channel shuffle is slower than the zeros that readers multiply instead.

    These are the multiply-adds of one pixel, by all that read the channels.

    >>> is_faster_unshuffled(232, 3 * 116 * 116), is_faster_unshuffled(976, 3 * 488 * 488)
    (True, False)
    """
    return zeros <= _SHUFFLE_MACS * channels


def padded_channels(channels: int, *, depthwise: bool) -> int:
    """Return with how many channels a tensor between integer convolutions is read fastest.

    `depthwise` says that a depthwise convolution reads or writes it. The number itself comes back
    where zeros would gain nothing, or more of them would be needed than they are worth.
    """
    sixteens, fours = -(-channels // 16) * 16, -(-channels // 4) * 4
    if depthwise and sixteens <= _MAX_DEPTHWISE_PADDING * channels:
        return sixteens
    wanted = (max(fours, 16), fours)  # fewer than 16 outputs have no kernel, but 4 inputs do
    return next((count for count in wanted if count <= _MAX_PADDING * channels), channels)
