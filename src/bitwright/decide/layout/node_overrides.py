"""Overrides of nodes: which node gets what, and the types that tensors between them have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from bitwright.decide.layout.entries import Layout
from bitwright.decide.layout.selection import Selector
from bitwright.decide.ops import RULES, rule_of
from bitwright.errors import RecipeError
from bitwright.graph.constants import is_constant, maker_of
from bitwright.numerics.types import QType
from bitwright.recipe import Override, Recipe


def find_node_overrides(recipe: Recipe, selector: Selector) -> dict[str, Override]:
    """Return what each node gets: by its op type, then patterns, its module, and its own name.

    What the latter say counts before the former, field by field; of two patterns, the later one.
    """
    found: dict[str, Override] = {}
    given = [(name, override) for name, override in recipe.overrides.items() if override.for_nodes]
    for name, override in sorted(given, key=lambda item: selector.rank(item[0])):
        for node in selector.find((name,), "overrides"):
            try:
                found[node] = found.get(node, Override()).merged(override)
            except RecipeError as error:
                raise RecipeError(f"overrides of node {node!r}: {error}") from error
    return found


@dataclass(frozen=True, slots=True)
class TypeMap:
    """The types of activations, where some nodes have types of their own."""

    read: Mapping[str, QType] = field(default_factory=dict)
    """Node -> the type of the activations that it reads."""
    stored: Mapping[str, QType] = field(default_factory=dict)
    """Tensor -> the type of its first pair."""


def spread_types(
    layout: Layout, nodes: Sequence[ir.Node], asked: Mapping[str, QType], default: QType
) -> TypeMap:
    """Return the types of all tensors and nodes of a layout, by what some nodes ask for.

    A tensor has the widest type of those who write and read it, so that no node reads what was
    rounded to less than it asks for. What only moves or clips values reads what it writes, and a
    clip that asks for nothing is of the type of the node before it, with which it is computed.
    """
    plans = {name: plan for name, plan in layout.nodes.items() if plan.action == "quantize"}
    read = {name: asked.get(name, default) for name in plans}
    for node in nodes:
        if node.name in plans and node.name not in asked and _clips(node):
            maker = maker_of(node.inputs[0])
            if maker is not None and maker.name in read:
                read[node.name] = _widest((default, _written_type(maker, layout, read)))
    readers: dict[str, list[str]] = {}
    for name, plan in plans.items():
        for key in plan.inputs:
            if key is not None and layout.entries[key].role == "activation":
                readers.setdefault(layout.entries[key].name, []).append(name)
    stored: dict[str, QType] = {}
    # Backwards, so that the readers of a tensor are known before the node that writes it.
    for node in reversed(nodes):
        name = node.name or ""
        if name not in plans:
            continue
        results = [layout.entries[key].name for key in plans[name].outputs if key is not None]
        for tensor in results:
            wanted = (
                _written_type(node, layout, read),
                *(read[r] for r in readers.get(tensor, ())),
            )
            stored[tensor] = _widest(wanted)
        if results and (rule_of(node.op_type).keeps_scale_of(node) or _clips(node)):
            read[name] = _widest((read[name], *(stored[tensor] for tensor in results)))
    for tensor, names in readers.items():
        stored.setdefault(tensor, _widest(read[name] for name in names))
    return TypeMap(read, stored)


def _clips(node: ir.Node) -> bool:
    return node.op_type in RULES and RULES[node.op_type].bounds is not None


def _written_type(node: ir.Node, layout: Layout, read: Mapping[str, QType]) -> QType:
    """Return the type of a node, and of those before it without a pair between, as of a product."""
    types = [read[node.name or ""]]
    for value in node.inputs:
        maker = None if value is None or is_constant(value) else value.producer()
        plan = None if maker is None else layout.nodes.get(maker.name or "")
        if maker is not None and plan is not None and plan.quantized and not any(plan.outputs):
            types.append(_written_type(maker, layout, read))
    return _widest(types)


def _widest(types: Iterable[QType]) -> QType:
    """Return the type of most bits, the first of several."""
    return max(types, key=lambda qtype: qtype.bits)
