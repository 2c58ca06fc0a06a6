"""Which kernel a convolution gets by its shape, in float and in integers.

In float, NchwcTransformer (ONNX Runtime's core/optimizer/nchwc_transformer.cc) stores images in
blocks of 16 channels: a Conv of fewer input channels reads them as they are, one of more wants a
multiple of 4, groups want a multiple of 16 each (or are depthwise). All else gathers its windows
into columns (im2col) for a product of matrices. In integers there are kernels for one group whose
channels are multiples of 4, at least 16 of them written, and for a depthwise convolution of a
multiple of 16 channels (MlasConvSymPackWSize, core/mlas/lib/convsym.cpp); all else uses columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import onnx_ir as ir

from bitwright.decide.ops.channel_ties import ChannelTies, Convolved
from bitwright.decide.ops.integer_kernels import (
    averages_whole_windows,
    has_dense_kernel,
    has_depthwise_kernel,
    is_depthwise,
    is_faster_dense,
)
from bitwright.decide.placement.shapes import shape_of, sizes_of
from bitwright.targets.costs import Work

BLOCK = 16
"""Channels that lie side by side in an image in blocks."""


class _Convolution(NamedTuple):
    """The sizes of a Conv that the conditions of kernels ask for."""

    inputs: int
    """Channels read by one group."""
    outputs: int
    """Channels written by all groups."""
    group: int
    window: int
    """Weights for one channel read: 9 for 3x3."""
    axes: int
    """Dimensions of the image: 2."""
    places: int
    """Pixels written, of all images."""
    slides: bool
    """Whether windows are wider than a pixel, or there are pads."""
    read: int
    written: int
    weights: int

    @property
    def channels(self) -> int:
        return self.inputs * self.group

    @property
    def depthwise(self) -> bool:
        return is_depthwise(self.group, self.channels, self.outputs)

    @property
    def is_faster_dense(self) -> bool:
        return is_faster_dense(self.group, self.channels, self.outputs)

    def padded(self, channels: int, outputs: int) -> _Convolution:
        """Return it with channels of zeros."""
        return self._replace(
            inputs=1 if self.depthwise else channels,
            group=outputs if self.depthwise else 1,
            outputs=outputs,
            read=self.read * channels // max(self.channels, 1),
            written=self.written * outputs // max(self.outputs, 1),
        )

    @property
    def fits_blocks(self) -> bool:
        return self.inputs % BLOCK == 0 and self.outputs // self.group % BLOCK == 0


def _of(node: ir.Node) -> _Convolution | None:
    """Return a Conv, or an average over whole windows as the Conv that it is written as."""
    result, sizes = shape_of(node.outputs[0]), sizes_of(node)
    if node.op_type == "AveragePool":
        windows = node.attributes.get_ints("kernel_shape", ())
        known = result is not None and len(result) > 2 and averages_whole_windows(node)
        weight = (result[1], 1, *windows) if known and result else None
    else:
        weight = shape_of(node.inputs[1])
    if weight is None or result is None or sizes is None or len(weight) < 3:
        return None
    window, is_pool = math.prod(weight[2:]), node.op_type == "AveragePool"
    return _Convolution(
        inputs=weight[1],
        outputs=weight[0],
        group=weight[0] if is_pool else node.attributes.get_int("group", 1),
        window=window,
        axes=len(weight) - 2,
        places=math.prod(result) // max(result[1], 1),
        slides=window > 1 or any(node.attributes.get_ints("pads", ())),
        read=sizes.read,
        written=sizes.written,
        weights=math.prod(weight),
    )


_Count = Callable[[_Convolution], Work]
_Row = tuple[Callable[[_Convolution], bool], _Count]


def _up(count: int, step: int) -> int:
    return -(-count // step) * step


def _blocks(kernel: str) -> _Count:
    """Count whole blocks of channels, which is what such a kernel computes."""
    return lambda c: Work(
        kernel,
        c.places * _up(c.outputs, BLOCK) * c.inputs * c.window,
        c.read + c.weights,
        c.written,
    )


def _columns(kernel: str, step: int = 1) -> _Count:
    """Count the columns as read, since gathering them takes much of the time.

    A product for each group computes its channels in steps.
    """
    return lambda c: Work(
        kernel,
        c.places * c.group * _up(c.outputs // c.group, step) * c.inputs * c.window,
        c.places * c.inputs * c.group * c.window + c.weights,
        c.written,
    )


def _dense(kernel: str) -> _Count:
    """Count one group, with the zeros between the groups written out."""
    return lambda c: Work(
        kernel,
        c.places * _up(c.outputs, BLOCK) * c.inputs * c.group * c.window,
        c.read + c.weights * c.group,
        c.written,
    )


# The first condition that holds decides.
_FLOAT: tuple[_Row, ...] = (
    (lambda c: c.axes == 2 and c.depthwise and c.outputs % 4 == 0, _blocks("conv_depthwise")),
    (lambda c: c.axes == 2 and c.group > 1 and c.fits_blocks, _blocks("conv_grouped")),
    (lambda c: c.group > 1, _columns("conv_columns_grouped")),
    (lambda c: c.axes == 2 and c.inputs < BLOCK, _blocks("conv_few_channels")),
    (lambda c: c.axes != 2 or c.inputs % 4 > 0, _columns("conv_columns")),
    (lambda c: c.slides, _blocks("conv_blocked")),
    (lambda c: True, _blocks("conv_pointwise")),
)


_INTEGER: tuple[_Row, ...] = (
    (lambda c: c.depthwise and has_depthwise_kernel(c.outputs), _blocks("qconv_depthwise")),
    (lambda c: c.depthwise, _columns("qconv_depthwise_plain")),
    (lambda c: c.group > 1, _columns("qconv_columns_grouped", BLOCK)),
    (lambda c: c.inputs < 4, _columns("qconv_few_channels", BLOCK)),
    (lambda c: not has_dense_kernel(c.inputs, c.outputs), _columns("qconv_columns", BLOCK)),
    (lambda c: c.slides, _dense("qconv")),
    (lambda c: True, _dense("qconv_pointwise")),
)


def float_convolution(node: ir.Node) -> Work | None:
    """Return the work of a Conv in the prepared float model; None: shapes are not known."""
    conv = _of(node)
    work = _first(_FLOAT, conv)
    if work is None or conv is None or conv.places == 1:
        return work
    return work._replace(weights=conv.weights)


def integer_convolution(node: ir.Node, ties: ChannelTies | None = None) -> Work | None:
    """Return the work of a Conv, or of an average, in integers, as it is written.

    `ties` say how many channels it is padded to; without, it has those of the model.
    """
    conv = _of(node)
    if conv is not None and conv.is_faster_dense:
        conv = conv.padded(conv.channels, conv.outputs)
    if conv is not None and ties is not None and (conv.group == 1 or conv.depthwise):
        columns, rows = (ties.size(value) for value in (node.inputs[0], node.outputs[0]))
        conv = conv.padded(columns or conv.channels, rows or conv.outputs)
    return _first(_INTEGER, conv)


def channel_ties(nodes: Iterable[ir.Node]) -> ChannelTies:
    """Return to how many channels the tensors of a float model are padded in integers."""
    return ChannelTies.of_nodes(nodes, _convolved)


def _convolved(node: ir.Node) -> Convolved | None:
    conv = _of(node) if node.op_type in ("Conv", "AveragePool") else None
    if conv is None:
        return None
    return Convolved(1 if conv.is_faster_dense else conv.group, conv.channels, conv.outputs)


def transposed_convolution(node: ir.Node) -> Work | None:
    """Return the work of a ConvTranspose, which runs in float: a product, added up in columns."""
    sizes, source, weight = sizes_of(node), shape_of(node.inputs[0]), shape_of(node.inputs[1])
    if sizes is None or source is None or weight is None:
        return None
    macs = math.prod(source) * math.prod(weight[1:])
    return Work("conv_transpose", macs, macs // max(weight[0], 1), sizes.written)


def _first(rows: tuple[_Row, ...], convolution: _Convolution | None) -> Work | None:
    if convolution is None:
        return None
    return next(count(convolution) for fits, count in rows if fits(convolution))
