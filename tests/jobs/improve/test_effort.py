"""More effort comes closer to float, and says step by step what helped.

`uneven_digits.onnx` is a small MobileNet with channels of uneven size, made by
`benchmarks/effort.py --save`; it is scored on the labelled images of the shipped demo.
"""

from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from support.equalization_models import make_mobilenet
from support.models import build, make_cnn, make_mlp, make_samples, node, quality

import bitwright
from bitwright import MSE, AdaRound, CrossLayerEqualization, RandomData, load_recipe
from bitwright.errors import ModelError
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.improve import effort as levels
from bitwright.jobs.improve import recipes
from bitwright.jobs.improve.effort import plans_by_ranges
from bitwright.jobs.improve.proposals.learning import default_learning
from bitwright.jobs.improve.recipes import RecipeMaker
from bitwright.jobs.opening import open_model
from bitwright.numerics.types import FLOAT16, UINT4, UINT8
from bitwright.recipe import Percentile

UNEVEN = Path(__file__).parents[2] / "fixtures" / "uneven_digits.onnx"


def accuracy(model):
    demo = bitwright.load_demo()
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    [logits] = session.run(None, {"image": demo.images})
    return float(np.mean(np.argmax(logits, axis=1) == demo.labels))


def quantized(effort, model=UNEVEN, data=None, recipe="int8", **options):
    data = bitwright.load_demo().calibration[:64] if data is None else data
    return bitwright.quantize(
        model, data=data, recipe=recipe, effort=effort, progress=False, **options
    )


def only(monkeypatch, effort, *names):
    """Let an effort try nothing but these, beside ranges."""
    kinds = [levels.choose_ranges, *(getattr(levels, name) for name in names)]
    monkeypatch.setitem(levels.LEVELS, effort, kinds)


def steps_of(result):
    """Return what was tried: the names, with the figures and what became of each."""
    found = [note for note in result.plan.notes if note.startswith("effort ")]
    return found[0].partition(": ")[2].split("; ") if found else []


def step_of(result, name):
    [step] = [step for step in steps_of(result) if name in step]
    return step


def with_an_odd_one(model, count):
    """Samples the first of which is forty times as large: a range for it is coarse for others."""
    samples = make_samples(model, count)
    samples[0] = {name: 40 * array for name, array in samples[0].items()}
    return samples


@pytest.fixture(scope="module")
def medium():
    return quantized("medium")


def test_medium_brings_back_what_plain_int8_loses(medium):
    plain = accuracy(onnx.load(UNEVEN))
    assert accuracy(quantized(None).to_proto()) < plain - 0.03
    assert accuracy(medium.to_proto()) >= plain - 0.01
    assert medium.samples_are_unseen
    assert medium.samples == 8


def test_each_step_is_listed_with_the_figures_of_both_candidates(medium):
    names = [
        "ranges by least squared error",
        "ranges by mean extremes",
        "ranges by extremes",
        "bias correction layer by layer",
        "equalization",
        "ranges of weights by least squared error",
    ]
    listed = steps_of(medium)
    assert [step for step in listed if any(step.startswith(name) for name in names)]
    assert [name for name in names if not any(step.startswith(name) for step in listed)] == []
    assert all(" dB -> " in step for step in listed[1:])
    [line] = [note for note in medium.plan.notes if note.startswith("effort medium")]
    assert line in medium.summary()


def test_what_was_kept_is_a_recipe_that_gives_a_model_as_good(medium):
    recipe = medium.plan.recipe
    assert recipe.name == "int8, effort medium"
    assert recipe.equalize is not None
    again = quantized(None, recipe=recipe)
    assert accuracy(again.to_proto()) >= accuracy(onnx.load(UNEVEN)) - 0.01
    applied = bitwright.apply_plan(medium.plan, UNEVEN)
    assert applied.to_proto().SerializeToString() == medium.to_proto().SerializeToString()


@pytest.mark.slow
def test_the_same_data_gives_the_same_bytes():
    model = make_mobilenet(channels=4, blocks=1, size=8)
    first, second = (quantized("medium", model, make_samples(model, 16)) for _ in range(2))
    assert first.to_proto().SerializeToString() == second.to_proto().SerializeToString()
    assert first.plan == second.plan


