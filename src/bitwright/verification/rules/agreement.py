"""What quantized tensors around one operator have in common: types, scales, zero points."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import OPERATORS
from bitwright.decide.ops.quantized_view import QuantizedView
from bitwright.numerics.types import INT8, UINT8
from bitwright.recipe import Recipe
from bitwright.targets.target import TypeName
from bitwright.verification.rules.rule import Ask, Breaches, Changes, Rule


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


def _mixed_types(rule: Agreement, view: QuantizedView, node: ir.Node) -> Breaches:
    read = view.activations(node)
    operator = OPERATORS.get(node.op_type)
    if operator is not None and operator.linear is not None:
        read = read[:1]  # the second factor may have fewer bits
    names = dict.fromkeys(str(side.type_name) for side in (*read, *view.behind(node)))
    if len(names) > 1:
        yield f"reads and writes {' and '.join(names)}", "one type"


def _rescaled(rule: Agreement, view: QuantizedView, node: ir.Node) -> Breaches:
    """An operator moves values from one scale to another."""
    if any(view.attribute(node, name) != value for name, value in rule.attributes.items()):
        return
    source = view.quantizer_before(node, 0)
    for behind in view.behind(node):
        if source is None or source.scale is None or behind.scale is None:
            continue
        if not np.array_equal(source.scale.reshape(-1), behind.scale.reshape(-1)):
            before, after = source.first_scale, behind.first_scale
            yield f"scale {before:g} before it and {after:g} behind", "equal ones"
        elif (zero := source.first_zero) != behind.first_zero:
            yield f"zero point {zero} before it and {behind.first_zero} behind", "equal ones"


def _unequal_scales(rule: Agreement, view: QuantizedView, node: ir.Node) -> Breaches:
    computed = [one for one in view.activations(node) if not view.is_of_constant(one)]
    scales = {
        float(scale)
        for quantizer in computed
        if quantizer.scale is not None
        for scale in quantizer.scale.reshape(-1)
    }
    if len(scales) > 1:
        yield f"inputs of {len(scales)} scales", "one scale"


def _share_scales(rule: Agreement, recipe: Recipe) -> Changes:
    ops = dict.fromkeys((*recipe.place.same_scale_ops, *rule.ops))
    return {"place": {"same_scale_ops": tuple(ops)}}


def _unsigned_weights(rule: Agreement, view: QuantizedView, node: ir.Node) -> Breaches:
    weight = view.weight(node)
    stored = None if weight is None else weight.integers
    for source in view.activations(node)[:1]:
        read = source.integers
        if read is not None and read.signed and stored is not None and not stored.signed:
            yield f"{read} activations, {stored} weight", "a signed weight"


def _refused_pairs(rule: Agreement, view: QuantizedView, node: ir.Node) -> Breaches:
    read = [view.quantizer_before(node, index) for index in (0, 1)]
    types = [None if one is None else one.type_name for one in read]
    if types[0] in rule.activation and types[1] in rule.weight:
        yield f"{types[0]} x {types[1]}", "fewer bits on one side"


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
    "equal_types": Ask(node=_mixed_types),
    "equal_parameters": Ask(node=_rescaled),
    "same_scale": Ask(node=_unequal_scales, change=_share_scales),
    "signed_weights": Ask(node=_unsigned_weights),
    "type_pairs": Ask(
        node=_refused_pairs,
        needs=("activation", "weight"),
        change=_narrow_second_factor,
        why_unfit=_why_types_unfit,
    ),
}
