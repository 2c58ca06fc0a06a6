"""The options of a recipe that contradict each other, as a table of rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from bitwright.errors import RecipeError
from bitwright.numerics.types import INT8, UINT8
from bitwright.recipe.fields import RecipeFields
from bitwright.recipe.finetuning import AdaQuant, SignRound
from bitwright.recipe.hardware import Rewrites
from bitwright.recipe.methods import MinMSE, NonOverflow
from bitwright.recipe.options import Selection
from bitwright.recipe.weights import WeightOnly
from bitwright.support.settings import Settings


class Rule(NamedTuple):
    """A contradiction: how it is found, and the sentence about it."""

    broken: Callable[[RecipeFields], Any]
    """Whether a recipe `r` breaks the rule; what it returns is `found` in the sentence."""
    sentence: str


def check_rules(recipe: RecipeFields) -> None:
    """Refuse the first contradiction of a recipe, before any work is done."""
    for rule in RULES:
        found = rule.broken(recipe)
        if found:
            raise RecipeError(rule.sentence.format(r=recipe, found=found))


# What a dynamic recipe can ask for; all else is about activations, which it does not place.
DYNAMIC_FIELDS = frozenset(
    "version name mode dynamic_scale cache activation weight weight_ranges rounding per_channel "
    "weight_symmetric reduce_range min_real_range select place overrides smooth equalize "
    "keep_defaults optimize opset emulate".split()
)
_WITH_EFFECT: dict[str, dict[str, frozenset[str]]] = {
    "dynamic": {
        "": DYNAMIC_FIELDS,
        "place": frozenset({"force_shared"}),
        "emulate": frozenset({"conventions", "assumed_type", "equalize"}),
    },
    # `weights` says all about them.
    "weight-only": {
        "": frozenset(
            "version name mode select weights cache fine_tune float16 float_io optimize opset "
            "rewrite emulate".split()
        ),
        "emulate": frozenset({"assumed_type", "fine_tune"}),
    },
    # There are no scales, no ranges and no pairs.
    "cast": {
        "": frozenset(
            "version name mode activation weight select place float_io keep_defaults optimize "
            "rewrite emulate".split()
        ),
        "place": frozenset({"must_run"}),
        "select": frozenset(Selection.__struct_fields__) - {"subgraphs", "constant_weights_only"},
        "emulate": frozenset({"assumed_type", "clip_to_relu", "widen_interface"}),
    },
}
"""Mode -> section of a recipe -> its options that have an effect there."""


_REWRITES_OF_GRAPHS = tuple(
    name for name in Rewrites.__struct_fields__ if name not in ("fix_shapes", "needs_fixed_shapes")
)


def _changed(settings: Settings, names: Iterable[str]) -> str | None:
    """Return the first of these options that is not at its default."""
    plain = type(settings)()
    return next((n for n in names if getattr(settings, n) != getattr(plain, n)), None)


def _without_effect(r: RecipeFields) -> tuple[str, str] | None:
    """Return the first option that its mode has no use for, and the mode in words."""
    for section, known in _WITH_EFFECT.get(r.mode, {}).items():
        settings = getattr(r, section) if section else r
        known |= {"overrides"} if r.cache is not None else set()  # scales of caches
        found = _changed(settings, (n for n in settings.__struct_fields__ if n not in known))
        if found is not None:
            mode = "the mode cast" if r.mode == "cast" else f"{r.mode} mode"
            return f"{section}.{found}".lstrip("."), mode
    return None


def _without_effect_in_weight_only(r: RecipeFields) -> str | None:
    if r.mode != "weight-only" or r.fine_tune is None:
        return None
    names = (
        "nodes sequential workers learn_activation_scales activation_scale_learning_rate".split()
    )
    details = ("op_types", "output_pairs")
    return _changed(r.fine_tune, names) or _changed(r.emulate.fine_tune, details)


def _power_of_two_method(r: RecipeFields) -> str | None:
    methods = (r.ranges, r.weight_ranges, *(one.ranges for one in r.overrides.values()))
    found = (type(one).__name__ for one in methods if isinstance(one, NonOverflow | MinMSE))
    return next(found, None)


def _wide_type(r: RecipeFields) -> Any:
    given = (qtype for o in r.overrides.values() for qtype in (o.activation, o.weight) if qtype)
    return next((qtype for qtype in (r.activation, r.weight, *given) if qtype.bits > 8), None)


def _block_type(r: RecipeFields) -> Any:
    return next((qtype for qtype in (r.activation, r.weight) if qtype.shares_exponent), None)


def _is_extended(r: RecipeFields) -> bool:
    return r.output_format.vendor_ops


def _empty_range(r: RecipeFields) -> Any:
    ranges = ((op_type, *ends) for op_type, ends in r.output_ranges.items())
    return next((one for one in ranges if not one[1] < one[2]), None)


def _bad_pattern(r: RecipeFields) -> tuple[str, re.error] | None:
    named = (*r.select.named, *r.emulate.unquantized_nodes, *r.overrides, *r.weights.overrides)
    for pattern in named:
        if pattern.startswith("re:"):
            try:
                re.compile(pattern[3:])
            except re.error as error:
                return pattern, error
    return None


# Read from top to bottom: the first rule that a recipe breaks is the one in its error.
RULES = (
    Rule(
        lambda r: r.mode == "dynamic" and r.weight not in (INT8, UINT8),
        "dynamic models have weights in int8 or uint8, not {r.weight}: no operator takes others.",
    ),
    Rule(
        lambda r: r.mode == "dynamic" and r.activation != UINT8,
        "dynamic models have activations in uint8, not {r.activation}: no operator takes others.",
    ),
    Rule(
        lambda r: r.mode == "dynamic" and r.equalize is not None and r.equalize.absorb_biases,
        "equalize.absorb_biases has no effect in dynamic mode, which reads no data; leave it out.",
    ),
    Rule(
        lambda r: (
            r.mode == "cast"
            and (r.activation != r.weight or r.weight.name not in ("float16", "bfloat16"))
        ),
        "the mode cast has weights and activations both in float16 or both in bfloat16, not "
        "{r.weight} and {r.activation}.",
    ),
    Rule(_without_effect, "{found[0]} has no effect in {found[1]}; leave it out."),
    Rule(
        lambda r: (
            r.mode != "cast"
            and r.float_io is not True
            and (r.float16, r.float_io) != ("cast", "all-but-caches")
        ),
        "float_io is for the mode cast; take the recipe float16, or leave it out.",
    ),
    Rule(
        lambda r: r.mode == "weight-only" and _changed(r.rewrite, _REWRITES_OF_GRAPHS),
        "rewrite.{found} has no effect in weight-only mode, where only shapes can be fixed; leave "
        "it out.",
    ),
    Rule(
        lambda r: r.cache and r.mode not in ("weight-only", "dynamic"),
        "cache={r.cache!r} is for the modes weight-only and dynamic; leave it out.",
    ),
    Rule(
        lambda r: r.mode == "weight-only" and [n for n, o in r.overrides.items() if not o.scale],
        "the overrides {found} give no scales of caches, and weight-only mode takes no others.",
    ),
    Rule(
        lambda r: r.mode != "dynamic" and r.dynamic_scale != "token",
        "dynamic_scale is for the mode dynamic; leave it out.",
    ),
    Rule(
        lambda r: r.mode != "static" and r.select.sizes,
        "select.sizes is for the mode static; leave it out.",
    ),
    Rule(
        lambda r: r.mode != "weight-only" and r.weights != WeightOnly(),
        "weights is for the mode weight-only; set mode='weight-only' with it.",
    ),
    Rule(
        lambda r: r.fine_tune and r.bias_correction == "fast",
        "bias_correction='fast' looks at weights alone and would undo what they learned; take "
        "'sequential' with fine_tune.",
    ),
    Rule(
        lambda r: r.rounding == "gptq" and r.mode != "static",
        "rounding='gptq' sees what quantized layers read and is for static mode; take 'nearest' or "
        "'squant'.",
    ),
    Rule(
        lambda r: (
            r.rounding == "gptq"
            and (not r.weight.is_integer or r.weight.bits > 8 or _changed(r, ("reduce_range",)))
        ),
        "rounding='gptq' is for all levels of 2- to 8-bit integers; take such weights, without "
        "reduce_range.",
    ),
    Rule(
        lambda r: r.rounding == "gptq" and r.emulate.weight_pairs,
        "emulate.weight_pairs keeps float weights, which rounding='gptq' would change; leave out "
        "one of them.",
    ),
    Rule(
        lambda r: r.gain_correction and r.bias_correction != "sequential",
        "gain_correction is part of the layer-by-layer correction; set "
        "bias_correction='sequential' with it.",
    ),
    Rule(
        lambda r: r.gain_correction and not (r.per_channel and r.scales == "float"),
        "gain_correction goes into the scale of each channel, of any size; set per_channel=true "
        "and scales='float' with it.",
    ),
    Rule(
        lambda r: r.gain_correction and not r.weight.is_integer,
        "gain_correction goes into scales, and {r.weight} weights have none of their own; leave "
        "it out, or take an integer type.",
    ),
    Rule(
        lambda r: r.fine_tune and not r.weight.is_integer,
        "only integer weights learn, and {r.weight} is no integer type; leave out fine_tune, or "
        "take an integer type.",
    ),
    Rule(
        lambda r: isinstance(r.fine_tune, AdaQuant) and r.mode == "weight-only",
        "adaquant learns no scales of blocks, and has little to learn without them; take "
        "signround or adaround in the mode weight-only.",
    ),
    Rule(
        lambda r: isinstance(r.fine_tune, SignRound) and r.mode == "static",
        "signround learns the ranges of blocks in the mode weight-only; take adaround or adaquant "
        "where activations are quantized, too.",
    ),
    Rule(
        _without_effect_in_weight_only,
        "{found} of fine_tune has no effect in weight-only mode; leave it out.",
    ),
    Rule(
        lambda r: (
            isinstance(r.fine_tune, AdaQuant) and r.fine_tune.learn_scales and r.scales != "float"
        ),
        "learn_scales would leave scales={r.scales!r}; leave it out, or take scales='float'.",
    ),
    Rule(
        # Rounded to powers, a scale moves by up to 41 %: the weights that learned with it, and the
        # error that it was accepted for, would be those of another.
        lambda r: r.fine_tune and r.fine_tune.learn_activation_scales and r.scales != "float",
        "learn_activation_scales would leave scales={r.scales!r}; leave it out, or take "
        "scales='float'.",
    ),
    Rule(
        lambda r: (
            r.fine_tune and r.fine_tune.learn_activation_scales and not r.activation.is_integer
        ),
        "learn_activation_scales is for integers, and {r.activation} activations have no scale to "
        "learn; leave it out, or take an integer type.",
    ),
    Rule(
        lambda r: r.scales != "power-of-two" and _power_of_two_method(r),
        "the range method {found} gives power-of-two scales; set scales='power-of-two' with it, "
        "or take MinMax or MSE.",
    ),
    Rule(
        lambda r: r.bias != "int32" and not r.quantize_bias,
        "bias={r.bias!r} contradicts quantize_bias=False, which leaves biases float; drop one of "
        "them.",
    ),
    Rule(
        lambda r: r.emulate.restricted_asymmetric and r.scales != "float",
        "restricted_asymmetric chooses float scales and contradicts scales={r.scales!r}.",
    ),
    Rule(
        lambda r: not _is_extended(r) and _block_type(r),
        "{found} is for the formats extended and fix-neuron; set format='extended'.",
    ),
    Rule(
        lambda r: not _is_extended(r) and r.activation.kind == "float" and r.weight.kind != "float",
        "{r.activation} activations with {r.weight} weights run nowhere in the format {r.format}; "
        "use one float type for both, or set format='extended'.",
    ),
    Rule(
        lambda r: (
            _is_extended(r)
            and not r.weight.is_integer
            and _changed(r, ("per_channel", "block_size"))
        ),
        "{found} has no meaning for {r.weight} weights; leave it out.",
    ),
    Rule(
        lambda r: (
            _is_extended(r) and r.limits and not (r.activation.is_integer and r.weight.is_integer)
        ),
        "limits are about integers; leave them out with other number types.",
    ),
    Rule(
        lambda r: (
            _is_extended(r)
            and r.emulate.contrib_ops
            and (r.emulate.extended_ops or r.output_format.single_nodes)
        ),
        "contrib_ops and extended_ops name two domains for one op; switch one of them off.",
    ),
    Rule(
        lambda r: r.emulate.block_rounding is not None and not _block_type(r),
        "emulate.block_rounding is for shared-exponent formats, and no tensor has one; leave it "
        "out.",
    ),
    Rule(
        lambda r: r.output_format.single_nodes and _changed(r.emulate, ("vendor_names",)),
        "emulate.{found} is about pairs and blocks: Quark has no FixNeuron; leave it out.",
    ),
    Rule(
        lambda r: r.output_format.single_nodes and _changed(r.emulate, ("weight_pairs",)),
        "emulate.{found} has no place in the format fix-neuron; leave it out.",
    ),
    Rule(
        lambda r: r.output_format.single_nodes and _changed(r, ("block_size",)),
        "{found} has no place in the format fix-neuron; leave it out.",
    ),
    Rule(
        lambda r: (
            _is_extended(r)
            and r.emulate.dedicated_dequantizers
            and (r.output_format.single_nodes or r.activation.shares_exponent)
        ),
        "emulate.dedicated_dequantizers is about pairs, and here one op stands for each; leave it "
        "out.",
    ),
    Rule(
        lambda r: (r.float16 == "cast") > (r.mode == "weight-only"),
        "float16='cast' is for weights alone; take the recipe float16, or leave it out.",
    ),
    Rule(
        lambda r: r.float16 == "keep" and _is_extended(r),
        "the format {r.format} computes scales in float32; leave out float16='keep'.",
    ),
    Rule(
        lambda r: r.float16 == "keep" and _wide_type(r),
        "float16 resolves 11 bits, too few to hold {found} values; leave out float16='keep', or "
        "take 8-bit types.",
    ),
    Rule(
        lambda r: r.activation == INT8 and r.weight == UINT8,
        "int8 activations with uint8 weights have no kernel in ONNX Runtime; use int8 weights, or "
        "uint8 activations.",
    ),
    Rule(
        lambda r: r.emulate.restricted_asymmetric and r.activation != UINT8,
        "restricted_asymmetric is for uint8 activations only.",
    ),
    Rule(
        lambda r: r.emulate.restricted_asymmetric and r.activation_symmetric,
        "restricted_asymmetric contradicts activation_symmetric; choose one.",
    ),
    Rule(
        lambda r: r.min_real_range is not None and r.min_real_range <= 0,
        "min_real_range must be positive, not {r.min_real_range}.",
    ),
    Rule(
        lambda r: r.block_size < 0 or r.block_size == 1,
        "block_size must be 0 (no blocks) or at least 2, not {r.block_size}.",
    ),
    Rule(
        lambda r: r.reduce_range and not r.weight.is_integer,
        "reduce_range has no meaning for {r.weight} weights.",
    ),
    Rule(
        lambda r: r.limits and r.scales != "power-of-two",
        "limits are about power-of-two scales; set scales='power-of-two' with them.",
    ),
    Rule(
        lambda r: r.limits and (r.per_channel or r.block_size),
        "limits need one scale for each tensor; leave out per_channel and block_size.",
    ),
    Rule(
        lambda r: (
            r.output_format.integer_ops
            and (_changed(r.place, ("fuse_activations",)) or _changed(r.emulate, ("fuse_pairs",)))
        ),
        "integer ops round behind each op, so {found} is not for the format qoperator.",
    ),
    Rule(
        _empty_range,
        "output_ranges of {found[0]!r} must be (low, high), not ({found[1]}, {found[2]}).",
    ),
    Rule(_bad_pattern, "{found[0]!r} is not a regular expression: {found[1]}."),
)