@pytest.mark.parametrize(
    ("recipe", "count", "same_as"),
    [(None, 24, "standard"), (None, 12, "standard"), ("int8", 24, "low")],
)
def test_no_effort_is_standard_where_nothing_else_is_said(recipe, count, same_as):
    model = make_cnn()
    samples = make_samples(model, count)
    asked, none = (
        bitwright.quantize(model, data=samples, recipe=recipe, effort=effort, progress=False)
        for effort in (same_as, None)
    )
    assert asked.to_proto().SerializeToString() == none.to_proto().SerializeToString()
    assert asked.plan == none.plan


def test_standard_is_closer_to_float_on_samples_that_it_has_not_seen():
    model = make_cnn()
    samples = with_an_odd_one(model, 40)
    standard, low = (
        quantized(effort, model, samples, None, purpose="size") for effort in ("standard", "low")
    )
    assert standard.plan.recipe.name == low.plan.recipe.name
    assert standard.plan.recipe.ranges != low.plan.recipe.ranges
    steps = steps_of(standard)
    assert [step.split(" dB")[0].rsplit(" ", 1)[0] for step in steps] == [
        "ranges by least squared error",
        "ranges by mean extremes",
        "ranges by extremes",
        "bias correction layer by layer",
    ]
    fresh = make_samples(model, 60)[40:]
    worst = [quality(model, found.to_proto(), fresh) for found in (low, standard)]
    assert worst[1] > worst[0] + 1
    again = quantized(None, model, samples, standard.plan.recipe)
    assert again.plan.tensors == standard.plan.tensors


def test_with_few_samples_standard_takes_what_is_best_on_average():
    model = make_cnn()
    result = quantized("standard", model, make_samples(model, 12), None, purpose="size")
    assert result.plan.recipe.ranges == MSE()
    assert result.plan.recipe.bias_correction == "sequential"
    assert result.plan.bias_shifts
    assert not steps_of(result)


def test_a_range_method_that_a_recipe_names_stays():
    model = make_cnn()
    recipe = load_recipe("int8").replace(ranges=Percentile())
    for effort, count in (("standard", 12), ("standard", 24), ("medium", 16)):
        result = quantized(effort, model, make_samples(model, count), recipe)
        assert result.plan.recipe.ranges == Percentile()


@pytest.mark.parametrize("options", [{"sketches": "s.safetensors"}, {"data": RandomData(count=24)}])
def test_standard_without_samples_to_compare_by_is_low(tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    options = {"data": make_samples(make_cnn(), 24), **options}
    found = bitwright.quantize(make_cnn(), effort="standard", progress=False, **options)
    assert found.plan.recipe.ranges == load_recipe("int8-per-channel").ranges


def test_a_plan_is_that_of_all_samples_and_gives_the_same_model():
    model = make_cnn()
    samples = with_an_odd_one(model, 40)
    options = {"data": samples, "purpose": "size", "progress": False}
    plan = bitwright.make_plan(model, **options)
    result = bitwright.quantize(model, holdout=False, **options)
    assert plan.tensors == result.plan.tensors
    assert any(note.startswith("effort standard") for note in plan.notes)
    assert not result.samples_are_unseen


def test_samples_to_measure_with_are_calibrated_on_by_none():
    model = make_mlp()
    samples = make_samples(model, 24)
    wild = [
        {k: v * (1000 if i % 8 == 7 else 1) for k, v in s.items()} for i, s in enumerate(samples)
    ]
    result = quantized("medium", model, wild)
    ranges = [entry.range for entry in result.plan.tensors.values() if entry.range is not None]
    assert ranges
    assert np.abs(ranges).max() < 100
    assert all(np.abs(sample["x"]).max() > 100 for sample in result.evaluation)


@pytest.mark.parametrize("size", [1.0, 1e-4])
@pytest.mark.slow
def test_a_clip_that_is_in_the_way_of_equalization_is_made_a_relu_where_that_helps(size):
    """Where all values are small the clip does nothing; else it is part of the function."""
    model = make_mobilenet(clip=(0, 6))
    for constant in model.graph.initializer:
        if constant.name.endswith("_b"):
            array = onnx.numpy_helper.to_array(constant) * np.float32(size)
            constant.CopyFrom(onnx.numpy_helper.from_array(array, constant.name))
    samples = [{k: v * np.float32(size) for k, v in s.items()} for s in make_samples(model, 32)]
    result = quantized("medium", model, samples)
    helps = size < 1
    assert step_of(result, "clips made ReLU").endswith("(kept)") == helps
    assert result.plan.recipe.rewrite.clip6_to_relu == helps
    low = quantized("low", model, samples)
    gain = quality(model, result.to_proto(), samples) - quality(model, low.to_proto(), samples)
    assert gain > (2 if helps else -1)


@pytest.mark.slow
def test_a_data_reader_that_is_read_once_will_do():
    model = make_cnn()
    result = quantized("medium", model, iter(make_samples(model, 16)))
    assert len(steps_of(result)) > 2
    assert result.data.startswith("14 samples")


def test_a_model_without_float_outputs_is_refused():
    steps = [node("Conv", ["x", "w"], ["c"], name="conv"), node("ArgMax", ["c"], ["y"], axis=1)]
    weight = np.ones((2, 1, 1, 1), np.float32)
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT64, None)
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 1, 4, 4])
    model = build(steps, [x], [out], {"w": weight})
    with pytest.raises(ModelError, match="no error to choose by"):
        quantized("medium", model, make_samples(model, 8))


