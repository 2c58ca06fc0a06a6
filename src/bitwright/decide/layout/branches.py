"""The branches of a network: what lies between a tensor and the sum that its result is added in.

A transformer adds to one stream what each attention and each feed-forward network makes of it.
How much a weight matters shows where its branch joins that stream, and not at its own product.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from bitwright.graph import input_at, reach

_SUMS = {"Add", "Sum", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"}
_ATTENTIONS = {"Attention", "GroupQueryAttention", "MultiHeadAttention", "PagedAttention"}
# Which input of these operators holds the values.
_VALUES = 2


@dataclass(frozen=True, slots=True)
class Branch:
    """Products whose results meet in one sum with what they have read."""

    join: str
    """The node that adds them."""
    products: tuple[str, ...]
    """In the order of the graph."""
    is_attention: bool
    values: tuple[str, ...]
    """Of an attention, the products that make what it averages."""

    @property
    def last(self) -> str:
        """The product whose result is added."""
        return self.products[-1]


def find_branches(model: ir.Model, products: Iterable[str]) -> list[Branch]:
    """Return the branches that these nodes of the main graph are in, in the graph's order.

    Products that no sum adds to what they read, such as a head, are in none.
    """
    places = {node: place for place, node in enumerate(model.graph)}
    wanted = set(products)
    found: dict[ir.Node, list[tuple[ir.Node, dict[ir.Node, None]]]] = {}
    for node in places:
        if (node.name or "") in wanted:
            behind = _behind(node, places)
            join = _join(node, behind)
            if join is not None:
                found.setdefault(join, []).append((node, behind))
    return [
        _branch(join, found[join], places) for join in sorted(found, key=lambda node: places[node])
    ]


def _branch(
    join: ir.Node, members: list[tuple[ir.Node, dict[ir.Node, None]]], places: dict[ir.Node, int]
) -> Branch:
    inside = {n for _, behind in members for n in behind if places[n] < places[join]}
    mixes = any(node.op_type in _ATTENTIONS or node.op_type == "Softmax" for node in inside)
    values = [
        node.name or "" for node, _ in members[:-1] if mixes and _reaches_as_value(node, join)
    ]
    return Branch(
        join.name or "", tuple(node.name or "" for node, _ in members), mixes, tuple(values)
    )


def _behind(node: ir.Node, places: dict[ir.Node, int]) -> dict[ir.Node, None]:
    """Return what depends on a node, in the graph's order."""
    found = reach(_readers(node, places), lambda reader: _readers(reader, places))
    return dict.fromkeys(sorted(found, key=lambda reader: places[reader]))


def _readers(node: ir.Node, places: dict[ir.Node, int]) -> list[ir.Node]:
    return [r for value in node.outputs for r in value.consumers() if r in places]


def _join(node: ir.Node, behind: dict[ir.Node, None]) -> ir.Node | None:
    """Return the first sum behind a product with something that the product has read."""
    read = _ancestors(node)
    for later in behind:
        if later.op_type in _SUMS and any(value in read for value in later.inputs):
            return later
    return None


def _ancestors(node: ir.Node) -> set[ir.Value]:
    """Return the tensors that a node depends on, without constants."""

    def computed(maker: ir.Node | None) -> list[ir.Value]:
        given = () if maker is None else maker.inputs
        return [value for value in given if value is not None and not value.is_initializer()]

    return {*reach(computed(node), lambda value: computed(value.producer()))}


def _reaches_as_value(node: ir.Node, join: ir.Node) -> bool:
    """Whether a product gets to the end of an attention other than as a weight of its average."""

    def passed_on(maker: ir.Node) -> list[ir.Node]:
        uses = (use for value in maker.outputs for use in value.uses())
        return [use.node for use in uses if use.node is join or not _weighs(use.node, use.idx)]

    return join in reach([node], passed_on)


def _weighs(node: ir.Node, index: int) -> bool:
    """Whether an input of a node only says how much of the values counts."""
    if node.op_type in _ATTENTIONS:
        # Values may be packed with the queries.
        return index != _VALUES and input_at(node, _VALUES) is not None
    return node.op_type == "Softmax"
