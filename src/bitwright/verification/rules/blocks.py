"""Weights with scales of blocks: sizes and axes of blocks, scales of scales, what stands beside."""

from __future__ import annotations

from typing import Literal

import msgspec

from bitwright.decide.ops.quantized_view import QuantizedView, readers_of, type_names
from bitwright.graph import Quantizer, input_at
from bitwright.recipe import Recipe
from bitwright.targets.target import TypeName
from bitwright.verification.rules.encodings import shares_weight_type
from bitwright.verification.rules.rule import Ask, Breaches, Changes, Rule


class Blocks(Rule, frozen=True, kw_only=True):
    """Weights in blocks: their `block_shape`, `nested_scales`, or `blocked_products`."""

    types: tuple[TypeName, ...] = ()
    """Only weights of these types."""
    ops: tuple[str, ...] = ()
    """The operators that read such weights."""

    sizes: tuple[int, ...] = ()
    """Sizes of blocks, for `block_shape`; none: any."""
    multiple_of: int = 1
    whole: bool = True
    """The size divides the axis."""
    even_last_axis: bool = False
    """Two values share a byte, so that the last axis has to be even."""
    last_axes: int = 0
    """Blocks lie along one of this many last axes; 0: along any."""

    scale_types: tuple[TypeName, ...] = ()
    """What `nested_scales` are stored as: a dequantizer of their own makes the scales."""
    per: Literal["tensor", "channel"] | None = None
    """What the scales of the scales are of."""
    required: bool = False
    """Whether weights of these types have such scales always."""

    activation: tuple[TypeName, ...] = ()
    """What `blocked_products` read and write beside the weight."""
    multiples: dict[str, int] = msgspec.field(default_factory=dict)
    """Type of the weight -> what sizes of its blocks are multiples of."""


def _other_shapes(rule: Blocks, view: QuantizedView, quantizer: Quantizer) -> Breaches:
    """Blocks have another size, or rows of low-bit values do not fill their last byte."""
    value = quantizer.node.inputs[0]
    if quantizer.type_name not in rule.types or value is None or value.shape is None:
        return
    rank = len(value.shape)
    sizes = [size for size in value.shape if isinstance(size, int)]
    if rule.even_last_axis and sizes and sizes[-1] % 2:
        yield f"a last axis of {sizes[-1]}", "an even one"
    block = quantizer.node.attributes.get_int("block_size", 0)
    if not block:
        return
    if (rule.sizes and block not in rule.sizes) or block % rule.multiple_of:
        words = " or ".join(map(str, rule.sizes)) or f"a multiple of {rule.multiple_of}"
        yield f"blocks of {block}", words
    axis = quantizer.node.attributes.get_int("axis", 1)
    if rule.last_axes and axis % rank < rank - rule.last_axes:
        words = "the last" if rule.last_axes == 1 else f"one of the last {rule.last_axes}"
        yield f"blocks along axis {axis} of {rank}", words
    if rule.whole and len(sizes) == rank and sizes[axis] % block:
        yield f"blocks of {block} along {sizes[axis]}", "whole blocks"


def _make_whole_blocks(rule: Blocks, recipe: Recipe) -> Changes:
    asked = rule.whole and shares_weight_type(recipe, rule.types)
    return {"weights": {"whole_blocks": True}} if asked else {}


def _other_nested_scales(rule: Blocks, view: QuantizedView, quantizer: Quantizer) -> Breaches:
    """The scales of a weight in blocks are stored in another form."""
    value = input_at(quantizer.node, 1)
    maker = None if value is None else value.producer()
    inner = None if maker is None else view.found.get(maker)
    if inner is None:
        if rule.required:
            words = f"scales of {type_names(rule.scale_types)}, with one of their own"
            yield "float scales of blocks", words
        return
    others = [r.op_type for r in readers_of(quantizer.node) if r.op_type not in rule.ops]
    several = inner.scale is not None and inner.scale.size > 1
    if inner.type_name not in rule.scale_types:
        yield f"scales stored as {inner.type_name}", type_names(rule.scale_types)
    elif inner.scale is None or several != (rule.per == "channel"):
        yield "scales of scales", f"one a {rule.per}"
    elif others:
        yield f"a weight of {others[0]}", type_names(rule.ops)


def _without_kernel(rule: Blocks, view: QuantizedView, quantizer: Quantizer) -> Breaches:
    """A weight in blocks stands beside activations that there is no kernel for."""
    block = quantizer.node.attributes.get_int("block_size", 0)
    if not block or quantizer.scale is None:
        return  # scales that are stored in few bits have a rule of their own
    step = rule.multiples.get(quantizer.type_name or "")
    if step is None or block % step:
        words = f"multiples of {step}" if step else type_names(tuple(rule.multiples))
        yield f"{quantizer.type_name} in blocks of {block}", words
        return
    for reader in readers_of(quantizer.node):
        beside = {q.type_name for q in (*view.activations(reader), *view.behind(reader))}
        if reader.op_type not in rule.ops:
            yield f"a weight of {reader.op_type} in blocks", f"weights of {type_names(rule.ops)}"
        elif not beside or beside - {*rule.activation}:
            found = f"blocks beside {' and '.join(sorted(map(str, beside))) or 'floats'}"
            yield found, type_names(rule.activation)


def _why_products_unfit(rule: Blocks, recipe: Recipe) -> str | None:
    if not recipe.block_size:
        return None
    if recipe.activation.name not in rule.activation:
        words = " or ".join(rule.activation)
        return f"blocks beside {recipe.activation} activations, and not {words}"
    step = rule.multiples.get(recipe.weight.name)
    if step is None or recipe.block_size % step:
        return f"{recipe.weight} weights in blocks of {recipe.block_size}"
    return None


Blocks.ASKS = {
    "block_shape": Ask(tensor=_other_shapes, needs=("types",), change_weights=_make_whole_blocks),
    "nested_scales": Ask(
        tensor=_other_nested_scales,
        tensors=lambda rule, view: view.stored_weights(rule.types),
        needs=("types", "scale_types", "per", "ops"),
    ),
    "blocked_products": Ask(
        tensor=_without_kernel,
        tensors=lambda rule, view: view.stored_weights(),
        needs=("ops", "activation", "multiples"),
        why_unfit=_why_products_unfit,
    ),
}
