"""Recipes whose options contradict each other are refused before any work."""

from __future__ import annotations

import pytest

from bitwright import load_recipe
from bitwright.errors import RecipeError
from bitwright.recipe import MinMSE, NonOverflow, Recipe
from bitwright.recipe.rules import RULES

ADAROUND = {"fine_tune": {"method": "adaround"}}
RESTRICTED = {"emulate": {"restricted_asymmetric": True}}
LIMITS = {"scales": "power-of-two", "limits": {}}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"activation": "int8", "weight": "uint8"}, "no kernel"),
        ({"ranges": {"method": "min-mse"}}, "set scales='power-of-two'"),
        ({"ranges": {"method": "non-overflow"}}, "set scales='power-of-two'"),
        (
            {**RESTRICTED, "activation": "int8"},
            "uint8 activations only",
        ),
        ({**RESTRICTED, "activation_symmetric": True}, "contradicts"),
        ({"min_real_range": 0}, "must be positive"),
        ({"block_size": 1}, "at least 2"),
        ({"block_size": -4}, "at least 2"),
        ({"select": {"exclude": ["re:("]}}, "not a regular expression"),
        ({"ranges": {"method": "percentile", "percentile": 0}}, r"\(0, 100\]"),
        ({"ranges": {"method": "percentile", "percentile": 101}}, r"\(0, 100\]"),
        ({"ranges": {"method": "minmax", "moving_average": 2}}, r"\(0, 1\]"),
        ({"ranges": {"method": "entropy", "bins": 128}}, "nothing to search"),
        ({"overrides": {"x": {"scale": 0.5}}}, "both scale and zero_point"),
        ({"overrides": {"x": {"rmin": (0.5, 0.25)}}}, "both rmin and rmax"),
        (
            {"overrides": {"x": {"scale": 0.5, "zero_point": 0, "symmetric": True}}},
            "leaves nothing for symmetric",
        ),
        ({"activation": "float8e4m3fn"}, "use one float type for both"),
        (
            {"activation": "float8e4m3fn", "weight": "float8e4m3fn", "reduce_range": True},
            "reduce_range",
        ),
    ],
    ids=str,
)
def test_a_contradiction_is_refused_before_any_work(fields, said):
    with pytest.raises(RecipeError, match=said) as error:
        load_recipe(fields)
    assert "\n" not in str(error.value)


def test_power_of_two_methods_go_with_power_of_two_scales():
    for method in (NonOverflow(), MinMSE()):
        assert Recipe(ranges=method, scales="power-of-two").ranges == method