@pytest.mark.slow
@pytest.mark.parametrize("effort", ["standard", "medium"])
def test_low_bit_weights_are_rounded_by_second_moments(effort):
    recipe = load_recipe("a8w4").replace(equalize=CrossLayerEqualization(steps=-1))
    result = quantized(effort, recipe=recipe)
    assert result.plan.recipe.rounding == "gptq"
    assert accuracy(result.to_proto()) > accuracy(onnx.load(UNEVEN)) - 0.02


@pytest.mark.slow
def test_high_fine_tunes_the_blocks_that_hurt(monkeypatch):
    pytest.importorskip("torch")
    # So few steps are no better than second moments, which are not what this is about.
    only(monkeypatch, "high", "correct_biases", "learn")
    recipe = load_recipe("a8w4").replace(
        fine_tune=AdaRound(iterations=300),
        equalize=CrossLayerEqualization(steps=-1),
        rounding="squant",
    )
    result = quantized("high", recipe=recipe)
    assert step_of(result, "AdaRound").endswith("(kept)")
    learning = result.plan.recipe.fine_tune
    assert learning.iterations == 300
    layers = {name for name, node in result.plan.nodes.items() if node.op in ("Conv", "Gemm")}
    assert 0 < len(learning.nodes) < len(layers)
    assert set(learning.nodes) < layers


