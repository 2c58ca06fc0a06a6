"""High-bias absorption: the part of a bias that is never rectified moves into the next layer.

M. Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (2019,
arXiv:1906.04721), section 4.1.3: for a ReLU f, f(W1 x + b1 - c) = f(W1 x + b1) - c wherever
W1 x + b1 >= c >= 0, so that c may leave the first bias, and W2 c join the second. The activation
between gets a smaller range. There, c is max(0, beta - 3 gamma) of a batch norm, which exported
models have folded; here it is the least value that was observed, less a tenth of the range for
values that no sample had: exact on all that was seen. Where a Conv pads with zeros, its border
would have to be padded with -c: it is left.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import OPERATORS
from bitwright.equalize.cle_chains import Link, find_chains
from bitwright.equalize.shifting import Shift
from bitwright.plan import Smoothing
from bitwright.support.array_types import F32, F64

_MARGIN = 0.1
"""Margin below the observed minimum of a channel, as a share of its range."""


class Channels(Protocol):
    """Extremes and means of the channels of a tensor; `bitwright.observe.TensorSketch` has them."""

    channel_low: F32 | None
    channel_high: F32 | None

    @property
    def channel_mean(self) -> F64 | None:
        """The mean of each channel, where it was observed."""


@dataclass(frozen=True, slots=True)
class AbsorptionPoint:
    """Two layers with a rectifier between them: bias can move from the first to the second."""

    link: Link
    axis: int
    """Where the channels of what the rectifier reads are."""

    @property
    def reader(self) -> str:
        """The name of the second layer."""
        return self.link.tail.node.name or ""


def find_absorption_points(
    model: ir.Model, nodes: Collection[str] | None = None
) -> dict[str, AbsorptionPoint]:
    """Return each tensor before a rectifier whose least values the next layer can absorb.

    With `nodes` the next layer is one of these.
    """
    chains = find_chains(model)
    links = (*chains.links, *(link for triple in chains.triples for link in triple))
    points = {}
    for link in links:
        source = _rectified(link)
        wanted = nodes is None or link.tail.node.name in nodes
        if source is None or not source.name or not wanted:
            continue
        point = AbsorptionPoint(link, 1 if link.head.is_conv else -1)
        if find_absorption(point, np.ones(link.head.out_channels)) is not None:
            points[source.name] = point
    return points


def absorption_for(
    points: Mapping[str, AbsorptionPoint], sketches: Mapping[str, Channels]
) -> dict[str, Smoothing]:
    """Return the bias that moves at each point: the minimum of each channel above zero."""
    found = {}
    for tensor, point in points.items():
        sketch = sketches.get(tensor)
        if sketch is None or sketch.channel_low is None or sketch.channel_high is None:
            continue
        low, high = (end.astype(np.float64) for end in (sketch.channel_low, sketch.channel_high))
        least = np.where(low <= high, np.maximum(low - _MARGIN * (high - low), 0.0), 0.0)
        least = least.astype(np.float32)  # so that the plan gives the same bytes
        if least.size == point.link.head.out_channels and least.any():
            found[tensor] = Smoothing(nodes=(point.reader,), absorbed=tuple(least.tolist()))
    return found


def find_absorption(point: AbsorptionPoint, absorbed: F64) -> Shift | None:
    """Return the edits that move an amount of each channel from the first bias to the second.

    None where that cannot be: where there are not as many channels, or no place for a bias.
    """
    link, shift = point.link, Shift()
    scaled = link.head.node.attributes.get_float("beta", 1.0) != 1
    if absorbed.size != link.head.out_channels or scaled:
        return None
    if link.additions:
        first = link.additions[0]
        shift.add((first.node, first.index), -absorbed.reshape(first.shape))
    elif link.head.node.op_type != "MatMul":
        shift.add((link.head.node, 2), -absorbed)
    else:
        return None
    complete = shift.read_by(link.tail.node, absorbed.repeat(link.inputs_per_channel))
    return shift if complete and shift.fits() else None


# Which layers ---------------------------------------------------------------------------------


def _nodes_between(link: Link) -> Iterator[ir.Node]:
    value = link.head.node.outputs[0]
    while (node := next(iter(value.uses())).node) is not link.tail.node:
        yield node
        value = node.outputs[0]


def _rectified(link: Link) -> ir.Value | None:
    """Return what the first rectifier between two layers reads, if all behind it passes a shift."""
    found: ir.Value | None = None
    for node in _nodes_between(link):
        if found is None and node.op_type == "Add":
            continue
        rule = OPERATORS.get(node.op_type)
        if rule is None or not _passes_shift(node):
            return None
        if found is None and rule.activation is not None:
            found = node.inputs[0]
    return found


def _passes_shift(node: ir.Node) -> bool:
    """Return whether a node of a chain gives x - c for x - c, where it gives x for x >= c >= 0."""
    rule = OPERATORS[node.op_type]
    if rule.bounds is not None:
        return rule.bounds(node) == (0.0, math.inf)
    if rule.pool:  # zeros that are counted in an average are no -c
        return not node.attributes.get_int("count_include_pad", 0)
    return rule.homogeneous or rule.reshapes or node.op_type == "ReduceMean"
