"""Attributes of operators: what they may be, alone and together."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from bitwright.graph.constants import input_at
from bitwright.graph.quantizers import name_of
from bitwright.recipe import Recipe
from bitwright.verification.rules.rule import Ask, Changes, Rule
from bitwright.verification.view import Breach, TargetView

__all__ = ["Attributes"]


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


def _find_other_values(rule: Attributes, view: TargetView) -> Iterator[Breach]:
    """Find attributes with other values; what is not written has its default, which is allowed."""
    for node in view.of_types(rule.ops):
        attribute = node.attributes.get(rule.attribute or "")
        if attribute is None:
            continue
        value = attribute.value
        if isinstance(value, bytes):
            value = value.decode()
        several = isinstance(value, (list, tuple))
        if any(one not in rule.values for one in (value if several else [value])):
            allowed = " or ".join(map(str, rule.values))
            yield Breach(name_of(node), f"{rule.attribute} {value}", allowed)


def _find_even_values(rule: Attributes, view: TargetView) -> Iterator[Breach]:
    for node in view.of_types(rule.ops):
        value = node.attributes.get_int(rule.attribute or "", 1)
        if value % 2 == 0:
            yield Breach(name_of(node), f"{rule.attribute} {value}", "an odd number")


def _find_other_sets(rule: Attributes, view: TargetView) -> Iterator[Breach]:
    """Find attributes that do not go together; what is not written has ONNX's default."""
    for node in view.of_types(rule.ops):
        if any(view.attribute(node, name) != value for name, value in rule.when.items()):
            continue
        names = dict.fromkeys(name for one in rule.sets for name in one)
        if not any(
            all(view.attribute(node, name) == value for name, value in one.items())
            for one in rule.sets
        ):
            found = ", ".join(f"{name} {view.attribute(node, name)}" for name in names)
            allowed = (" and ".join(f"{n} {v}" for n, v in one.items()) for one in rule.sets)
            yield Breach(name_of(node), found, ", or ".join(allowed))


def _round_to_floor(rule: Attributes, recipe: Recipe) -> Changes:
    asked = {"nearest_mode": "floor"} in rule.sets
    return {"rewrite": {"nearest_to_floor": True}} if asked else {}


def _find_other_axes(rule: Attributes, view: TargetView) -> Iterator[Breach]:
    """Find operators that work along another axis than the last, which is ONNX's default."""
    for node in view.of_types(rule.ops):
        axis, value = node.attributes.get_int("axis", -1), input_at(node, 0)
        rank = None if value is None or value.shape is None else len(value.shape)
        if axis != -1 and axis + 1 != rank:
            yield Breach(name_of(node), f"axis {axis}", "the last axis")


Attributes.ASKS = {
    "attribute_values": Ask(find=_find_other_values, needs=("attribute", "values")),
    "odd_values": Ask(find=_find_even_values, needs=("attribute",)),
    "attribute_sets": Ask(find=_find_other_sets, needs=("sets",), change=_round_to_floor),
    "last_axis": Ask(find=_find_other_axes),
}
