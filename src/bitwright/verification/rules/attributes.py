"""Attributes of operators: what they may be, alone and together."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import onnx_ir as ir

from bitwright.decide.ops.quantized_view import QuantizedView
from bitwright.graph.constants import input_at
from bitwright.recipe import Recipe
from bitwright.verification.rules.rule import Ask, Breaches, Changes, Rule


class Attributes(Rule, frozen=True, kw_only=True):
    """What attributes of some operators may be.

    * `attribute_values`: the `attribute` has one of the `values`, as has each of its numbers;
    * `odd_values`: the `attribute` is an odd number;
    * `attribute_sets`: of nodes `when` some attributes have these values, one of the `sets` fits;
    * `last_axis`: the operators work along the last axis only.
    """

    ops: tuple[str, ...]
    attribute: str | None = None
    values: tuple[int | float | str, ...] = ()
    when: dict[str, str | int] = msgspec.field(default_factory=dict)
    sets: tuple[dict[str, str | int], ...] = ()


def _other_values(rule: Attributes, view: QuantizedView, node: ir.Node) -> Breaches:
    """An attribute has another value; what is not written has its default, which is allowed."""
    attribute = node.attributes.get(rule.attribute or "")
    if attribute is None:
        return
    value = attribute.value
    if isinstance(value, bytes):
        value = value.decode()
    values = value if isinstance(value, (list, tuple)) else [value]
    if any(one not in rule.values for one in values):
        yield f"{rule.attribute} {value}", " or ".join(map(str, rule.values))


def _even_values(rule: Attributes, view: QuantizedView, node: ir.Node) -> Breaches:
    value = node.attributes.get_int(rule.attribute or "", 1)
    if value % 2 == 0:
        yield f"{rule.attribute} {value}", "an odd number"


def _other_sets(rule: Attributes, view: QuantizedView, node: ir.Node) -> Breaches:
    """Attributes do not go together; what is not written has ONNX's default."""

    def has(values: Mapping[str, str | int]) -> bool:
        return all(view.attribute(node, name) == value for name, value in values.items())

    if has(rule.when) and not any(map(has, rule.sets)):
        names = dict.fromkeys(name for one in rule.sets for name in one)
        found = ", ".join(f"{name} {view.attribute(node, name)}" for name in names)
        allowed = (" and ".join(f"{n} {v}" for n, v in one.items()) for one in rule.sets)
        yield found, ", or ".join(allowed)


def _round_to_floor(rule: Attributes, recipe: Recipe) -> Changes:
    asked = {"nearest_mode": "floor"} in rule.sets
    return {"rewrite": {"nearest_to_floor": True}} if asked else {}


def _other_axes(rule: Attributes, view: QuantizedView, node: ir.Node) -> Breaches:
    """An operator works along another axis than the last, which is ONNX's default."""
    axis, value = node.attributes.get_int("axis", -1), input_at(node, 0)
    rank = None if value is None or value.shape is None else len(value.shape)
    if axis != -1 and axis + 1 != rank:
        yield f"axis {axis}", "the last axis"


Attributes.ASKS = {
    "attribute_values": Ask(node=_other_values, needs=("attribute", "values")),
    "odd_values": Ask(node=_even_values, needs=("attribute",)),
    "attribute_sets": Ask(node=_other_sets, needs=("sets",), change=_round_to_floor),
    "last_axis": Ask(node=_other_axes),
}