# What breaks each rule of the table, in its order, and part of the sentence.
BROKEN = [
    ({"mode": "dynamic", "weight": "int16"}, "weights in int8 or uint8, not int16"),
    ({"mode": "dynamic", "activation": "int8"}, "activations in uint8, not int8"),
    ({"mode": "dynamic", "equalize": {"absorb_biases": True}}, "which reads no data"),
    ({"mode": "cast"}, "both in float16 or both in bfloat16, not int8 and uint8"),
    ({"base": "float16", "scales": "int16"}, "scales has no effect in the mode cast"),
    ({"float_io": False}, "float_io is for the mode cast"),
    (
        {"mode": "weight-only", "rewrite": {"fuse_gelu": True}},
        "rewrite.fuse_gelu has no effect in weight-only mode",
    ),
    ({"cache": "int8"}, "cache='int8' is for the modes weight-only and dynamic"),
    (
        {"base": "int8-cache", "overrides": {"x": {"symmetric": True}}},
        "give no scales of caches, and weight-only mode",
    ),
    ({"dynamic_scale": "tensor"}, "dynamic_scale is for the mode dynamic"),
    (
        {
            "mode": "weight-only",
            "select": {"sizes": [{"kind": "small_products", "consequence": "slow", "ops": []}]},
        },
        "select.sizes is for the mode static",
    ),
    ({"weights": {"bits": 8}}, "weights is for the mode weight-only"),
    ({"bias_correction": "fast", **ADAROUND}, "take 'sequential' with fine_tune"),
    ({"mode": "dynamic", "rounding": "gptq"}, "is for static mode"),
    ({"rounding": "gptq", "weight": "int16"}, "2- to 8-bit integers"),
    ({"rounding": "gptq", "emulate": {"weight_pairs": True}}, "keeps float weights"),
    ({"gain_correction": True}, "set bias_correction='sequential' with it"),
    ({"gain_correction": True, "bias_correction": "sequential"}, "set per_channel=true"),
    (
        {
            "gain_correction": True,
            "bias_correction": "sequential",
            "per_channel": True,
            "activation": "float16",
            "weight": "float16",
        },
        "float16 weights have none of their own",
    ),
    ({"weight": "float16", "activation": "float16", **ADAROUND}, "only integer weights learn"),
    ({"mode": "weight-only", "fine_tune": {"method": "adaquant"}}, "take signround or adaround"),
    ({"fine_tune": {"method": "signround"}}, "take adaround or adaquant where activations"),
    (
        {"mode": "weight-only", "fine_tune": {"method": "adaround", "nodes": ["a"]}},
        "nodes of fine_tune has no effect in weight-only mode",
    ),
    (
        {"scales": "int16", "fine_tune": {"method": "adaquant", "learn_scales": True}},
        "learn_scales would leave scales='int16'",
    ),
    (
        {
            "scales": "power-of-two",
            "fine_tune": {"method": "adaround", "learn_activation_scales": True},
        },
        "learn_activation_scales would leave scales='power-of-two'",
    ),
    (
        {
            "activation": "bfloat16",
            "fine_tune": {"method": "adaround", "learn_activation_scales": True},
        },
        "learn_activation_scales is for integers, and bfloat16 activations have no scale",
    ),
    ({"overrides": {"x": {"ranges": {"method": "min-mse"}}}}, "the range method MinMSE gives"),
    ({"bias": "int16", "quantize_bias": False}, "bias='int16' contradicts quantize_bias=False"),
    (
        {**RESTRICTED, "scales": "int16"},
        "restricted_asymmetric chooses float scales and contradicts scales='int16'",
    ),
    ({"weight": "bfp16"}, "bfp16 is for the formats extended and fix-neuron"),
    ({"activation": "float16"}, "float16 activations with int8 weights run nowhere in the format"),
    (
        {"format": "extended", "weight": "bfp16", "block_size": 32},
        "block_size has no meaning for bfp16 weights",
    ),
    ({"format": "extended", "weight": "bfp16", **LIMITS}, "limits are about integers"),
    ({"format": "extended", "emulate": {"contrib_ops": True}}, "name two domains for one op"),
    (
        {"format": "extended", "emulate": {"block_rounding": "half-even"}},
        "emulate.block_rounding is for shared-exponent formats",
    ),
    (
        {"format": "fix-neuron", "emulate": {"vendor_names": "quark"}},
        "emulate.vendor_names is about pairs and blocks",
    ),
    (
        {"format": "fix-neuron", "emulate": {"weight_pairs": True}},
        "emulate.weight_pairs has no place in the format fix-neuron",
    ),
    ({"format": "fix-neuron", "block_size": 32}, "block_size has no place in the format fix-neur"),
    (
        {"format": "fix-neuron", "emulate": {"dedicated_dequantizers": True}},
        "emulate.dedicated_dequantizers is about pairs",
    ),
    ({"float16": "cast"}, "float16='cast' is for weights alone"),
    ({"format": "extended", "float16": "keep"}, "the format extended computes scales in float32"),
    ({"float16": "keep", "activation": "uint16"}, "too few to hold uint16 values"),
    ({"activation": "int8", "weight": "uint8"}, "have no kernel in ONNX Runtime"),
    (
        {**RESTRICTED, "activation": "int8"},
        "for uint8 activations only",
    ),
    ({**RESTRICTED, "activation_symmetric": True}, "choose one"),
    ({"min_real_range": 0}, "min_real_range must be positive, not 0"),
    ({"block_size": 1}, "block_size must be 0 (no blocks) or at least 2, not 1"),
    (
        {"activation": "float16", "weight": "float16", "reduce_range": True},
        "reduce_range has no meaning for float16 weights",
    ),
    ({"limits": {}}, "set scales='power-of-two' with them"),
    ({**LIMITS, "per_channel": True}, "limits need one scale for each tensor"),
    (
        {"format": "qoperator", "emulate": {"fuse_pairs": [["Conv", "Relu"]]}},
        "fuse_pairs is not for the format qoperator",
    ),
    ({"output_ranges": {"Relu": [1, 0]}}, "output_ranges of 'Relu' must be (low, high), not (1.0"),
    ({"select": {"exclude": ["re:("]}}, "'re:(' is not a regular expression"),
]


@pytest.mark.parametrize(("rule", "broken"), list(zip(RULES, BROKEN, strict=True)))
def test_every_rule_of_the_table_has_a_recipe_that_breaks_it(rule, broken):
    fields, said = broken
    with pytest.raises(RecipeError) as error:
        load_recipe(fields)
    assert said in str(error.value)
    assert rule.sentence.rpartition("}")[2] in str(error.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"mode": "dynamic", "scales": "int16"}, "scales has no effect in dynamic mode"),
        ({"mode": "dynamic", "place": {"isolated": True}}, "place.isolated has no effect in dyna"),
        ({"mode": "weight-only", "per_channel": True}, "per_channel has no effect in weight-only"),
        ({"mode": "dynamic", "emulate": {"weight_pairs": True}}, "emulate.weight_pairs has no eff"),
        (
            {"base": "float16", "emulate": {"limits": {"shift_cut": False}}},
            "emulate.limits has no effect in the mode cast",
        ),
        (
            {
                "mode": "weight-only",
                **ADAROUND,
                "emulate": {"fine_tune": {"output_pairs": True}},
            },
            "output_pairs of fine_tune has no effect in weight-only mode",
        ),
    ],
)
def test_what_a_mode_has_no_use_for_is_refused(fields, said):
    with pytest.raises(RecipeError) as error:
        load_recipe(fields)
    assert said in str(error.value)
