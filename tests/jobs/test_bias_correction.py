"""Bias correction in whole jobs, measured on what ONNX Runtime computes."""

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from support.models import build, make_cnn, make_mlp, make_samples, node, normal, run, weight
from support.plans import edited

import bitwright
from bitwright import AdaRound, Recipe, load_recipe
from bitwright.data import HoldoutSplit
from bitwright.errors import DataError, PlanError, RecipeError
from bitwright.numerics.types import INT8, INT16

A8W4 = load_recipe("a8w4").replace(rounding="squant")
"""Weights of 4 bits, whose plan is complete without data."""


def make_layers(*, biased=True):
    """Convolutions, one transposed, one depthwise, and a Gemm; what they read is not centred."""
    constants = {
        "w1": weight(6, 3, 3, 3, seed=1),
        "w2": weight(6, 1, 3, 3, seed=2),
        "w3": weight(6, 4, 2, 2, seed=3),
        "w4": weight(4, 5, seed=4),
    }
    if biased:
        sizes = {"b1": 6, "b2": 6, "b3": 4, "b4": 5}
        constants |= {name: normal(size, seed=9, size=0.3) for name, size in sizes.items()}

    def reads(x, number):
        return [x, f"w{number}"] + [f"b{number}"] * biased

    steps = [
        node("Conv", reads("x", 1), ["c1"], name="conv", pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"], name="relu"),
        node("Conv", reads("r1", 2), ["c2"], name="depthwise", group=6, pads=[1, 1, 1, 1]),
        node("Relu", ["c2"], ["r2"], name="relu2"),
        node("ConvTranspose", reads("r2", 3), ["c3"], name="transposed", strides=[2, 2]),
        node("Relu", ["c3"], ["r3"], name="relu3"),
        node("GlobalAveragePool", ["r3"], ["pool"], name="pool"),
        node("Flatten", ["pool"], ["flat"], name="flat"),
        node("Gemm", reads("flat", 4), ["y"], name="gemm"),
    ]
    return build(steps, {"x": [1, 3, 8, 8]}, {"y": [1, 5]}, constants)


def positive_samples(model, count=48):
    return [{k: np.abs(v) for k, v in s.items()} for s in make_samples(model, count)]


def mean_error(model, quantized, samples):
    one, other = (
        onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
        for m in (quantized, model)
    )
    gaps = [one.run(None, s)[0].astype(np.float64) - other.run(None, s)[0] for s in samples]
    return float(np.abs(np.mean(gaps, axis=0)).mean())


def corrected(plan):
    """Return how many layers a plan says were corrected."""
    [note] = [note for note in plan.notes if note.startswith("corrected the biases of ")]
    return int(note.split()[4])


def quantized(model, samples, recipe, mode, **changes):
    wanted = load_recipe(recipe).replace(bias_correction=mode, **changes)
    return bitwright.quantize(model, data=samples, recipe=wanted, progress=False)


@pytest.mark.parametrize("mode", ["fast", "sequential"])
@pytest.mark.parametrize(
    ("recipe", "changes", "biased"),
    [
        ("int8", {"rounding": "nearest"}, False),
        ("a8w4", {"rounding": "nearest"}, True),
        ("a8w4", {"rounding": "squant"}, True),
        ("a8w4", {"rounding": "nearest", "per_channel": False}, True),
        ("int8", {"rounding": "nearest", "format": "qoperator"}, True),
        ("npu-cnn", {"rounding": "nearest"}, False),
        ("int8", {"rounding": "nearest", "scales": "power-of-two"}, True),
        ("int8", {"rounding": "nearest", "bias": "weight"}, False),
        ("int8", {"rounding": "nearest", "format": "extended", "bias": "int16"}, True),
    ],
)
@pytest.mark.sampled(8)
def test_the_mean_of_the_output_comes_closer_to_float(mode, recipe, changes, biased):
    model = make_layers(biased=biased)
    samples = positive_samples(model, 32)
    before, after = (
        mean_error(model, quantized(model, samples, recipe, on, **changes).to_proto(), samples)
        for on in ("off", mode)
    )
    assert after < before
    if "w4" in recipe:
        assert after < before / 2


def test_layers_of_other_ranks_and_sizes_have_the_same_activation_function():
    steps = [
        node("Conv", ["x", "w1"], ["c1"], name="conv", pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"], name="relu"),
        node("Conv", ["r1", "w2"], ["c2"], name="conv2", strides=[2, 2]),
        node("Relu", ["c2"], ["r2"], name="relu2"),
        node("Flatten", ["r2"], ["flat"], name="flat"),
        node("Gemm", ["flat", "w3", "b3"], ["g"], name="gemm"),
        node("Relu", ["g"], ["r3"], name="relu3"),
        node("MatMul", ["r3", "w4"], ["y"], name="product"),
    ]
    constants = {"w1": weight(6, 3, 3, 3), "w2": weight(4, 6, 2, 2), "w3": weight(64, 8)}
    constants |= {"b3": normal(8), "w4": weight(8, 5)}
    model = onnx.shape_inference.infer_shapes(
        build(steps, {"x": [1, 3, 8, 8]}, {"y": [1, 5]}, constants)
    )
    samples = positive_samples(model)
    plain, corrected = (
        bitwright.quantize(
            model, data=samples, recipe=Recipe(bias_correction=mode), holdout=False
        ).to_proto()
        for mode in ("off", "sequential")
    )
    assert corrected != plain and mean_error(model, corrected, samples) < 0.01


def test_with_one_layer_fast_correction_takes_the_mean_error_away():
    """With activations of 16 bits nothing but the weights is off: the formula is exact."""
    constants = {"w": weight(3, 6), "b": normal(6)}
    step = node("Gemm", ["x", "w", "b"], ["y"], name="gemm")
    model = build([step], {"x": [1, 3]}, {"y": [1, 6]}, constants)
    samples = positive_samples(model, 64)
    changes = {"activation": INT16, "activation_symmetric": True, "weight": INT8}
    errors = {
        mode: mean_error(
            model,
            quantized(model, samples, "int8", mode, **changes).to_proto(),
            list(HoldoutSplit(samples)),  # those that it was calibrated on
        )
        for mode in ("off", "fast", "sequential")
    }
    assert errors["fast"] < errors["off"] / 20
    assert errors["sequential"] < errors["off"] / 20


def test_the_plan_holds_the_shifts_and_applies_without_data():
    model = make_layers()
    samples = positive_samples(model)
    for mode in ("fast", "sequential"):
        recipe = A8W4.replace(bias_correction=mode)
        plan = bitwright.make_plan(model, data=samples, recipe=recipe, progress=False)
        assert {len(shift) for shift in plan.bias_shifts.values()} == {4, 5, 6}
        again = bitwright.QuantPlan.from_json(plan.to_json())
        assert again == plan
        first, second = (bitwright.apply_plan(p, model).to_proto() for p in (plan, again))
        assert first.SerializeToString() == second.SerializeToString()
        plain = bitwright.make_plan(model, data=samples, recipe=A8W4, progress=False)
        off = bitwright.apply_plan(plain, model).to_proto()
        assert mean_error(model, first, samples) < mean_error(model, off, samples)


def test_the_pass_over_the_data_that_finds_ranges_finds_the_means_too():
    model = make_layers()
    recipe = load_recipe("int8").replace(bias_correction="fast")
    once = iter(positive_samples(model))
    result = bitwright.quantize(model, data=once, recipe=recipe, progress=False)
    assert corrected(result.plan) >= 3


def test_sketches_in_a_file_hold_the_means(tmp_path):
    model = make_layers()
    samples = positive_samples(model)
    recipe = load_recipe("int8").replace(bias_correction="fast")
    options = {"recipe": recipe, "sketches": tmp_path / "s.safetensors", "progress": False}
    first = bitwright.quantize(model, data=samples, **options)
    second = bitwright.quantize(model, data=samples, **options)
    assert first.plan.bias_shifts == second.plan.bias_shifts


def test_a_layer_without_a_bias_is_named_in_a_note():
    model = make_mlp()
    result = quantized(model, make_samples(model, 8), "int8", "fast")
    assert any("nothing adds a bias behind it" in note for note in result.plan.notes)


def test_off_leaves_every_byte_as_it_was():
    model = make_cnn()
    samples = make_samples(model, 8)
    plain = bitwright.quantize(model, data=samples, recipe="int8", progress=False)
    off = quantized(model, samples, "int8", "off")
    assert plain.to_proto().SerializeToString() == off.to_proto().SerializeToString()


@pytest.mark.parametrize("mode", ["dynamic", "weight-only"])
def test_recipes_that_do_not_calibrate_refuse_it(mode):
    with pytest.raises(RecipeError, match=f"bias_correction has no effect in {mode} mode"):
        Recipe(mode=mode, bias_correction="fast")


def test_fast_correction_does_not_go_with_weights_that_learn():
    with pytest.raises(RecipeError, match="take 'sequential' with fine_tune"):
        Recipe(fine_tune=AdaRound(), bias_correction="fast")


def test_correction_without_data_is_refused():
    with pytest.raises(DataError, match="needs calibration data"):
        quantized(make_cnn(), None, "int8", "sequential")


def test_a_plan_with_shifts_that_do_not_fit_is_refused():
    model = make_layers()
    plan = bitwright.make_plan(
        model,
        data=positive_samples(model, 8),
        recipe=load_recipe("int8").replace(bias_correction="fast"),
        progress=False,
    )
    plan = edited(plan, bias_shifts={"b1": [0.0]})
    with pytest.raises(PlanError, match="shifts bias 'b1' of shape"):
        bitwright.apply_plan(plan, model)
    plan = msgspec.structs.replace(plan, bias_shifts={"x": [0.0]})
    with pytest.raises(PlanError, match="no constant of the model"):
        bitwright.apply_plan(plan, model)


def test_a_layer_that_is_put_back_to_float_keeps_its_own_bias():
    model = make_layers()
    samples = positive_samples(model, 16)
    recipe = A8W4.replace(bias_correction="fast")
    plan = bitwright.make_plan(model, data=samples, recipe=recipe, progress=False)
    found = bitwright.find_sensitivity(model, plan, data=samples[:2], progress=False)
    better = found.proposal(regain=1.0, most=1.0).plan
    assert not any(better.nodes[name].quantized for name in ("conv", "gemm"))
    result = bitwright.apply_plan(better, model)
    np.testing.assert_allclose(
        mean_error(model, result.to_proto(), samples),
        0,
        atol=1e-3 * np.abs(plan.bias_shifts["b4"]).max(),
    )


def test_sketches_that_were_kept_for_ranges_alone_take_a_pass_more(tmp_path):
    model = make_layers()
    samples = positive_samples(model, 16)
    recipe = load_recipe("int8").replace(bias_correction="fast")
    options = {"data": samples, "sketches": tmp_path / "s.safetensors", "progress": False}
    sequential = recipe.replace(bias_correction="sequential")
    bitwright.make_plan(model, recipe=sequential, **options)
    found = bitwright.make_plan(model, recipe=recipe, **options)
    fresh = bitwright.make_plan(model, data=samples, recipe=recipe, progress=False)
    assert found.bias_shifts == fresh.bias_shifts


@pytest.mark.parametrize("mode", ["off", "fast", "sequential"])
def test_a_recipe_in_a_file_names_the_mode_without_quotes(tmp_path, mode):
    (tmp_path / "recipe.yaml").write_text(f"base: int8\nbias_correction: {mode}\n")
    assert load_recipe(tmp_path / "recipe.yaml").bias_correction == mode


def make_product(*, behind=()):
    """One Gemm, and what may follow it."""
    constants = {"w": weight(4, 6), "b": normal(6)}
    steps = [node("Gemm", ["x", "w", "b"], ["g" if behind else "y"], name="gemm"), *behind]
    return build(steps, {"x": [1, 4]}, {"y": [1, 6]}, constants)


def plan_of(model, samples, mode, recipe=A8W4):
    wanted = load_recipe(recipe).replace(bias_correction=mode)
    return bitwright.make_plan(model, data=samples, recipe=wanted, progress=False)


@pytest.mark.parametrize("mode", ["fast", "sequential"])
def test_a_shift_that_other_samples_do_not_want_is_rejected(mode):
    """Every second sample is the first one's negative, and so is the error of its output."""
    model = make_product()
    halves = [np.abs(s["x"]) for s in make_samples(model, 16)]
    opposed = [{"x": sign * x} for x in halves for sign in (1, -1)]
    agreeing = [{"x": x} for x in halves for _ in range(2)]
    assert plan_of(model, agreeing, mode).bias_shifts
    plan = plan_of(model, opposed, mode)
    assert not plan.bias_shifts
    assert corrected(plan) == 0
    reason = "bias correction left 1 layer: the error behind it does not fall on holdout samples"
    assert reason in plan.notes


def test_the_error_behind_the_activation_function_decides_the_shift():
    """Where a Relu suppresses most outputs, the few that pass it count, and not the mean."""
    model = make_product(behind=[node("Relu", ["g"], ["y"], name="relu")])
    samples = positive_samples(model, 96)
    errors = {}
    for mode in ("off", "sequential"):
        found = bitwright.apply_plan(plan_of(model, samples, mode), model).to_proto()
        sessions = [
            onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
            for m in (model, found)
        ]
        one, other = (np.stack([s.run(None, x)[0] for x in samples]) for s in sessions)
        errors[mode] = float(np.square(one - other).sum())
    assert errors["sequential"] < errors["off"]


def test_the_gain_on_holdout_samples_is_in_the_notes():
    model = make_layers()
    plan = plan_of(model, positive_samples(model, 24), "sequential")
    [note] = [note for note in plan.notes if note.startswith("corrected")]
    assert note.endswith("dB on average, on holdout samples")
    assert len(plan.bias_shifts) == corrected(plan)


@pytest.mark.parametrize("mode", ["fast", "sequential"])
def test_too_few_samples_to_test_a_correction_correct_nothing(mode):
    model = make_product()
    samples = positive_samples(model, 4)
    plan = plan_of(model, samples[:3], mode)
    assert not plan.bias_shifts
    assert any("takes 4, and there are 3" in note for note in plan.notes)
    assert not any("takes 4" in note for note in plan_of(model, samples, mode).notes)


@pytest.mark.parametrize("mode", ["fast", "sequential"])
def test_few_large_batches_are_taken_apart(mode):
    constants = {"w": weight(4, 6), "b": normal(6)}
    step = node("Gemm", ["x", "w", "b"], ["y"], name="gemm")
    model = build([step], {"x": ["n", 4]}, {"y": ["n", 6]}, constants)
    rows = np.abs(np.random.default_rng(0).normal(size=(32, 4))).astype(np.float32)
    one_batch, single = ([{"x": rows}], [{"x": row[None]} for row in rows])
    plans = [plan_of(model, samples, mode) for samples in (one_batch, single)]
    assert corrected(plans[0]) == corrected(plans[1]) == 1
    np.testing.assert_allclose(*(plan.bias_shifts["b"] for plan in plans), rtol=1e-4, atol=1e-6)


def test_a_bias_behind_a_product_is_part_of_the_function_behind_it():
    """A bias of -9 moves outputs below zero: the Relu sees them with it."""
    constants = {"w": weight(4, 6), "b": np.array([-9, 0] * 3, np.float32)}
    steps = [
        node("MatMul", ["x", "w"], ["m"], name="matmul"),
        node("Add", ["m", "b"], ["a"], name="add"),
        node("Relu", ["a"], ["y"], name="relu"),
    ]
    model = build(steps, {"x": [1, 4]}, {"y": [1, 6]}, constants)
    samples = positive_samples(model, 48)
    passes = np.max([run(model, s)[0][0] for s in samples], axis=0) > 0
    assert passes.any() and not passes.all()
    shifts = np.asarray(plan_of(model, samples, "sequential").bias_shifts["b"])
    assert shifts[passes].any() and not shifts[~passes].any()


def output_error(model, found, samples):
    gaps = [run(found, s)[0].astype(np.float64) - run(model, s)[0] for s in samples]
    return float(np.square(gaps).sum())


@pytest.mark.parametrize("behind", ["", "Relu"])
@pytest.mark.parametrize("product", ["Gemm", "MatMul"])
@pytest.mark.sampled(2)
def test_gains_lower_the_error_of_coarse_weights(product, behind):
    """Weights of 4 bits whose scale covers an outlier lose a part of each output."""
    rng = np.random.default_rng(2)
    matrix = rng.normal(size=(16, 6)).astype(np.float32)
    matrix[0] *= 5
    constants = {"w": matrix, "b": normal(6)}
    last = "s" if behind else "y"
    steps = (
        [node("Gemm", ["x", "w", "b"], [last], name="gemm")]
        if product == "Gemm"
        else [node("MatMul", ["x", "w"], ["m"], name="gemm"), node("Add", ["m", "b"], [last])]
    )
    steps += [node(behind, ["s"], ["y"], name="act")] if behind else []
    model = build(steps, {"x": [1, 16]}, {"y": [1, 6]}, constants)
    common = rng.normal(size=64)
    samples = [{"x": (c + 0.3 * rng.normal(size=(1, 16))).astype(np.float32)} for c in common]
    for sample in samples:
        sample["x"][:, 0] = 0.05
    recipe = A8W4.replace(bias_correction="sequential", rounding="nearest", per_channel=True)
    plans = [
        bitwright.make_plan(model, data=samples, recipe=recipe.replace(**changes), progress=False)
        for changes in ({"bias_correction": "off"}, {}, {"gain_correction": True})
    ]
    models = [bitwright.apply_plan(plan, model).to_proto() for plan in plans]
    off, shifted, scaled = (output_error(model, m, samples) for m in models)
    assert scaled < 0.95 * min(off, shifted)
    assert "corrected the gains of 1 layer" in plans[2].notes
    again = bitwright.QuantPlan.from_json(plans[2].to_json())
    second = bitwright.apply_plan(again, model).to_proto()
    assert second.SerializeToString() == models[2].SerializeToString()
    # The integers of the weight are those without gains; only scales differ.
    stored = [
        sorted(
            t.raw_data for t in m.graph.initializer if t.data_type in (21, 22) or len(t.dims) > 1
        )
        for m in (models[1], models[2])
    ]
    assert stored[0] == stored[1]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"bias_correction": "fast", "per_channel": True}, "set bias_correction='sequential'"),
        ({"bias_correction": "sequential"}, "set per_channel=true"),
        (
            {"bias_correction": "sequential", "per_channel": True, "scales": "power-of-two"},
            "scales='float'",
        ),
    ],
)
def test_gains_need_a_scale_for_each_channel_and_samples_layer_by_layer(changes, sentence):
    with pytest.raises(RecipeError, match=sentence):
        Recipe(gain_correction=True, **changes)


def test_a_plan_with_gains_that_do_not_fit_is_refused():
    model = make_product()
    plan = plan_of(model, positive_samples(model, 8), "off", "int8-per-channel")
    [name] = [e.tensor for e in plan.tensors.values() if e.role == "weight"]
    plan = edited(plan, weight_gains={name: [1.0]})
    with pytest.raises(PlanError, match="multiplies weight 'w' with 1 gains"):
        bitwright.apply_plan(plan, model)
    plan = msgspec.structs.replace(plan, weight_gains={"other": [1.0]})
    with pytest.raises(PlanError, match="gains for 'other', of which it has no entry"):
        bitwright.apply_plan(plan, model)
