"""Find the consecutive layers that cross-layer equalization can rescale.

A channel that a layer writes may be multiplied by s > 0 if everything up to the next layer passes
the factor on, f(s x) = s f(x), and the next layer divides by it. So the path from one layer to the
next allows only nodes that keep channels apart and are positively homogeneous, and tensors that
nobody else reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import LINEAR_OPS, op_types
from bitwright.decide.ops.linear import LinearNode
from bitwright.graph import constant_of, float_constant_of, input_at, is_private, iter_graphs
from bitwright.support.array_types import F64, Array

_HOMOGENEOUS = op_types(lambda op: op.homogeneous)
_POOLS = op_types(lambda op: op.pool)


@dataclass(frozen=True, slots=True)
class Addition:
    """A constant input of a node that holds one number for each channel, or one for all."""

    node: ir.Node
    index: int
    array: Array
    shape: tuple[int, ...]
    """The shape of one number for each channel, as the node reads it."""

    def per_channel(self) -> F64:
        """Return the number that each channel gets."""
        flat = self.array.reshape(-1).astype(np.float64)
        return np.broadcast_to(flat, (math.prod(self.shape),))


@dataclass(frozen=True, slots=True, eq=False)
class Layer(LinearNode):
    """A linear node whose weight no other node reads."""

    bias: Addition | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """Two layers of which only the second reads what the first writes."""

    head: Layer
    tail: Layer
    additions: tuple[Addition, ...]
    """Constants added on the way, the head's own bias first."""
    inputs_per_channel: int
    """How many inputs of the tail each channel has become: more than 1 behind a Flatten."""


@dataclass(frozen=True, slots=True)
class Chains:
    """What can be equalized, and why nothing else can."""

    layers: tuple[Layer, ...]
    """Every product that could be changed, in the order of the graph."""
    links: tuple[Link, ...]
    triples: tuple[tuple[Link, Link], ...]
    """Links into and out of a depthwise layer; they are not among `links`."""
    refused: Mapping[str, str]
    """Name of a layer -> why no link starts at it."""


def find_chains(model: ir.Model) -> Chains:
    """Return the layers in a row that can be equalized."""
    layers: dict[ir.Node, Layer] = {}
    refused: dict[str, str] = {}
    nodes = (node for _, graph in iter_graphs(model) for node in graph if not node.domain)
    for node in (node for node in nodes if node.op_type in LINEAR_OPS):
        found = _read_layer(node)
        if isinstance(found, Layer):
            layers[node] = found
        else:
            refused[node.name or ""] = found
    from_head: dict[Layer, Link] = {}
    for node, layer in layers.items():
        link = _follow(layer, layers)
        if isinstance(link, Link):
            from_head[layer] = link
        else:
            refused[node.name or ""] = link
    triples = []
    for first in tuple(from_head.values()):
        second = from_head.get(first.tail)
        if second is None or first.head not in from_head or not first.tail.is_depthwise:
            continue
        if first.head.group == 1 and second.tail.group == 1:
            triples.append((first, second))
            del from_head[first.head], from_head[first.tail]
    return Chains(tuple(layers.values()), tuple(from_head.values()), tuple(triples), refused)


def _read_layer(node: ir.Node) -> Layer | str:
    """Return a product as a layer, or why it cannot be changed."""
    value = node.inputs[1]
    weight = float_constant_of(value)
    if weight is None or value is None:
        return "its weight is computed at run time"
    if not is_private(value):
        return "its weight is shared with another node"
    if weight.dtype not in (np.float32, np.float64):
        return f"its weight is {weight.dtype.name}, in which scaling would lose digits"
    layer = Layer(node, weight)
    if not layer.is_well_formed:
        return f"its weight has the shape {list(weight.shape)}"
    if node.op_type == "MatMul" or input_at(node, 2) is None:
        return layer
    bias = float_constant_of(node.inputs[2])
    if bias is None:
        return "its bias is computed at run time"
    added = _addition_to(node, 2, bias, layer.out_channels, rank=2, axis=1)
    if added is None:
        return "its bias differs within a channel"
    return Layer(node, weight, added)


