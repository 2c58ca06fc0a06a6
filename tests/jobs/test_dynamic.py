"""Dynamic recipes take what gains from them: products of matrices, and convolutions when forced."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.models import (
    build,
    make_cnn,
    make_samples,
    make_transformer,
    node,
    ops,
    quality,
    weight,
)

import bitwright
from bitwright import load_recipe
from bitwright.errors import NothingQuantizedError, RecipeError
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.opening import open_model
from bitwright.jobs.placing import SLOW_CONVOLUTION, leave_slower_float
from bitwright.jobs.static import plan_static

DYNAMIC = load_recipe("int8-dynamic")


def make_mixed(width=32):
    """For each value, a convolution of 9 multiply-adds, and a product of `width`."""
    constants = {"k": weight(1, 1, 3, 3), "w": weight(width, width, seed=1)}
    nodes = [
        node("Conv", ["x", "k"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        node("MatMul", ["c", "w"], ["y"], name="product"),
    ]
    shape = ["n", 1, 4, width]
    return build(nodes, {"x": shape}, {"y": shape}, constants)


def test_a_model_whose_work_is_in_convolutions_is_refused_with_what_is_better():
    with pytest.raises(NothingQuantizedError, match=r"\d+% of the model's multiply-adds") as caught:
        bitwright.quantize(make_cnn(), recipe="int8-dynamic")
    assert "force_dynamic=True" in str(caught.value)
    with pytest.raises(NothingQuantizedError):
        bitwright.make_plan(make_cnn(), recipe="int8-dynamic")


def test_force_takes_the_convolutions_too():
    model = make_cnn()
    result = bitwright.quantize(model, recipe="int8-dynamic", force_dynamic=True)
    assert ops(result.to_proto())["ConvInteger"] == ops(model)["Conv"]


@pytest.mark.parametrize("select", [{"op_types": ("Conv",)}, {"nodes": ("conv",)}])
def test_convolutions_that_the_recipe_names_are_taken(select):
    model = make_mixed()
    plan = bitwright.make_plan(model, recipe=DYNAMIC.replace(select=select))
    assert plan.nodes["conv"].quantized


def test_where_products_do_most_of_the_work_the_convolutions_stay_float():
    model = make_mixed()
    result = bitwright.quantize(model, recipe="int8-dynamic")
    assert result.plan.nodes["conv"].reason == SLOW_CONVOLUTION
    assert result.plan.nodes["product"].quantized
    assert quality(model, result.to_proto(), make_samples(model)) > 25
    again = bitwright.apply_plan(result.plan, model).to_proto()
    assert ops(again) == ops(result.to_proto())


@pytest.mark.parametrize(("width", "refused"), [(8, True), (10, False)])
def test_half_of_the_multiply_adds_are_the_limit(width, refused):
    # 9 for each value of the convolution, `width` for each of the product.
    prepared = open_model(make_mixed(width), DYNAMIC)
    if refused:
        with pytest.raises(NothingQuantizedError, match=f"{9 / (9 + width):.0%}"):
            leave_slower_float(prepared)
    else:
        assert dict(leave_slower_float(prepared).keep_float) == {"conv": SLOW_CONVOLUTION}


def test_convolutions_that_are_excluded_are_no_reason_to_refuse():
    recipe = DYNAMIC.replace(select={"exclude_op_types": ("Conv",)})
    plan = bitwright.make_plan(make_mixed(8), recipe=recipe)
    assert plan.nodes["product"].quantized


def test_a_recurrent_layer_of_unknown_length_counts_with_its_weights():
    size = 16
    constants = {
        "k": weight(1, 1, 1, 3),
        "begin": np.int64([1]),
        "w": weight(1, 4 * size, size, seed=1),
        "r": weight(1, 4 * size, size, seed=2),
    }
    nodes = [
        node("Conv", ["x", "k"], ["c"], name="conv", pads=[0, 1, 0, 1]),
        node("Squeeze", ["c", "begin"], ["s"]),
        node("LSTM", ["s", "w", "r"], ["y"], name="lstm", hidden_size=size),
    ]
    model = build(nodes, {"x": ["n", 1, "m", size]}, {"y": None}, constants)
    plan = bitwright.make_plan(model, recipe="int8-dynamic")
    assert plan.nodes["lstm"].quantized and not plan.nodes["conv"].quantized


def test_transformers_are_taken_as_before():
    model = make_transformer()
    plain, forced = (
        bitwright.make_plan(model, recipe="int8-dynamic", force_dynamic=force)
        for force in (False, True)
    )
    assert plain == forced


def test_force_has_no_meaning_for_other_recipes():
    with pytest.raises(RecipeError, match="force_dynamic is for dynamic recipes, and 'int8' is st"):
        bitwright.quantize(make_cnn(), data="random", recipe="int8", force_dynamic=True)


def test_a_model_with_recurrent_layers_is_not_refused_for_its_convolutions():
    """How often they run is not known."""
    constants = {"k": weight(8, 8, 9), "w": weight(1, 32, 8), "r": weight(1, 32, 8, seed=1)}
    nodes = [
        node("Conv", ["x", "k"], ["c"], name="conv", pads=[4, 4]),
        node("Transpose", ["c"], ["t"], perm=[2, 0, 1]),
        node("LSTM", ["t", "w", "r"], ["y"], name="lstm", hidden_size=8),
    ]
    model = build(nodes, {"x": [1, 8, 64]}, {"y": None}, constants)
    result = bitwright.quantize(model, recipe="int8-dynamic")
    assert (
        result.plan.nodes["conv"].reason == SLOW_CONVOLUTION and result.plan.nodes["lstm"].quantized
    )


def test_smoothing_moves_outliers_of_channels_before_rows_are_rounded():
    nodes = [
        node("LayerNormalization", ["x", "gain"], ["n"], name="norm"),
        node("MatMul", ["n", "w"], ["y"], name="product"),
    ]
    gain = np.ones(32, np.float32)
    gain[::8] = 60
    constants = {"gain": gain, "w": weight(32, 16) / gain[:, None]}
    model = build(nodes, {"x": [8, 32]}, {"y": None}, constants)
    samples = make_samples(model)
    plain, smooth = (
        bitwright.quantize(model, recipe=recipe, data=samples)
        for recipe in (DYNAMIC, DYNAMIC.replace(smooth={"alpha": 0.5}))
    )
    errors = [quality(model, result.to_proto(), samples) for result in (plain, smooth)]
    assert errors[1] > errors[0] + 6
    assert ops(smooth.to_proto()) == ops(plain.to_proto())  # the norm divides
    again = bitwright.apply_plan(smooth.plan, model).to_proto()
    assert quality(model, again, samples) == errors[1]
    with pytest.raises(bitwright.DataError, match="smooths activations and needs calibration data"):
        bitwright.quantize(model, recipe=DYNAMIC.replace(smooth={"alpha": 0.5}))


def test_a_weight_is_closed_once_its_range_is_known(tmp_path):
    path = tmp_path / "model.onnx"
    model = build(
        [node("MatMul", ["x", "w"], ["y"], name="op")],
        {"x": [3, 64]},
        {"y": None},
        {"w": weight(64, 64)},
    )
    onnx.save(model, path, save_as_external_data=True, size_threshold=0)
    prepared = open_model(path, DYNAMIC)
    assert plan_static(prepared, Calibration()).plan.nodes["op"].quantized
    stored = prepared.model.graph.initializers["w"].const_value
    assert isinstance(stored, ir.ExternalTensor) and stored.raw is None
