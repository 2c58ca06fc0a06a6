"""Switches of `recipes` become fields of a recipe; what does nothing says so."""

import pytest

import bitwright
from bitwright.compat.neural_compressor.recipe_switches import apply_switches
from bitwright.graph import load_model
from bitwright.recipe import Recipe

MODEL = load_model(bitwright.load_demo().model_path)


def switched(**given):
    return apply_switches(Recipe(), MODEL, given)


def test_what_is_as_usual_changes_nothing():
    usual = {
        "smooth_quant": False,
        "first_conv_or_matmul_quantization": True,
        "pre_post_process_quantization": True,
        "layer_wise_quant": False,
        "graph_optimization_level": "ENABLE_BASIC",
        "gptq_args": {"actorder": True},
    }
    assert switched(**usual) == apply_switches(Recipe(), MODEL, None) == Recipe()


def test_smooth_quant_has_a_strength():
    assert switched(smooth_quant=True).smooth.alpha == 0.5
    given = {"alpha": [0.7], "folding": False}
    found = switched(smooth_quant=True, smooth_quant_args=given)
    assert found.smooth.alpha == 0.7 and not found.emulate.smooth_folding
    assert switched(smooth_quant=True, smooth_quant_args={"alpha": "auto"}).smooth.alpha == "auto"
    with pytest.warns(UserWarning, match="a list of alphas is taken as 'auto'"):
        given = {"alpha": [0.3, 0.5]}
        assert switched(smooth_quant=True, smooth_quant_args=given).smooth.alpha == "auto"
    with pytest.warns(UserWarning, match="scales_per_op of smooth_quant_args is ignored"):
        switched(smooth_quant=True, smooth_quant_args={"scales_per_op": True})


def test_layers_at_the_ends_stay_float():
    assert switched(first_conv_or_matmul_quantization=False).select.exclude == ("re:stem_conv",)
    assert switched(last_conv_or_matmul_quantization=False).select.exclude == ("re:deep_b_conv",)
    [behind] = switched(pre_post_process_quantization=False).select.exclude
    assert "classify" in behind and "average" in behind and "conv" not in behind


def test_pairs_are_placed():
    found = switched(
        add_qdq_pair_to_weight=True,
        dedicated_qdq_pair=True,
        optypes_to_exclude_output_quant=["Conv", "Gemm"],
    )
    assert found.emulate.weight_pairs and found.emulate.dedicated_pairs
    assert found.place.unquantized_outputs == ("Conv", "Gemm")


def test_integer_operators_have_no_pairs():
    base = Recipe(format="qoperator")
    with pytest.warns(UserWarning, match="dedicated_qdq_pair of recipes is ignored: operators in"):
        assert apply_switches(base, MODEL, {"dedicated_qdq_pair": True}) == base
    assert apply_switches(base, MODEL, {"add_qdq_pair_to_weight": False}) == base


def test_biases_are_corrected_and_clean_ups_left_out():
    assert switched(fast_bias_correction=True).bias_correction == "fast"
    assert not switched(graph_optimization_level="DISABLE_ALL").optimize


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"graph_optimization_level": "ENABLE_ALL"}, "fuses operators when it opens the result"),
        ({"gemm_to_matmul": True}, "gemm_to_matmul of recipes is ignored: the runtime has integer"),
        ({"layer_wise_quant": True}, "layer_wise_quant of recipes is ignored"),
        ({"smoth_quant": True}, "option 'smoth_quant' in recipes is unknown and ignored. Did you"),
    ],
)
def test_what_does_nothing_is_warned_of(given, sentence):
    with pytest.warns(UserWarning, match=sentence):
        assert switched(**given) == Recipe()
