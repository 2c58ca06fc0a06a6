"""SmoothQuant: the same function, evener channels, better numbers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.models import (
    FLOAT16,
    Reader,
    as_proto,
    build,
    constants_of,
    dequantizer_before,
    make_samples,
    make_transformer,
    node,
    nodes_by_name,
    normal,
    ops,
    quality,
    retype,
    run,
    weight,
)

import bitwright
from bitwright import DataError, QuantPlan, Recipe, RecipeError, Selection, SmoothQuant
from bitwright.equalize.smoothquant import (
    _choose,
    _factors,
    _Seen,
    apply_smoothing,
    find_smoothing_points,
    smoothing_for,
)
from bitwright.graph import clone_model, load_model
from bitwright.numerics.types import INT8, UINT8
from bitwright.observe import observe

WIDTH = 32
OUTLIERS = [3, 11, 27]


def make_block(*, residual=True, size=60.0):
    """A pre-norm block as large models have them: a few channels of the norm are huge, and the
    weights that read them small."""
    norm = 1 + normal(WIDTH, seed=1, size=0.1)
    norm[OUTLIERS] *= size
    up, gate = weight(WIDTH, 64, seed=2), weight(WIDTH, 64, seed=3)
    up[OUTLIERS] /= size
    gate[OUTLIERS] /= size
    constants = {
        "norm_scale": norm,
        "norm_bias": normal(WIDTH, seed=4, size=0.1),
        "w_up": up,
        "b_up": normal(64, seed=5, size=0.1),
        "w_gate": gate,
        "w_down": weight(64, WIDTH, seed=6),
    }
    nodes = [
        node("LayerNormalization", ["x", "norm_scale", "norm_bias"], ["n"], name="norm"),
        node("MatMul", ["n", "w_up"], ["u"], name="up"),
        node("Add", ["u", "b_up"], ["ub"], name="up_bias"),
        node("Relu", ["ub"], ["a"], name="act"),
        node("MatMul", ["n", "w_gate"], ["g"], name="gate"),
        node("Mul", ["a", "g"], ["h"], name="gated"),
        node("MatMul", ["h", "w_down"], ["d"], name="down"),
        node("Add", ["d", "n" if residual else "x"], ["y"], name="residual"),
    ]
    return build(nodes, {"x": [1, 8, WIDTH]}, {"y": [1, 8, WIDTH]}, constants)


def quantized(model, samples, smooth=None, **options):
    recipe = Recipe(smooth=smooth, select=Selection(op_types=("MatMul", "Gemm")), **options)
    return bitwright.quantize(model, data=samples, recipe=recipe, holdout=False)


def smoothed(model, samples, *, alpha=0.5, folding=True):
    """Return the smoothed float model, and the nodes that were added."""
    loaded = load_model(model)
    names = [n.name for n in loaded.graph]
    points = find_smoothing_points(loaded, names)
    seen = observe(
        loaded, list(points), samples, detail="extremes", per_channel=dict.fromkeys(points, -1)
    )
    found = smoothing_for(loaded, points, seen.sketches, Recipe(smooth=SmoothQuant(alpha=alpha)))
    twin = clone_model(loaded)
    return twin, apply_smoothing(twin, found, folding=folding), found


def largest_difference(model, other, samples):
    pairs = zip(run(model, samples), run(other, samples), strict=True)
    return max(np.abs(a - b).max() / np.abs(a).max() for (a,), (b,) in pairs)


@pytest.mark.parametrize("folding", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("make", [make_block, make_transformer])
def test_what_the_model_computes_stays_the_same(make, alpha, folding):
    model = make()
    samples = make_samples(model)
    twin, added, found = smoothed(model, samples, alpha=alpha, folding=folding)
    assert found
    assert len(added) == len(found) or folding
    onnx.checker.check_model(as_proto(twin))
    assert largest_difference(model, twin, samples) < 1e-5


def test_outlier_channels_no_longer_cost_accuracy():
    model = make_block(residual=False)
    samples = make_samples(model, 16)
    plain = quality(model, quantized(model, samples), samples)
    smooth = quality(model, quantized(model, samples, SmoothQuant()), samples)
    assert smooth > plain + 6


def test_a_transformer_block_with_outlier_channels_gains():
    model = make_transformer(width=WIDTH)
    arrays = constants_of(model)
    for name, many in (("norm1_scale", 40.0), ("w_up", 1 / 40.0)):
        array = arrays[name].copy()
        array[OUTLIERS] *= many
        tensor = next(t for t in model.graph.initializer if t.name == name)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, name))
    samples = make_samples(model, 16)
    plain = quantized(model, samples)
    smooth = quantized(model, samples, SmoothQuant())
    assert quality(model, smooth, samples) > quality(model, plain, samples) + 3


def test_readers_of_one_tensor_share_factors_for_the_largest_weight():
    model = make_block()
    _, _, found = smoothed(model, make_samples(model))
    assert found["n"].nodes == ("up", "gate")
    loaded = load_model(model)
    seen = observe(loaded, ["n"], make_samples(model), per_channel={"n": -1}).sketches["n"]
    inputs = np.maximum(-seen.channel_low, seen.channel_high)
    arrays = constants_of(model)
    weights = np.maximum(*(np.abs(arrays[w]).max(axis=1) for w in ("w_up", "w_gate")))
    np.testing.assert_allclose(found["n"].factors, np.sqrt(inputs / weights), rtol=1e-5)


def test_a_norm_that_only_products_read_takes_the_division():
    model = make_block(residual=False)
    twin, added, found = smoothed(model, make_samples(model))
    factors = np.array(found["n"].factors)
    before, after = constants_of(model), constants_of(twin)
    np.testing.assert_allclose(after["norm_scale"], before["norm_scale"] / factors, rtol=1e-6)
    np.testing.assert_allclose(after["w_gate"], before["w_gate"] * factors[:, None], rtol=1e-6)
    # Of the product of gate and activation, the latter is divided, in the columns of `w_up`.
    own = np.array(found["h"].factors)
    wanted = before["w_up"] * factors[:, None] / own
    np.testing.assert_allclose(after["w_up"], wanted, rtol=1e-6)
    np.testing.assert_allclose(after["b_up"], before["b_up"] / own, rtol=1e-6)
    assert added == []


def test_where_others_read_the_tensor_a_mul_divides_and_reads_float():
    model = make_block()
    samples = make_samples(model)
    result = quantized(model, samples, SmoothQuant())
    division = nodes_by_name(result)["n_smooth"]
    assert division.op_type == "Mul"
    assert division.input[0] == "n"
    assert dequantizer_before(result, "up", 0) is not None
    reasons = {n.reason for name, n in result.plan.nodes.items() if name == "n_smooth"}
    assert reasons == {"it divides by the smoothing factors"}


def test_without_folding_every_division_is_a_mul():
    model = make_block(residual=False)
    samples = make_samples(model)
    before = ops(model)["Mul"]
    folded = quantized(model, samples, SmoothQuant())
    spelled = quantized(model, samples, SmoothQuant(), emulate={"smooth_folding": False})
    assert ops(folded)["Mul"] == before
    assert ops(spelled)["Mul"] == before + 2


def test_a_weight_of_two_readers_is_scaled_for_each():
    constants = {"w": weight(8, 8, seed=1)}
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="one"),
        node("Relu", ["h"], ["r"], name="act"),
        node("MatMul", ["r", "w"], ["y"], name="two"),
    ]
    model = build(nodes, {"x": [4, 8]}, {"y": [4, 8]}, constants)
    samples = make_samples(model)
    twin, _, found = smoothed(model, samples)
    assert set(found) == {"x", "r"}
    assert largest_difference(model, twin, samples) < 1e-5


def test_gemm_with_and_without_a_transposed_weight():
    constants = {"w1": weight(8, 8, seed=1), "b1": normal(8), "w2": weight(8, 8, seed=2)}
    nodes = [
        node("Gemm", ["x", "w1", "b1"], ["h"], name="one", transB=1, alpha=0.5, beta=2.0),
        node("LeakyRelu", ["h"], ["r"], name="act"),
        node("Gemm", ["r", "w2"], ["y"], name="two"),
    ]
    model = build(nodes, {"x": [4, 8]}, {"y": [4, 8]}, constants)
    samples = make_samples(model)
    twin, added, found = smoothed(model, samples)
    assert set(found) == {"x", "r"} and len(added) == 1  # the input has nothing before it
    assert largest_difference(model, twin, samples) < 1e-5


def test_a_channel_that_is_always_zero_stays_as_it_is():
    constants = {"w": weight(4, 4, seed=1)}
    model = build(
        [node("MatMul", ["x", "w"], ["y"], name="only")], {"x": [2, 4]}, {"y": [2, 4]}, constants
    )
    samples = make_samples(model)
    for sample in samples:
        sample["x"][:, 1] = 0
    _, _, found = smoothed(model, samples)
    assert found["x"].factors[1] == 1.0


def test_float16_models_are_smoothed_too():
    model = retype(make_block(residual=False), np.float16, FLOAT16)
    samples = make_samples(model)
    twin, _, found = smoothed(model, samples)
    assert found
    assert largest_difference(model, twin, samples) < 1e-2


def test_a_plan_carries_the_factors_and_needs_no_data():
    model = make_block()
    samples = make_samples(model)
    result = quantized(model, samples, SmoothQuant())
    assert set(result.plan.smoothing) == {"n", "h"}
    again = bitwright.apply_plan(QuantPlan.from_json(result.plan.to_json()), model)
    assert again.to_proto().SerializeToString() == result.to_proto().SerializeToString()


def test_data_that_can_be_read_once_is_kept_for_the_second_pass():
    model = make_block(residual=False)
    samples = make_samples(model)
    whole = quantized(model, samples, SmoothQuant())
    for once in (Reader(samples), iter(samples)):
        assert quantized(model, once, SmoothQuant()).plan == whole.plan


def test_data_that_does_not_fit_says_what_to_do():
    model = make_block()
    recipe = Recipe(smooth=SmoothQuant())
    with pytest.raises(DataError, match=r"read only once.*memory budget"):
        bitwright.quantize(
            model, data=Reader(make_samples(model)), recipe=recipe, memory_budget=2000
        )


def test_a_model_without_products_says_so():
    model = build([node("Sigmoid", ["x"], ["y"], name="s")], {"x": [1, 4]}, {"y": [1, 4]})
    recipe = Recipe(smooth=SmoothQuant(), place=bitwright.Placement(isolated=True))
    result = bitwright.quantize(model, data=make_samples(model), recipe=recipe)
    assert any("nothing to smooth" in note for note in result.plan.notes)


@pytest.mark.parametrize("alpha", [-0.1, 1.1])
def test_alpha_lies_between_0_and_1(alpha):
    with pytest.raises(RecipeError, match="alpha"):
        SmoothQuant(alpha=alpha)


@pytest.mark.parametrize("size", [1.0, 8.0, 60.0])
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.sampled(4)
def test_the_alpha_of_a_layer_is_nearly_the_best_of_all(size, per_channel, one_sided):
    """Against a search over the real error of the rounded product."""
    rng = np.random.default_rng(int(size))
    inputs = rng.normal(size=(512, 24))
    matrix = rng.normal(size=(24, 128))
    inputs[:, [2, 9]] *= size
    matrix[[2, 9]] /= np.sqrt(size)
    if one_sided:  # the step is half of what it is for both signs, and no mean is zero
        inputs = np.abs(inputs)

    def error(factors):
        x, w = inputs / factors, matrix * factors[:, None]
        dx = np.abs(x).max() / (255 if one_sided else 127)
        dw = np.abs(w).max(axis=0 if per_channel else None) / 127
        product = (np.round(x / dx) * dx) @ (np.round(w / dw) * dw)
        return float(np.mean((product - inputs @ matrix) ** 2))

    extremes = np.abs(inputs).max(axis=0), np.abs(matrix).max(axis=1)
    types = {"activation": UINT8 if one_sided else INT8, "weight": INT8}
    recipe = Recipe(per_channel=per_channel, activation_symmetric=not one_sided, **types)
    seen = _Seen(inputs.min(axis=0), inputs.max(axis=0), inputs.mean(axis=0))
    chosen = _choose(seen, np.zeros(24), [matrix], "auto", recipe)
    alphas = np.linspace(0, 1, 41)
    best = min(error(_factors(*extremes, alpha)) for alpha in alphas)
    found = error(np.ones(24) if chosen is None else np.array(chosen.factors))
    assert found < 1.25 * min(best, error(np.ones(24)))


def test_auto_smooths_what_it_helps_and_leaves_the_rest():
    block = make_block()
    samples = make_samples(block, 16)
    plain, smoothed = (
        bitwright.quantize(block, data=samples, recipe=Recipe(per_channel=True, smooth=smooth))
        for smooth in (None, SmoothQuant(alpha="auto"))
    )
    before, after = (quality(block, found.to_proto(), samples) for found in (plain, smoothed))
    assert after > before + 6
    assert "n" in smoothed.plan.smoothing
    again = Recipe.from_json(smoothed.plan.recipe.to_json())
    assert again.smooth.alpha == "auto"


def test_an_alpha_that_is_no_word_of_ours_is_refused():
    with pytest.raises(RecipeError, match="alpha"):
        Recipe.from_mapping({"smooth": {"alpha": "best"}})