@pytest.mark.slow
def test_high_lets_all_weights_learn_in_place_of_second_moments(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setitem(
        levels.LEVELS,
        "high",
        [levels.choose_ranges, partial(levels.choose, kind=levels.roundings), levels.learn],
    )
    tried, make = [], RecipeMaker.make
    monkeypatch.setattr(RecipeMaker, "make", lambda s, w: tried.append(w.recipe) or make(s, w))
    recipe = load_recipe("a8w4").replace(
        fine_tune=AdaRound(iterations=20),
        equalize=CrossLayerEqualization(steps=-1),
        rounding="squant",
    )
    result = quantized("high", recipe=recipe)
    assert step_of(result, "second moments").endswith("(kept)")
    learning = next(recipe for recipe in tried if recipe.fine_tune is not None)
    assert learning.fine_tune.nodes is None
    assert learning.rounding == "squant"


def test_low_bit_weights_have_no_integer_kernels_to_leave():
    model = make_cnn()
    result = quantized("medium", model, make_samples(model, 16), "a8w4")
    assert not [step for step in steps_of(result) if "most sensitive" in step]
    assert not result.plan.recipe.select.exclude


def test_high_lets_low_bit_activation_scales_learn_where_they_may():
    low_bit = load_recipe("a8w4").replace(activation=UINT4)
    assert default_learning(low_bit).learn_activation_scales
    assert not default_learning(low_bit.replace(scales="power-of-two")).learn_activation_scales
    assert default_learning(load_recipe("a8w4")) == AdaRound()


def test_the_node_that_loses_most_falls_back_to_float_where_it_does_little_work():
    """Its weight has one column a thousand times as large: one scale cannot hold the others."""
    wide, narrow = 256, 8
    uneven = np.random.default_rng(2).normal(size=(wide, narrow)).astype(np.float32) / 16
    uneven[:, 0] *= 1000
    nodes = [
        node("Gemm", ["x", "w"], ["a"], name="large"),
        node("Relu", ["a"], ["b"]),
        node("Gemm", ["b", "w"], ["c"], name="larger"),
        node("Gemm", ["c", "v"], ["d"], name="uneven"),
        node("Mul", ["d", "even"], ["y"], name="level"),
    ]
    square = np.random.default_rng(1).normal(size=(wide, wide)).astype(np.float32) / 16
    even = np.array([1e-3] + [1] * (narrow - 1), np.float32)
    model = build(
        nodes, {"x": [16, wide]}, {"y": [16, narrow]}, {"w": square, "v": uneven, "even": even}
    )
    recipe = load_recipe("int8").replace(optimize=False)
    result = quantized("medium", model, make_samples(model, 32), recipe)
    assert "uneven" in result.plan.recipe.select.exclude
    assert "large" not in result.plan.recipe.select.exclude
    steps = [step for step in steps_of(result) if "most sensitive node" in step]
    assert any(step.endswith("(kept)") for step in steps)


@pytest.mark.slow
def test_gains_are_tried_with_shifts_and_what_is_kept_can_be_carried_out_again():
    demo = bitwright.load_demo()
    samples = demo.calibration[:36]
    recipe = load_recipe("a8w4").replace(per_channel=True)
    result = quantized("medium", demo.model_path, samples, recipe)
    step = step_of(result, "gain correction")
    assert result.plan.recipe.gain_correction == step.endswith("(kept)")
    again = quantized(None, demo.model_path, samples, result.plan.recipe)
    assert again.plan.weight_gains.keys() == result.plan.weight_gains.keys()


@pytest.mark.slow
def test_concatenated_heads_are_judged_apart():
    # Boxes of hundreds beside scores: by SQNR of the whole, scores would not count at all.
    nodes = [
        node("Gemm", ["x", "w"], ["small"]),
        node("Sigmoid", ["small"], ["scores"]),
        node("Gemm", ["x", "v"], ["boxes"]),
        node("Concat", ["boxes", "scores"], ["y"], axis=1),
    ]
    constants = {
        "w": np.random.default_rng(0).normal(size=(8, 20)).astype(np.float32),
        "v": np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32) * 300,
    }
    model = build(nodes, {"x": [1, 8]}, {"y": [1, 24]}, constants)
    result = quantized("medium", model, make_samples(model, 64))
    parts = result.judgement.outputs[0].parts
    assert ("sigmoid", (4, 24)) in {(part.kind, part.span) for part in parts}


def test_a_step_that_cannot_be_taken_is_left_out_with_the_reason(monkeypatch):
    def refuse(*_):
        raise ModelError("it runs nowhere.")

    monkeypatch.setattr("bitwright.jobs.bias_correction.correct_biases", refuse)
    model = make_cnn()
    result = quantized("medium", model, make_samples(model, 16))
    assert "bias correction layer by layer: left out, it runs nowhere" in steps_of(result)
    assert result.plan.recipe.bias_correction == "off"


def test_one_pass_gives_the_plans_of_all_range_methods(monkeypatch):
    """Each is the plan that its recipe gives by itself."""
    model = make_cnn()
    samples = with_an_odd_one(model, 24)
    passes = []
    original = recipes.observe_everything
    monkeypatch.setattr(
        recipes,
        "observe_everything",
        lambda *given, **options: passes.append(1) or original(*given, **options),
    )
    recipe = load_recipe("int8-per-channel")
    found = list(plans_by_ranges(open_model(model, recipe), Calibration(samples, holdout=False)))
    assert [plan.recipe.ranges.__struct_config__.tag for plan in found] == [
        "minmax", "mse", "mean-extremes",
    ]  # fmt: skip
    assert len(passes) == 1
    for plan in found:
        alone = bitwright.make_plan(model, data=samples, recipe=plan.recipe, effort="low")
        for key, entry in alone.tensors.items():
            assert plan.tensors[key].zero_point == entry.zero_point
            if entry.scale is not None:
                np.testing.assert_allclose(plan.tensors[key].scale, entry.scale, rtol=1e-6)


@pytest.mark.parametrize(("count", "activation"), [(6, UINT8), (24, FLOAT16)])
def test_where_there_is_no_choice_the_plan_of_the_recipe_is_alone(count, activation):
    model = make_cnn()
    samples = make_samples(model, count)
    given = load_recipe("int8").replace(activation=activation, format="extended")
    found = list(plans_by_ranges(open_model(model, given), Calibration(samples, holdout=False)))
    assert len(found) == 1
    assert found[0].recipe == given
