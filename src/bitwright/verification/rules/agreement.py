"""What quantized tensors around one operator have in common: types, scales, zero points."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from bitwright.decide.ops import OPERATORS
from bitwright.graph.quantizers import name_of
from bitwright.numerics.types import INT8, UINT8
from bitwright.recipe import Recipe
from bitwright.targets.terms import TypeName
from bitwright.verification.rules.rule import Ask, Changes, Rule
from bitwright.verification.view import (
    Breach,
    TargetView,
    first_scale,
    first_zero,
    integers_of,
    type_of,
)

__all__ = ["Agreement"]


class Agreement(Rule, frozen=True, kw_only=True):
    """What tensors that some operators read and write have to have in common.

    * `equal_types`: activations that they read and write have one number type;
    * `equal_parameters`: they move values only, between one scale and zero point;
    * `same_scale`: all their inputs have one scale;
    * `signed_weights`: signed activations meet signed weights;
    * `type_pairs`: no `activation` of these types meets a `weight` of these.
    """

    ops: tuple[str, ...]
    attributes: dict[str, str | int] = msgspec.field(default_factory=dict)
    """Only of nodes with these attributes; what is not written has ONNX's default."""
    activation: tuple[TypeName, ...] = ()
    weight: tuple[TypeName, ...] = ()


def _find_mixed_types(rule: Agreement, view: TargetView) -> Iterator[Breach]:
    for node in view.of_types(rule.ops):
        read = view.activations(node)
        operator = OPERATORS.get(node.op_type)
        if operator is not None and operator.linear is not None:
            read = read[:1]  # the second factor may have fewer bits
        names = dict.fromkeys(str(type_of(side)) for side in (*read, *view.behind(node)))
        if len(names) > 1:
            yield Breach(name_of(node), f"reads and writes {' and '.join(names)}", "one type")


def _find_rescaled(rule: Agreement, view: TargetView) -> Iterator[Breach]:
    """Find operators that move values from one scale to another."""
    for node in view.of_types(rule.ops):
        if any(view.attribute(node, name) != value for name, value in rule.attributes.items()):
            continue
        source = view.quantizers.quantizer_before(node, 0)
        for behind in view.behind(node):
            if source is None or source.scale is None or behind.scale is None:
                continue
            same = np.array_equal(source.scale.reshape(-1), behind.scale.reshape(-1))
            if not same:
                before, after = first_scale(source), first_scale(behind)
                found = f"scale {before:g} before it and {after:g} behind"
                yield Breach(name_of(node), found, "equal ones")
            elif first_zero(source) != first_zero(behind):
                found = f"zero point {first_zero(source)} before it and {first_zero(behind)} behind"
                yield Breach(name_of(node), found, "equal ones")


def _find_unequal_scales(rule: Agreement, view: TargetView) -> Iterator[Breach]:
    for node in view.of_types(rule.ops):
        computed = [one for one in view.activations(node) if not view.is_of_constant(one)]
        scales = {
            float(scale)
            for quantizer in computed
            if quantizer.scale is not None
            for scale in quantizer.scale.reshape(-1)
        }
        if len(scales) > 1:
            yield Breach(name_of(node), f"inputs of {len(scales)} scales", "one scale")


def _share_scales(rule: Agreement, recipe: Recipe) -> Changes:
    ops = dict.fromkeys((*recipe.place.same_scale_ops, *rule.ops))
    return {"place": {"same_scale_ops": tuple(ops)}}


def _find_unsigned_weights(rule: Agreement, view: TargetView) -> Iterator[Breach]:
    for node in view.of_types(rule.ops):
        weight = view.weight(node)
        stored = None if weight is None else integers_of(weight)
        for source in view.activations(node)[:1]:
            read = integers_of(source)
            if read is not None and read.signed and stored is not None and not stored.signed:
                found = f"{read} activations, {stored} weight"
                yield Breach(name_of(node), found, "a signed weight")


def _find_type_pairs(rule: Agreement, view: TargetView) -> Iterator[Breach]:
    for node in view.of_types(rule.ops):
        read = [view.quantizers.quantizer_before(node, index) for index in (0, 1)]
        types = [None if one is None else type_of(one) for one in read]
        if types[0] in rule.activation and types[1] in rule.weight:
            yield Breach(name_of(node), f"{types[0]} x {types[1]}", "fewer bits on one side")


def _narrow_second_factor(rule: Agreement, recipe: Recipe) -> Changes:
    """Read second factors in 8 bits where the hardware would leave no more of them."""
    name = recipe.activation.name
    if name not in rule.activation or name not in rule.weight:
        return {}
    return {"place": {"second_factor": INT8 if recipe.activation.signed else UINT8}}


def _why_types_unfit(rule: Agreement, recipe: Recipe) -> str | None:
    if recipe.activation.name in rule.activation and recipe.weight.name in rule.weight:
        return f"{recipe.activation} activations with {recipe.weight} weights"
    return None


Agreement.ASKS = {
    "equal_types": Ask(find=_find_mixed_types),
    "equal_parameters": Ask(find=_find_rescaled),
    "same_scale": Ask(find=_find_unequal_scales, change=_share_scales),
    "signed_weights": Ask(find=_find_unsigned_weights),
    "type_pairs": Ask(
        find=_find_type_pairs,
        needs=("activation", "weight"),
        change=_narrow_second_factor,
        why_unfit=_why_types_unfit,
    ),
}
