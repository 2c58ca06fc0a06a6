"""Settings by patterns of types and names: floats, scales of channels, ranges."""

import pytest

import bitwright
from bitwright import load_recipe
from bitwright.compat.neural_compressor.op_settings import apply_op_settings, setting_by_node
from bitwright.compat.neural_compressor.utils.constant import (
    BF16,
    FP32,
    INT8_SYM_MINMAX_PERTENSOR,
    UINT8_ASYM_KL_PERTENSOR,
)
from bitwright.errors import RecipeError
from bitwright.graph import load_model
from bitwright.recipe import Entropy, MinMax, Recipe

MODEL = load_model(bitwright.load_demo().model_path)
BASE = Recipe(per_channel=True)


def applied(by_type=None, by_name=None):
    return apply_op_settings(BASE, MODEL, by_type, by_name)


def test_operators_stay_float_by_type_and_by_name():
    found = applied({"Add": FP32, "Max.*": FP32}, {"deep_a_conv": FP32})
    assert found.select.exclude_op_types == ("Add", "MaxPool")
    assert found.select.exclude == ("re:deep_a_conv",)


def test_settings_may_be_lists_or_not_and_weights_alone_decide():
    for setting in ({"weight": {"dtype": "fp32"}}, {"activation": {"dtype": ["fp32"]}}):
        assert applied(by_name={"classify": setting}).select.exclude_op_types == ("Gemm",)
    assert applied({"Conv": {"weight": {"dtype": ["int8"]}, "activation": None}}) == applied()


def test_names_go_before_types():
    found = applied({"Conv": FP32}, {"stem_conv": {"weight": {"dtype": ["int8"]}}})
    assert found.select.exclude_op_types == ()
    assert "deep_b_conv" in found.select.exclude[0] and "stem_conv" not in found.select.exclude[0]


def test_weights_have_one_scale_by_type_and_by_name():
    setting = {"weight": INT8_SYM_MINMAX_PERTENSOR}
    assert applied({"Conv": setting}).place.per_tensor_ops == ("Conv",)
    found = applied(by_name={"stem_conv": setting})
    [(name, override)] = found.overrides.items()
    assert override.per_tensor and "stem" in name
    dynamic = load_recipe("int8-dynamic")
    by_type = apply_op_settings(dynamic, MODEL, {"Conv": setting}, None, dynamic=True)
    assert dynamic.per_channel and not by_type.per_channel


def test_ranges_are_those_of_the_whole_model():
    everywhere = {".*": {"activation": UINT8_ASYM_KL_PERTENSOR}}
    assert applied(everywhere).ranges == Entropy()
    assert applied({"Conv": {"activation": {"algorithm": ["kl", "minmax"]}}}).ranges == MinMax()
    with pytest.warns(UserWarning, match="algorithm 'kl' is that of all activations"):
        assert applied({"Conv": {"activation": UINT8_ASYM_KL_PERTENSOR}}).ranges == Entropy()
    both = {
        "Conv": {"activation": {"algorithm": ["kl"]}},
        "Gemm": {"activation": {"algorithm": ["percentile"]}},
    }
    with pytest.raises(RecipeError, match="ranges by one algorithm here"):
        applied(both)


def test_weights_alone_have_bits_groups_and_an_algorithm():
    weight = {"bits": 8, "group_size": [64], "scheme": ["asym"], "algorithm": "GPTQ"}
    given = {".*": {"weight": weight, "activation": {"dtype": ["fp32"]}}}
    found = setting_by_node(MODEL, given, {"classify": FP32})
    assert found["classify"].keep_float and found["classify"].algorithm == "GPTQ"
    stem = found["stem_conv"]
    assert not stem.keep_float and stem.schemes == ("asym", None)
    assert (stem.bits, stem.group_size, stem.algorithm) == (8, 64, "GPTQ")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"Cnov": FP32}, "op_type_dict 'Cnov' is ignored: nothing in the model is called so"),
        ({"Conv": BF16}, "a dtype in op_type_dict of 'Conv' stands for fp32"),
        ({"Conv": {"weight": {"scheme": ["asym"]}}}, "scheme 'asym' of weights is ignored"),
        ({"Conv": {"activation": {"scheme": ["sym"]}}}, "scheme 'sym' of activations is ignored"),
        ({"Conv": {"weight": {"dtpye": ["fp32"]}}}, "option 'dtpye' .* is unknown and ignored"),
    ],
)
def test_what_does_nothing_is_warned_of(given, sentence):
    with pytest.warns(UserWarning, match=sentence):
        applied(given)


def test_a_pattern_must_be_one():
    with pytest.raises(RecipeError, match="op_name_dict: 'a\\(' is no regular expression"):
        applied(by_name={"a(": FP32})