# The way to the next layer ------------------------------------------------------------------


@dataclass(slots=True)
class _Place:
    """Where the channels of a tensor are on the way from one layer to the next."""

    channels: int
    axis: int
    rank: int | None
    """None: unknown, with the channels on the last axis."""
    is_flat: bool = False
    """Whether the axis holds all numbers of the first channel, then all of the second, ..."""

    @property
    def is_last(self) -> bool:
        return self.rank is None or self.axis == self.rank - 1


def _follow(head: Layer, layers: Mapping[ir.Node, Layer]) -> Link | str:
    """Return the link from a layer to the next one, or why there is none."""
    value = head.node.outputs[0]
    place = _place_behind(head)
    additions = [] if head.bias is None else [head.bias]
    while True:
        if value.is_graph_output():
            return f"{value.name!r} is an output of the model"
        uses = tuple(value.uses())
        if len(uses) != 1:
            return f"{value.name!r} is read {len(uses)} times"
        node, index = uses[0].node, uses[0].idx
        if node.graph is not head.node.graph:
            return f"{value.name!r} is read inside a branch or loop"
        tail = layers.get(node)
        if tail is not None and index == 0:
            return _meet(head, tail, place, tuple(additions))
        added = _addition(node, index, place)
        if added is not None:
            additions.append(added)
        elif not _passes(node, index, place):
            return f"{node.op_type} {node.name!r} does not pass a factor of each channel on"
        value = node.outputs[0]


def _place_behind(layer: Layer) -> _Place:
    if layer.node.op_type != "MatMul":
        return _Place(layer.out_channels, 1, layer.weight.ndim)
    shape = layer.node.outputs[0].shape
    rank = None if shape is None else len(shape)
    return _Place(layer.out_channels, -1 if rank is None else rank - 1, rank)


def _meet(head: Layer, tail: Layer, place: _Place, additions: tuple[Addition, ...]) -> Link | str:
    name = f"{tail.node.op_type} {tail.node.name!r}"
    on_channels = tail.is_conv != place.is_last
    if not on_channels or tail.node.attributes.get_int("transA", 0) != 0:
        return f"{name} does not read its channels as its inputs"
    inputs_per_channel, rest = divmod(tail.in_channels, place.channels)
    if rest or (inputs_per_channel > 1 and not place.is_flat):
        return (
            f"{name} reads {tail.in_channels} inputs, which are not its {place.channels} channels"
        )
    return Link(head, tail, additions, inputs_per_channel)


def _addition(node: ir.Node, index: int, place: _Place) -> Addition | None:
    """Return the constant that a node adds to each channel of what it reads."""
    if node.domain or node.op_type != "Add" or place.is_flat:
        return None
    array = float_constant_of(node.inputs[1 - index])
    if array is None:
        return None
    rank = 1 if place.rank is None else place.rank
    axis = 0 if place.rank is None else place.axis
    return _addition_to(node, 1 - index, array, place.channels, rank=rank, axis=axis)


def _addition_to(
    node: ir.Node, index: int, array: Array, channels: int, *, rank: int, axis: int
) -> Addition | None:
    """Return a constant as what is added along an axis, unless it varies along another."""
    full = (1,) * (rank - array.ndim) + array.shape
    if len(full) != rank or array.size not in (1, channels) or array.size != full[axis]:
        return None
    per_channel = array.shape if array.size == channels else (channels,) + (1,) * (rank - 1 - axis)
    return Addition(node, index, array, per_channel)


