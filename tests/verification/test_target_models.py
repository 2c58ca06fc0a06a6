"""Models of many kinds, quantized for a target, keep its rules and compute what the float one does.

Quick ones here; every model for every target is in the slow tests below.
"""

import numpy as np
import pytest
from support.models import make_samples
from support.ocr_models import ocr_case
from support.target_models import MODELS

import bitwright
from bitwright import graph, load_recipe
from bitwright.run import Session

TARGETS = (
    "x86-avx2",
    "x86-vnni",
    "arm-cpu",
    "cpu-any",
    "npu-cnn",
    "npu-transformer",
    "qualcomm-htp:v66",
    "qualcomm-htp:v68",
    "qualcomm-htp",
    "nvidia-tensorrt",
    "nvidia-tensorrt:fp8",
    "intel-openvino:cpu",
    "intel-openvino:avx2",
    "intel-openvino:gpu",
    "intel-openvino:npu",
    "directml",
)
WEIGHT_ONLY = ("nvidia-tensorrt:int4", "nvidia-tensorrt:nvfp4", "webgpu")
# The recipe's own error on these models with random weights: a MobileNet with uneven channels
# loses most.
LEAST_SQNR = 12.0
# Where a model has no other products than small ones, which are better left float on a GPU, they
# are quantized all the same, and the rule says so. CPUs have no integer ConvTranspose: only its
# weights are stored in 8 bits.
KNOWN = {
    ("small_products", None),
    ("small_convolutions", None),
    ("float8_convolutions", None),
    ("unfused", "ConvTranspose"),
}
# Recipes that models are not trained for: one scale for uneven channels, scales of powers of two
# (up to a bit less), or three bits of a float's fraction.
LEAST = {
    ("demo", "npu-cnn"): 28.0,
    ("demo", "nvidia-tensorrt:fp8"): 19.0,
    ("demo", "nvidia-tensorrt:nvfp4"): 20.0,
    # One scale for both inputs of its sums, whose channels are far apart.
    ("mobilenet", "intel-openvino:npu"): 5.0,
    ("mobilenet", "npu-cnn"): 4.0,
    ("mobilenet with relu6", "npu-cnn"): 4.0,
    ("mobilenet", "npu-transformer"): 8.0,
    ("mobilenet with relu6", "npu-transformer"): 8.0,
    ("cls", "npu-cnn"): 5.0,
}
# What 8 bits leave of the text models, on 16 lines; `test_why_...` has the reasons.
# The classifier gives two probabilities a line, and some lines are on the fence between them.
LEAST_OF_TEXT = {"cls": 9.0, "det": 10.0, "rec": 6.0}
# One scale for depthwise weights whose channels are far apart: the recognizer is lost, and the
# result says so.
LOST = {("rec", target) for target in ("npu-cnn", "npu-transformer", "qualcomm-htp:v66")}


def measured(result, samples):
    """Return the SQNR of a result in dB, over all samples.

    Float8 runs where nothing is fused, and float4 not at all: it is measured in float.
    """
    if result.plan.recipe.mode == "weight-only":
        return min(output.sqnr for output in result.outputs)
    level = "all" if result.plan.recipe.place.must_run else "disabled"
    float_session = Session(graph.load_model(result.source))
    session = Session(result.model, level=level)
    wanted, found = (
        np.concatenate([one.runtime.run(None, sample)[0].reshape(-1) for sample in samples])
        for one in (float_session, session)
    )
    return 10 * np.log10(np.mean(wanted**2) / np.mean((wanted - found) ** 2))


def fixed(recipe, samples):
    """Return a recipe with the shapes of the samples."""
    shapes = {name: array.shape for name, array in samples[0].items()}
    return recipe.replace(rewrite={"fix_shapes": shapes})


def check(model, target, samples, least=LEAST_SQNR):
    recipe = load_recipe(None, target).replace(place={"purpose": "size"})
    if recipe.mode == "static":
        recipe = fixed(recipe, samples)
    made = bitwright.quantize(model, data=samples, recipe=recipe, holdout=False)
    found = bitwright.verify(made.model, target)
    assert not found.errors
    warned = {(finding.rule, finding.values.get("op")) for finding in found.warnings}
    assert warned <= KNOWN
    assert measured(made, samples) > least
    assert found.residence.resident_ops == found.residence.ops
    assert found.residence.partitions == 1
    return made


def check_small(name, target):
    model = MODELS[name]()
    check(model, target, make_samples(model, 4), LEAST.get((name, target), LEAST_SQNR))


@pytest.mark.parametrize("target", ["x86-vnni", "nvidia-tensorrt:int4", "nvidia-tensorrt:nvfp4"])
def test_a_transformer_keeps_the_rules_of_its_target(target):
    check_small("transformer", target)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_every_model_for_every_target_verifies_clean_and_runs(name, target):
    check_small(name, target)


@pytest.mark.slow
@pytest.mark.parametrize("target", WEIGHT_ONLY)
@pytest.mark.parametrize("name", ["transformer", "mlp"])
def test_low_bit_weights_for_a_target_verify_clean_and_run(name, target):
    check_small(name, target)


@pytest.mark.slow
@pytest.mark.parametrize("target", (*TARGETS, *WEIGHT_ONLY))
def test_the_demo_for_every_target_verifies_clean_and_runs(target):
    demo = bitwright.load_demo()
    samples = [{"image": image[None]} for image in demo.calibration[:8]]
    check(demo.model_path, target, samples, LEAST.get(("demo", target), 30.0))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["cls", "rec", "det"])
def test_models_of_text_for_every_target_verify_clean_and_run(kind, target):
    path, samples, _ = ocr_case(kind, 16)
    lost = (kind, target) in LOST
    least = -3.0 if lost else LEAST.get((kind, target), LEAST_OF_TEXT[kind])
    made = check(path, target, samples, least)
    said = any("has little in common with that of the float model" in n for n in made.plan.notes)
    assert said or not lost


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "option", "low", "high"),
    [
        # 16-bit activations, and still nothing is left: it is the one scale of the weights.
        ("qualcomm-htp:v66", {"activation": "uint16"}, -3, 4),
        # With scales of channels, what is lost is lost by activations of 8 bits.
        ("qualcomm-htp", {"activation": "uint16"}, 18, 60),
        ("qualcomm-htp", {}, 5, 14),
    ],
)
def test_why_the_recognizer_loses_what_it_loses(target, option, low, high):
    path, samples, _ = ocr_case("rec", 4)
    recipe = fixed(load_recipe(None, target).replace(**option), samples)
    made = bitwright.quantize(path, data=samples, recipe=recipe, holdout=False)
    assert low < measured(made, samples) < high
