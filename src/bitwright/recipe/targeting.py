"""Recipes for a target: the rules of its file read forward, as types, placement and ranges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bitwright.errors import RecipeError, TargetError
from bitwright.numerics.types import INT8, QTYPES, UINT8, QType
from bitwright.recipe.value import Recipe
from bitwright.targets import NPU_CNN, Target, rules
from bitwright.targets.host import detect_cpu

__all__ = ["fit_recipe", "own_recipe", "settle_for_host", "settle_for_target", "why_unfit"]


def why_unfit(recipe: Recipe, target: Target) -> str | None:
    """Return what of a recipe a target does not take; None: it takes all.

    >>> from bitwright.recipe import named_recipe
    >>> from bitwright.targets import find_target
    >>> why_unfit(named_recipe("int8"), find_target("nvidia-tensorrt"))
    'uint8 activations, and not int8, float8e4m3fn or float4e2m1'
    """
    if target.modes is not None and recipe.mode not in target.modes:
        return f"the mode {recipe.mode}"
    if target.formats is not None and recipe.format not in target.formats:
        return f"the format {recipe.format}"
    if target.needs_limits and recipe.limits is None:
        return "no limits, which keep power-of-two scales within the target's shifters"
    if target.needs_limits and target.limits != NPU_CNN.limits:
        return "limits of npu-cnn, and other ones can be verified, but not planned for"
    if recipe.mode == "weight-only":
        reasons = (_why_weights_unfit(recipe, rule) for rule in target.rules.values())
        return next((reason for reason in reasons if reason is not None), None)
    if recipe.mode != "static":
        return None
    reasons = (_why_rule_unfit(recipe, rule) for rule in target.rules.values())
    return next((reason for reason in reasons if reason is not None), None)


def _why_weights_unfit(recipe: Recipe, rule: rules.Rule) -> str | None:
    bits = recipe.weights.bits
    match rule:
        case rules.LowBitProducts(consequence="refused" | "leaves"):
            if recipe.weights.output == "matmul-nbits" and bits not in rule.bits:
                return f"weights of {bits} bits, and not {' or '.join(map(str, rule.bits))}"
        case rules.Types(role="weight", consequence="refused" | "leaves", ops=()):
            types = {f"int{bits}", f"uint{bits}"}
            if recipe.weights.output.startswith("qdq") and types.isdisjoint(rule.types):
                return f"weights of {bits} bits, and not {' or '.join(rule.types)}"
    return None


def _why_rule_unfit(recipe: Recipe, rule: rules.Rule) -> str | None:
    match rule:
        case rules.Types(consequence="refused" | "leaves" | "wrong", ops=()):
            used = {"activation": recipe.activation, "weight": recipe.weight}.get(rule.role)
            if used is not None and used.name not in rule.types:
                *others, last = rule.types
                listed = f"{', '.join(others)} or {last}" if others else last
                return f"{used} {rule.role}s, and not {listed}"
        case rules.ZeroPoints(role="activation", at=("zero",), types=()):
            if not recipe.activation_symmetric and recipe.activation.is_integer:
                return "asymmetric activations, and not symmetric ones"
        case rules.ZeroPoints(role="weight", consequence="refused", at=("zero",), types=()):
            if recipe.weight_symmetric is False or not (
                recipe.weight.signed or recipe.weight_symmetric
            ):
                return "asymmetric weights, and not symmetric ones"
        case rules.BlockedProducts():
            if recipe.block_size and recipe.activation.name not in rule.activation:
                words = " or ".join(rule.activation)
                return f"blocks beside {recipe.activation} activations, and not {words}"
            step = rule.multiples.get(recipe.weight.name)
            if recipe.block_size and (step is None or recipe.block_size % step):
                return f"{recipe.weight} weights in blocks of {recipe.block_size}"
        case rules.TypePairs():
            if recipe.activation.name in rule.activation and recipe.weight.name in rule.weight:
                return f"{recipe.activation} activations with {recipe.weight} weights"
        case rules.Granularity(role="weight", per=("tensor",), ops=()):
            if recipe.per_channel:
                return "one scale for each channel, and not for each tensor"
    return None


def fit_recipe(recipe: Recipe, target: Target) -> Recipe:
    """Return a recipe that a target takes with the placement that the target's rules ask for.

    >>> from bitwright.recipe import named_recipe
    >>> from bitwright.targets import find_target
    >>> recipe = fit_recipe(named_recipe("a16w8"), find_target("qualcomm-htp:v68"))
    >>> recipe.place.per_tensor_ops
    ('Gemm', 'InstanceNormalization', 'LayerNormalization', 'MatMul', 'RMSNormalization')
    """
    if (target.settings.get("opset") or 0) > (recipe.opset or 0):
        recipe = recipe.replace(opset=target.settings["opset"])
    if recipe.mode == "static":
        recipe = _with_places(recipe, target)
    table = _CHANGES.get(recipe.mode, {})
    for rule in target.rules.values():
        change = table.get(type(rule))
        changes = None if change is None else change(recipe, rule)
        if changes:
            recipe = recipe.replace(**changes)
    return recipe


def settle_for_target(recipe: Recipe) -> Recipe:
    """Return a recipe that was fitted to a target: int8 activations that stay so do on any host."""
    return _with_unsigned(recipe, unsigned=False)


def settle_for_host(recipe: Recipe, cpu: str | None = None) -> Recipe:
    """Return a recipe that has no target as the CPU of this machine, or another, wants it.

    Recipes whose pairs are placed for accelerators (`place.isolated`) stay as they are.

    >>> from bitwright.recipe import named_recipe
    >>> recipe = named_recipe("int8-symmetric")
    >>> settle_for_host(recipe, "vnni").place.unsigned_activations
    True
    >>> settle_for_host(recipe, "arm").place.unsigned_activations
    False
    """
    return _with_unsigned(recipe, unsigned=(cpu or detect_cpu()) in ("avx2", "vnni"))


def _with_unsigned(recipe: Recipe, *, unsigned: bool) -> Recipe:
    place = recipe.place
    if place.isolated or place.unsigned_activations is not None or not _writes_signed(recipe):
        return recipe
    return recipe.replace(place={"unsigned_activations": unsigned})


def _writes_signed(recipe: Recipe) -> bool:
    """Whether activations are int8 in a format that ONNX Runtime has kernels for."""
    return (
        recipe.mode == "static"
        and recipe.activation == INT8
        and not recipe.output_format.vendor_ops
    )


def _with_places(recipe: Recipe, target: Target) -> Recipe:
    """Give a recipe the rewrites of the target, and its places where it says nothing of them."""
    plain = Recipe()
    rewrites = {name: target.settings[name] for name in ("rewrite",) if name in target.settings}
    given = rewrites | {
        name: target.settings[name]
        for name in ("select", "place", "min_real_range")
        if name in target.settings and getattr(recipe, name) == getattr(plain, name)
    }
    return recipe.replace(**given) if given else recipe


def own_recipe(base: Recipe, target: Target) -> Recipe:
    """Return the recipe of a target that is given none: its base, its settings, its rules."""
    if target.modes == ():
        raise TargetError(
            f"the target {target.name} runs nothing that is quantized: give it the float model."
        )
    if not target.settings and not target.rules:
        return base
    try:
        made = base.replace(**{"name": target.name, **target.settings})
    except RecipeError as error:
        raise TargetError(f"the settings of the target {target.name}: {error}") from error
    made = fit_recipe(made, target)
    unfit = why_unfit(made, target)
    if unfit is not None:
        raise TargetError(
            f"the target {target.name} contradicts itself: its recipe has {unfit}; change its "
            "settings or its rules."
        )
    return made


def _tensors_of_operators(recipe: Recipe, rule: rules.Granularity) -> dict[str, Any]:
    if rule.role != "weight" or rule.per != ("tensor",) or not rule.ops or not recipe.per_channel:
        return {}
    ops = dict.fromkeys((*recipe.place.per_tensor_ops, *rule.ops))
    return {"place": {"per_tensor_ops": tuple(ops)}}


def _float_biases(recipe: Recipe, rule: rules.Biases) -> dict[str, Any]:
    return {"quantize_bias": False} if rule.form == "float" and recipe.quantize_bias else {}


def _fixed_ranges(recipe: Recipe, rule: rules.FixedOutput) -> dict[str, Any]:
    """Give results the range that makes the scale and zero point which the hardware has."""
    fixed = rule.scales.get(recipe.activation.name)
    if fixed is None:
        return {}
    low, high = _ends(QTYPES[recipe.activation.name], fixed)
    ranges = {op: (low, high) for op in rule.ops if op not in recipe.output_ranges}
    return {"output_ranges": {**recipe.output_ranges, **ranges}}


def _ends(qtype: QType, fixed: rules.FixedScale) -> tuple[float, float]:
    low, high = ((end - fixed.zero_point) * fixed.scale for end in (qtype.lowest, qtype.highest))
    return low, high


def _told_shapes(recipe: Recipe, rule: rules.StaticShapes) -> dict[str, Any]:
    return {"rewrite": {"needs_fixed_shapes": True}}


def _unsigned(recipe: Recipe, rule: rules.OneReader) -> dict[str, Any]:
    """Write int8 activations as uint8 where more than one reader would make them float."""
    if not _writes_signed(recipe) or "int8" not in rule.types:
        return {}
    return {"place": {"unsigned_activations": True}}


def _on_all_sides(recipe: Recipe, rule: rules.NodeUnits) -> dict[str, Any]:
    """Put pairs on every side of operators that would else leave the accelerator."""
    if rule.float_results or recipe.place.isolated:
        return {}
    return {"place": {"isolated": True, "force_shared": True, "float_bias_add": False}}


def _positive(recipe: Recipe, rule: rules.PositiveScales) -> dict[str, Any]:
    return {"weights": {"positive_scales": True}}


def _weight_types(recipe: Recipe, rule: rules.Types) -> dict[str, Any]:
    """Give the weights of some operators a type that these take."""
    wanted = [QTYPES[name] for name in rule.types if name in QTYPES]
    if rule.role != "weight" or not rule.ops or recipe.weight in wanted or not wanted:
        return {}
    given = dict.fromkeys(rule.ops, wanted[0])
    return {"place": {"weight_types": given | recipe.place.weight_types}}


def _narrow_factor(recipe: Recipe, rule: rules.TypePairs) -> dict[str, Any]:
    """Read second factors in 8 bits where the hardware would leave no more of them."""
    name = recipe.activation.name
    if name not in rule.activation or name not in rule.weight:
        return {}
    return {"place": {"second_factor": INT8 if recipe.activation.signed else UINT8}}


def _one_scale(recipe: Recipe, rule: rules.SameScale) -> dict[str, Any]:
    ops = dict.fromkeys((*recipe.place.same_scale_ops, *rule.ops))
    return {"place": {"same_scale_ops": tuple(ops)}}


def _leave_small(recipe: Recipe, rule: rules.SizeRule) -> dict[str, Any]:
    known = recipe.select.sizes
    return {} if rule in known else {"select": {"sizes": (*known, rule)}}


def _nearest_floor(recipe: Recipe, rule: rules.AttributeSets) -> dict[str, Any]:
    wanted = {"nearest_mode": "floor"}
    return {"rewrite": {"nearest_to_floor": True}} if wanted in rule.sets else {}


def _all_axes(recipe: Recipe, rule: rules.AbsentInputs) -> dict[str, Any]:
    return {"rewrite": {"pads_of_all_axes": True}} if 3 in rule.inputs.get("Pad", ()) else {}


def _from_the_front(recipe: Recipe, rule: rules.IndexValues) -> dict[str, Any]:
    return {"rewrite": {"positive_indices": True}} if "Gather" in rule.inputs else {}


def _unquantized(recipe: Recipe, rule: rules.Unquantized) -> dict[str, Any]:
    """Quantize what the hardware computes in integers, also what others leave float."""
    if recipe.select.op_types is not None:
        return {}
    ops = dict.fromkeys((*recipe.select.more_op_types, *rule.ops))
    return {"select": {"more_op_types": tuple(ops)}}


# Weights in blocks, beside float activations


def _as_pairs(recipe: Recipe, rule: rules.RefusedOperators) -> dict[str, Any]:
    refused = "MatMulNBits" in rule.ops and recipe.weights.output == "matmul-nbits"
    return {"weights": {"output": "qdq"}} if refused else {}


def _whole_channels(recipe: Recipe, rule: rules.Granularity) -> dict[str, Any]:
    if rule.role != "weight" or rule.ops or "block" in rule.per or not _concerns(recipe, rule):
        return {}
    return {"weights": {"block_size": -1}}


def _symmetric_blocks(recipe: Recipe, rule: rules.ZeroPoints) -> dict[str, Any]:
    if rule.role != "weight" or "zero" not in rule.at or not _concerns(recipe, rule):
        return {}
    return {"weights": {"symmetric": True}}


def _whole_blocks(recipe: Recipe, rule: rules.BlockShape) -> dict[str, Any]:
    return {"weights": {"whole_blocks": True}} if rule.whole and _concerns(recipe, rule) else {}


def _transposed(recipe: Recipe, rule: rules.TransposedWeights) -> dict[str, Any]:
    plain = recipe.weights.output in ("matmul-nbits", "qdq")
    return {"weights": {"output": "qdq-transposed"}} if plain and _concerns(recipe, rule) else {}


_Typed = rules.Granularity | rules.ZeroPoints | rules.BlockShape | rules.TransposedWeights


def _concerns(recipe: Recipe, rule: _Typed) -> bool:
    """Whether a rule is about the types that weights of a recipe are stored in."""
    bits = recipe.weights.bits
    return not rule.types or not {f"int{bits}", f"uint{bits}"}.isdisjoint(rule.types)


Change = Callable[[Recipe, Any], dict[str, Any]]

# Mode of the recipe -> what a kind of rule changes of it.
_CHANGES: dict[str, dict[type[rules.Rule], Change]] = {
    "static": {
        rules.Granularity: _tensors_of_operators,
        rules.Biases: _float_biases,
        rules.FixedOutput: _fixed_ranges,
        rules.OneReader: _unsigned,
        rules.StaticShapes: _told_shapes,
        rules.NodeUnits: _on_all_sides,
        rules.Types: _weight_types,
        rules.Unquantized: _unquantized,
        rules.TypePairs: _narrow_factor,
        rules.SameScale: _one_scale,
        rules.SmallProducts: _leave_small,
        rules.ConvolutionSizes: _leave_small,
        rules.AttentionSizes: _leave_small,
        rules.AttributeSets: _nearest_floor,
        rules.AbsentInputs: _all_axes,
        rules.IndexValues: _from_the_front,
    },
    "weight-only": {
        rules.StaticShapes: _told_shapes,
        rules.PositiveScales: _positive,
        rules.RefusedOperators: _as_pairs,
        rules.Granularity: _whole_channels,
        rules.ZeroPoints: _symmetric_blocks,
        rules.BlockShape: _whole_blocks,
        rules.TransposedWeights: _transposed,
    },
}