def _passes(node: ir.Node, index: int, place: _Place) -> bool:
    """Return whether a node passes positive factors of the channels on; follow them if it does."""
    if node.domain:
        return False
    op_type = node.op_type
    if op_type == "Mul":
        factor = float_constant_of(node.inputs[1 - index])
        return factor is not None and factor.size == 1 and factor.ndim <= 1
    if index != 0:
        return False
    if op_type in _HOMOGENEOUS:
        return True
    if op_type == "Dropout":
        training = constant_of(input_at(node, 2))
        return not training.any() if training is not None else input_at(node, 2) is None
    if op_type == "Clip":
        return _has_homogeneous_bounds(node)
    if op_type in _POOLS:
        return not place.is_last
    if op_type in ("ReduceMean", "Squeeze"):
        keeps = op_type == "ReduceMean" and bool(node.attributes.get_int("keepdims", 1))
        return _drops_space(node, place, keeps=keeps)
    if op_type == "Pad":
        return _pads_around_channels(node, place)
    if op_type in ("Flatten", "Reshape"):
        return _flattens(node, place)
    return False


def _has_homogeneous_bounds(node: ir.Node) -> bool:
    """Return whether each bound of a Clip is 0 or none: others would need one for each channel."""
    if not {"min", "max"}.isdisjoint(node.attributes):
        return False  # written for opset 10 or older
    for index, direction in ((1, -1.0), (2, 1.0)):
        if input_at(node, index) is None:
            continue
        bound = float_constant_of(node.inputs[index])
        if bound is None or bound.size != 1:
            return False
        number = float(bound.reshape(()))
        if number != 0 and number * direction < float(np.finfo(np.float32).max):
            return False
    return True


def _pads_around_channels(node: ir.Node, place: _Place) -> bool:
    """Return whether a Pad adds zeros, or what it finds at the edge, but no channels."""
    pads = constant_of(input_at(node, 1))
    axes = _axes(node, 3, place)
    if pads is None or axes is None or place.rank is None:
        return False
    value = input_at(node, 2)
    if node.attributes.get_string("mode", "constant") == "constant" and value is not None:
        filling = constant_of(value)
        if filling is None or filling.any():
            return False
    concerned = np.array(axes or range(place.rank))
    return not pads.reshape(2, -1)[:, concerned == place.axis].any()


def _axes(node: ir.Node, index: int, place: _Place) -> list[int] | None:
    """Return the axes that a node names, counted from the front; empty: it names none."""
    axes: list[int] = list(node.attributes.get_ints("axes", []))
    if input_at(node, index) is not None:
        given = constant_of(node.inputs[index])
        if given is None:
            return None
        axes = [int(axis) for axis in given.reshape(-1)]
    if place.rank is None:
        return None if any(axis < 0 for axis in axes) else axes
    return [axis % place.rank for axis in axes]


def _drops_space(node: ir.Node, place: _Place, *, keeps: bool) -> bool:
    """Return whether a node concerns axes behind the channels only; count those that it drops."""
    axes = _axes(node, 1, place)
    if not axes or place.rank is None or min(axes) <= place.axis:
        return False
    place.rank -= 0 if keeps else len(axes)
    return True


def _flattens(node: ir.Node, place: _Place) -> bool:
    """Return whether (batch, channel, space...) becomes (batch, channel x space)."""
    if place.axis != 1:
        return False
    is_flatten = node.op_type == "Flatten"
    keeps_rows = node.attributes.get_int("axis", 1) == 1 if is_flatten else _keeps_rows(node)
    if keeps_rows:
        place.is_flat, place.rank = True, 2
    return keeps_rows


def _keeps_rows(node: ir.Node) -> bool:
    """Return whether a Reshape makes one row of each member of the batch."""
    wanted, source = constant_of(node.inputs[1]), node.inputs[0]
    if wanted is None or wanted.size != 2 or node.attributes.get_int("allowzero", 0) != 0:
        return False
    rows, width = (int(size) for size in wanted.reshape(-1))
    if rows == 0 or source is None or source.shape is None:
        return rows == 0
    batch, *others = source.shape
    if isinstance(batch, int) and rows == batch:
        return True
    known = [size for size in others if isinstance(size, int)]
    return len(known) == len(others) and width == math.prod(known)
