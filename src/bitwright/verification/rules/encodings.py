"""How tensors are stored: number types, zero points, granularity of scales, range of integers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from bitwright.decide.ops.quantized_view import Breach, QuantizedView, type_names
from bitwright.graph import QUANTIZERS, Quantizer
from bitwright.numerics.types import QTYPES
from bitwright.recipe import Recipe
from bitwright.targets.target import Role, TypeName
from bitwright.verification.rules.rule import Ask, Breaches, Changes, Rule


class Encodings(Rule, frozen=True, kw_only=True):
    """How tensors of a role are stored: `types`, `zero_points`, `granularity` or `weight_codes`."""

    role: Role | None = None
    types: tuple[TypeName, ...] = ()
    """What `types` allows, the usual one first; what the others are asked of (none: all)."""
    ops: tuple[str, ...] = ()
    """Only what these operators read; none: all."""
    at: tuple[Literal["zero", "lowest", "middle"], ...] = ()
    """Where `zero_points` may lie."""
    several: bool = False
    """Only where there are several scales, one for each channel or block."""
    per: tuple[Literal["tensor", "channel", "block"], ...] = ()
    """What has a scale of its own, for `granularity`."""
    low: int | None = None
    high: int | None = None
    """The range of stored integers, for `weight_codes`."""


def shares_weight_type(recipe: Recipe, types: tuple[str, ...]) -> bool:
    """Return whether low-bit weights of a recipe are stored in one of these types; none: in any."""
    bits = recipe.weights.bits
    return not types or not {f"int{bits}", f"uint{bits}"}.isdisjoint(types)


def _other_types(rule: Encodings, view: QuantizedView) -> Iterator[Breach]:
    seen = set()
    for quantizer in view.of_role(rule.role, rule.ops):
        stored = quantizer.type_name
        if stored is None or stored in rule.types:
            continue
        breach = view.breach(quantizer, f"{rule.role} of {stored}", type_names(rule.types))
        if (breach.node, stored) not in seen:  # its Q and its DQ say the same
            seen.add((breach.node, stored))
            yield breach


def _store_weights_as(rule: Encodings, recipe: Recipe) -> Changes:
    """Give the weights of some operators a type that these take."""
    wanted = [QTYPES[name] for name in rule.types if name in QTYPES]
    if rule.role != "weight" or not rule.ops or recipe.weight in wanted or not wanted:
        return {}
    types = dict.fromkeys(rule.ops, wanted[0])
    return {"place": {"weight_types": types | recipe.place.weight_types}}


def _why_type_unfit(rule: Encodings, recipe: Recipe) -> str | None:
    used = {"activation": recipe.activation, "weight": recipe.weight}.get(rule.role or "")
    if rule.consequence not in ("refused", "leaves", "wrong") or rule.ops:
        return None
    if used is None or used.name in rule.types:
        return None
    *others, last = rule.types
    listed = f"{', '.join(others)} or {last}" if others else last
    return f"{used} {rule.role}s, and not {listed}"


def _why_bits_unfit(rule: Encodings, recipe: Recipe) -> str | None:
    if rule.role != "weight" or rule.consequence not in ("refused", "leaves") or rule.ops:
        return None
    if recipe.weights.output.startswith("qdq") and not shares_weight_type(recipe, rule.types):
        return f"weights of {recipe.weights.bits} bits, and not {type_names(rule.types)}"
    return None


def _other_zero_points(rule: Encodings, view: QuantizedView, quantizer: Quantizer) -> Breaches:
    qtype, zeros, scale = quantizer.integers, quantizer.zero_point, quantizer.scale
    if qtype is None or zeros is None or (rule.types and qtype.name not in rule.types):
        return
    if rule.several and (scale is None or scale.size < 2):
        return
    places = {
        "zero": 0,
        "lowest": int(qtype.lowest),
        "middle": int(qtype.lowest + qtype.highest + 1) // 2,
    }
    allowed = [places[place] for place in rule.at]
    others = [int(zero) for zero in zeros.reshape(-1) if int(zero) not in allowed]
    if others and quantizer.node.op_type not in QUANTIZERS:
        found = f"{qtype} {rule.role} with the zero point {others[0]}"
        yield found, " or ".join(map(str, dict.fromkeys(allowed)))


def _store_symmetric_blocks(rule: Encodings, recipe: Recipe) -> Changes:
    asked = rule.role == "weight" and "zero" in rule.at and shares_weight_type(recipe, rule.types)
    return {"weights": {"symmetric": True}} if asked else {}


def _why_zero_point_unfit(rule: Encodings, recipe: Recipe) -> str | None:
    if rule.at != ("zero",) or rule.types:
        return None
    if rule.role == "activation":
        asymmetric = not recipe.activation_symmetric and recipe.activation.is_integer
        return "asymmetric activations, and not symmetric ones" if asymmetric else None
    if rule.role != "weight" or rule.consequence != "refused":
        return None
    symmetric = recipe.weight.signed or recipe.weight_symmetric
    if recipe.weight_symmetric is False or not symmetric:
        return "asymmetric weights, and not symmetric ones"
    return None


def _other_granularity(rule: Encodings, view: QuantizedView, quantizer: Quantizer) -> Breaches:
    if quantizer.scale is None or (rule.types and quantizer.type_name not in rule.types):
        return
    if quantizer.node.op_type in QUANTIZERS and rule.role == "weight":
        return
    per = "tensor" if quantizer.scale.size == 1 else "channel"
    if quantizer.node.attributes.get_int("block_size", 0):
        per = "block"
    if per not in rule.per:
        found = f"the {rule.role} has {quantizer.scale.size} scales, one a {per}"
        if per == "tensor":
            found = f"the {rule.role} has one scale"
        yield found, " or ".join(f"one a {name}" for name in rule.per)


def _scale_tensors_of_operators(rule: Encodings, recipe: Recipe) -> Changes:
    if rule.role != "weight" or rule.per != ("tensor",) or not rule.ops or not recipe.per_channel:
        return {}
    ops = dict.fromkeys((*recipe.place.per_tensor_ops, *rule.ops))
    return {"place": {"per_tensor_ops": tuple(ops)}}


def _scale_whole_channels(rule: Encodings, recipe: Recipe) -> Changes:
    asked = rule.role == "weight" and not rule.ops and "block" not in rule.per
    if not asked or not shares_weight_type(recipe, rule.types):
        return {}
    return {"weights": {"block_size": -1}}


def _why_granularity_unfit(rule: Encodings, recipe: Recipe) -> str | None:
    single = rule.role == "weight" and rule.per == ("tensor",) and not rule.ops
    if single and recipe.per_channel:
        return "one scale for each channel, and not for each tensor"
    return None


def _other_codes(rule: Encodings, view: QuantizedView, quantizer: Quantizer) -> Breaches:
    assert rule.low is not None and rule.high is not None
    integers = quantizer.stored
    if quantizer.type_name not in rule.types or integers is None or not integers.size:
        return
    low, high = int(integers.min()), int(integers.max())
    if low < rule.low or high > rule.high:
        yield f"integers in {low}..{high}", f"{rule.low}..{rule.high}"


def _of_role(rule: Encodings, view: QuantizedView) -> Iterator[Quantizer]:
    return view.of_role(rule.role or "weight", rule.ops)


Encodings.ASKS = {
    "types": Ask(
        model=_other_types,
        needs=("role", "types"),
        change=_store_weights_as,
        why_unfit=_why_type_unfit,
        why_weights_unfit=_why_bits_unfit,
    ),
    "zero_points": Ask(
        tensor=_other_zero_points,
        tensors=_of_role,
        needs=("role", "at"),
        change_weights=_store_symmetric_blocks,
        why_unfit=_why_zero_point_unfit,
    ),
    "granularity": Ask(
        tensor=_other_granularity,
        tensors=_of_role,
        needs=("role", "per"),
        change=_scale_tensors_of_operators,
        change_weights=_scale_whole_channels,
        why_unfit=_why_granularity_unfit,
    ),
    "weight_codes": Ask(tensor=_other_codes, tensors=_of_role, needs=("types", "low", "high")),
}
