"""Scales of whole models: one-sided activations, biases of every kind, scales of one kind."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from support.models import build, make_cnn, node, normal, run

import bitwright
from bitwright.decide.scales.biases import shift_for_bias, widened_for_bias
from bitwright.errors import DataError, RecipeError
from bitwright.numerics.quantize import dequantize, fake_quantize, quantize
from bitwright.numerics.types import INT8, INT16, UINT8
from bitwright.observe import LocalEngine
from bitwright.recipe import (
    Emulation,
    MinMax,
    MinMSE,
    NonOverflow,
    Override,
    Placement,
    Recipe,
    Selection,
)


def samples(*shape, count=6, size=1.0):
    return [{"x": normal(*shape, seed=seed, size=size)} for seed in range(count)]


def quantized(model, recipe, data, **options):
    return bitwright.quantize(model, data=data, recipe=recipe, progress=False, **options)


@pytest.mark.parametrize(
    ("qtype", "symmetric", "scale"),
    [(INT8, True, 2**-7), (UINT8, True, 2**-7), (UINT8, False, 2**-8), (INT16, True, 2**-15)],
)
def test_a_power_of_two_scale_of_a_softmax_leaves_out_the_last_level(qtype, symmetric, scale):
    nodes = [
        node("MatMul", ["x", "w"], ["m"], name="product"),
        node("Softmax", ["m"], ["y"], name="softmax"),
    ]
    model = build(nodes, {"x": [4, 8]}, {"y": [4, 8]}, {"w": normal(8, 8, seed=1)})
    recipe = Recipe(
        activation=qtype,
        activation_symmetric=symmetric,
        ranges=NonOverflow(),
        weight_ranges=NonOverflow(),
        scales="power-of-two",
        place=Placement(isolated=True),
    )
    plan = quantized(model, recipe, samples(4, 8)).plan
    assert plan.tensors["y"].scale == scale


@pytest.mark.parametrize(
    ("fields", "zero_points"),
    [
        ({"per_channel": True}, {128}),  # few kernels take a zero point for each channel
        ({"per_channel": True, "overrides": {"w": Override(symmetric=False)}}, None),
        ({"per_channel": False}, None),
        ({"per_channel": False, "weight_symmetric": True}, {128}),
        ({"per_channel": True, "weight": INT8}, {0}),
    ],
)
def test_channels_of_a_weight_are_symmetric_unless_an_override_says_otherwise(fields, zero_points):
    product = [node("MatMul", ["x", "w"], ["y"], name="product")]
    constant = np.abs(normal(8, 4, seed=1)) + 0.5
    model = build(product, {"x": [4, 8]}, {"y": [4, 4]}, {"w": constant})
    recipe = Recipe(**{"weight": UINT8, **fields})
    found = np.unique(quantized(model, recipe, samples(4, 8)).plan.tensors["w"].zero_point)
    assert set(found.tolist()) == ({0} if zero_points is None else zero_points)


# Biases ---------------------------------------------------------------------------------------


def layer(op, *, size=1.0):
    """Return a model of one node with a bias of this size, and its data."""
    bias = normal(8, seed=3, size=size)
    inputs = {"x": [1, 4, 6, 6]}
    constants = {"w": normal(8, 4, 3, 3, seed=1, size=0.2), "b": bias}
    if op == "ConvTranspose":
        constants["w"] = normal(4, 8, 3, 3, seed=1, size=0.2)
    elif op == "Gemm":
        inputs, constants["w"] = {"x": [3, 6]}, normal(6, 8, seed=1)
    elif op in ("InstanceNormalization", "LayerNormalization"):
        constants = {"w": 1 + normal(4, seed=1, size=0.1), "b": bias[:4]}
        if op == "LayerNormalization":
            inputs = {"x": [1, 6, 4]}
    nodes = [node(op, ["x", "w", "b"], ["y"], name="layer")]
    model = build(nodes, inputs, [onnx.helper.make_tensor_value_info("y", 1, None)], constants)
    return model, samples(*inputs["x"])


def reference(model, plan, feeds):
    """Run the float model in float64 on dequantized constants and a dequantized input."""
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    for tensor in twin.graph.initializer:
        values, found = onnx.numpy_helper.to_array(tensor), plan.parameters(tensor.name)
        scale = np.float32(found.scale)
        stored = quantize(values, scale, found.zero_point, found.qtype, axis=found.axis)
        exact = dequantize(stored, scale, found.zero_point, axis=found.axis, dtype=np.float64)
        tensor.CopyFrom(onnx.numpy_helper.from_array(exact, tensor.name))
    source = plan.parameters("x")
    x = fake_quantize(feeds["x"], np.float32(source.scale), source.zero_point, source.qtype)
    return ReferenceEvaluator(twin).run(None, {"x": x.astype(np.float64)})[0]


OPS = ["Conv", "ConvTranspose", "Gemm", "InstanceNormalization", "LayerNormalization"]
RESTRICTED = {"emulate": {"restricted_asymmetric": True}}
NAMED = {"select": Selection(op_types=tuple(OPS))}
NPU = {
    "scales": "power-of-two",
    "ranges": MinMSE(),
    "weight_ranges": MinMSE(),
    "activation_symmetric": True,
    "bias": "weight",
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "options",
    [
        {"bias": "int32"},
        {"bias": "int16"},
        {"bias": "int16", "per_channel": True},
        {"bias": "weight"},
        {"bias": "weight", "emulate": Emulation(weight_pairs=True)},
        NPU,
    ],
    ids=["int32", "int16", "int16 per channel", "weight", "weight pairs", "npu"],
)
@pytest.mark.sampled(15)
def test_every_kind_of_bias_gives_the_numbers_of_the_dequantized_model(op, options):
    model, data = layer(op)
    result = quantized(model, Recipe(**options, **NAMED, rounding="nearest"), data)
    for feeds in data[:2]:
        expected = reference(model, result.plan, feeds)
        found = run(result.model, feeds)[0]
        if op == "Gemm":  # only float32 stands between the two
            assert result.plan.outputs["y"] is None
            assert np.allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
            continue
        # The result is rounded once more.
        parameters = result.plan.parameters("y")
        clipped = dequantize(
            quantize(expected.astype(np.float32), *scale_and_zero(parameters), parameters.qtype),
            *scale_and_zero(parameters),
        )
        assert np.abs(found - clipped).max() <= 1.001 * float(parameters.scale)
        assert np.mean(found == clipped) > 0.98


def scale_and_zero(parameters):
    return np.float32(parameters.scale), parameters.zero_point


@pytest.mark.parametrize("op", OPS)
def test_a_bias_like_a_weight_has_the_type_and_a_scale_of_its_own(op):
    model, data = layer(op)
    result = quantized(model, Recipe(**NPU, **NAMED), data)
    bias = result.plan.tensors["b"]
    assert (bias.role, bias.qtype, bias.zero_point, bias.bias_of) == ("weight", INT8, 0, None)
    assert np.frexp(bias.scale)[0] == 0.5
    stored = [i for i in result.model.graph.initializers.values() if i.name == "b_quantized"]
    assert stored[0].dtype == ir.DataType.INT8


def test_pairs_of_weights_stand_before_a_bias_like_a_weight_too():
    model, data = layer("Conv")
    recipe = Recipe(**NPU, emulate=Emulation(weight_pairs=True))
    written = quantized(model, recipe, data).model.graph
    assert "b_quantized" not in written.initializers
    assert written.initializers["b"].dtype == ir.DataType.FLOAT
    (reader,) = (use.node for use in written.initializers["b"].uses())
    assert reader.op_type == "QuantizeLinear"


@pytest.mark.parametrize("per_channel", [True, False])
def test_an_int16_bias_is_at_the_product_of_the_scales_and_shifted_where_it_would_not_fit(
    per_channel,
):
    for size, shifted in ((0.05, False), (40.0, True)):
        model, data = layer("Conv", size=size)
        recipe = Recipe(bias="int16", per_channel=per_channel)
        result = quantized(model, recipe, data)
        plan, bias = result.plan, result.plan.tensors["b"]
        assert (bias.qtype, bias.bias_of) == (INT16, ("x", "w"))
        assert (bias.shift > 0) is shifted
        scale = plan.parameters("b").scale
        product = plan.parameters("x").scale * np.asarray(plan.parameters("w").scale)
        assert scale == pytest.approx(product * 2.0**bias.shift, rel=1e-6)
        values = onnx.numpy_helper.to_array(model.graph.initializer[1])
        steps = np.abs(values / scale).max()
        assert steps <= 32767
        assert not shifted or steps > 16383
        assert result.model.opset_imports[""] == 21
        assert plan.from_json(plan.to_json()) == plan


def test_shifts_are_the_fewest_that_fit():
    assert shift_for_bias(np.array(1.0), np.array([32767.0]), INT16, None) == 0
    assert shift_for_bias(np.array(1.0), np.array([-32767.5]), INT16, None) == 1
    assert shift_for_bias(np.array([1.0, 8.0]), np.array([0.0, 8 * 65534.0]), INT16, 0) == 1
    assert shift_for_bias(np.array(1.0), np.zeros(3), INT16, None) == 0


@pytest.mark.parametrize("bias", ["int16", "weight"])
def test_qoperator_refuses_other_biases_in_one_sentence(bias):
    model, data = layer("Conv")
    with pytest.raises(RecipeError, match=f"no place for bias '{bias}'"):
        quantized(model, Recipe(bias=bias, format="qoperator"), data)


@pytest.mark.parametrize(("kind", "fits"), [("power-of-two", 0.5), ("int16", None)])
def test_a_weight_widened_for_its_int32_bias_keeps_its_kind_of_scale(kind, fits):
    wider = widened_for_bias(np.array(2.0**-9), 2.0**-12, np.array([3e4]), 1, kind)
    assert wider is not None
    assert wider * 2.0**-12 * (2**31 - 1) >= 3e4
    if fits:
        assert np.frexp(float(wider))[0] == fits
    else:
        assert any((wider * 2**n).is_integer() and wider * 2**n <= 32767 for n in range(17))


def test_a_whole_model_with_a_large_bias_keeps_power_of_two_scales():
    model, data = layer("Conv", size=1e6)
    data = [{"x": feeds["x"] * np.float32(1e-3)} for feeds in data]
    result = quantized(model, Recipe(scales="power-of-two"), data)
    weight = result.plan.tensors["w"]
    assert weight.method == "minmax, widened for the bias"
    assert np.frexp(weight.scale)[0] == 0.5


# Activations ----------------------------------------------------------------------------------


@pytest.mark.parametrize("qtype", [UINT8, INT8])
@pytest.mark.parametrize(
    "method", [MinMax(), MinMax(symmetric=True), NonOverflow(), MinMSE(symmetric=True)], ids=repr
)
def test_outputs_of_relu_use_the_whole_type_where_asked_to(qtype, method):
    model, data = make_cnn(), samples(1, 3, 12, 12)
    recipe = Recipe(
        activation=qtype,
        activation_symmetric=True,
        ranges=method,
        scales="float" if isinstance(method, MinMax) else "power-of-two",
        place=Placement(unsigned_activations=False),
    )
    centred = quantized(model, recipe, data).plan
    one_sided = quantized(model, recipe.replace(emulate={"unsigned_relu": True}), data).plan
    middle = 128 if qtype is UINT8 else 0
    for name in ("r1", "r2"):
        assert centred.tensors[name].zero_point == middle
        assert one_sided.tensors[name].zero_point == qtype.lowest
        assert one_sided.tensors[name].scale <= 0.51 * centred.tensors[name].scale
    # What is read behind a pool has the same parameters, what is not clipped is still symmetric.
    assert one_sided.parameters("p1").zero_point == qtype.lowest
    for name in ("x", "c2"):
        assert one_sided.tensors[name].zero_point == middle
    # The quantizer does what the Relu does, so that it goes.
    assert one_sided.nodes["relu1"].action == "absorb"


@pytest.mark.parametrize(
    ("bounds", "one_sided"), [((0, 6), True), ((0.5, 6), False), ((-1, 1), False)]
)
def test_only_a_clip_from_zero_is_one_sided(bounds, one_sided):
    constants = {
        "w": normal(8, 4, 3, 3),
        "low": np.float32(bounds[0]),
        "top": np.float32(bounds[1]),
    }
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv"),
        node("Clip", ["c", "low", "top"], ["y"], name="clip"),
    ]
    model = build(nodes, {"x": [1, 4, 6, 6]}, {"y": [1, 8, 4, 4]}, constants)
    recipe = Recipe(activation_symmetric=True, emulate={"unsigned_relu": True})
    plan = quantized(model, recipe, samples(1, 4, 6, 6)).plan
    assert plan.parameters("y").zero_point == (0 if one_sided else 128)


# Batches that vote ----------------------------------------------------------------------------


def test_batches_vote_on_the_scales_of_a_whole_model(tmp_path):
    model = make_cnn()
    data = samples(1, 3, 12, 12, count=5) + samples(1, 3, 12, 12, count=2, size=50.0)
    everything = Recipe(**NPU)
    common = everything.replace(ranges=MinMSE(mode="most-common"), emulate={"unsigned_relu": True})
    typical = quantized(model, common, data, holdout=False).plan
    assert typical.tensors["x"].scale < quantized(model, everything, data).plan.tensors["x"].scale
    alone = quantized(model, common, data[:5], holdout=False).plan
    assert typical.tensors["x"].scale == alone.tensors["x"].scale
    # The same through an engine, and from a file.
    stored = tmp_path / "sketches"
    for options in ({"engine": LocalEngine()}, {"sketches": stored}, {"sketches": stored}):
        again = quantized(model, common, data, holdout=False, **options).plan
        assert again.tensors == typical.tensors


def test_a_file_of_sketches_without_votes_is_refused(tmp_path):
    model, data, stored = make_cnn(), samples(1, 3, 12, 12), tmp_path / "sketches"
    quantized(model, Recipe(**NPU), data, sketches=stored)
    with pytest.raises(DataError, match="observe again"):
        quantized(
            model, Recipe(**NPU).replace(ranges=MinMSE(mode="most-common")), data, sketches=stored
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight_ranges": MinMSE()}, "scales='power-of-two'"),
        ({"overrides": {"x": Override(ranges=NonOverflow())}}, "scales='power-of-two'"),
        ({"bias": "weight", "quantize_bias": False}, "contradicts quantize_bias"),
        (
            {**RESTRICTED, "scales": "int16"},
            "contradicts scales='int16'",
        ),
    ],
)
def test_contradictions_are_told(options, message):
    with pytest.raises(RecipeError, match=message):
        Recipe(**options)


def test_sixteen_bits_have_room_beside_the_extremes_and_never_beyond_a_clip():
    layers = [
        node("Conv", ["x", "w"], ["a"], name="conv"),
        node("Clip", ["a", "low", "high"], ["b"], name="clip"),
        node("Conv", ["b", "w"], ["y"], name="head"),
    ]
    bounds = {"low": np.float32(0), "high": np.float32(1.5)}
    weights = {"w": normal(3, 3, 1, 1), **bounds}
    model = build(layers, {"x": [1, 3, 4, 4]}, {"y": [1, 3, 4, 4]}, weights)
    data = samples(1, 3, 4, 4)
    seen = max(float(np.abs(sample["x"]).max()) for sample in data)
    found = bitwright.quantize(model, data=data, recipe="a16w16", effort="low").plan
    assert found.tensors["x"].scale == pytest.approx(2 * seen / 32767, rel=1e-5)
    assert found.tensors["b"].scale <= 1.5 / 32767 * (1 + 1e-6)
    small = bitwright.quantize(model, data=data, recipe="a8w8", effort="low").plan
    assert small.tensors["x"].scale == pytest.approx(seen / 127, rel=1e-2)
