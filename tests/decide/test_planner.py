"""From ranges to a finished plan: what is absorbed, widened, left float, and refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.models import (
    build,
    constants_of,
    info,
    make_cnn,
    make_mlp,
    make_samples,
    make_transformer,
    node,
    normal,
    ops,
    quality,
    run,
    weight,
)
from support.quantizing import quantize

import bitwright
from bitwright.decide.layout.static import lay_out
from bitwright.decide.planner import with_ranges
from bitwright.errors import DataError, ModelError
from bitwright.jobs.calibration import Calibration, calibrate
from bitwright.jobs.opening import open_model
from bitwright.jobs.static import decide_layout
from bitwright.numerics.types import INT8, INT16, UINT8, UINT16
from bitwright.recipe import (
    MSE,
    Emulation,
    MinMax,
    Override,
    Percentile,
    Placement,
    Recipe,
    Selection,
)

# Absorbing ----------------------------------------------------------------------------------


def make_activation(*activations):
    """A Conv, the given Relu/Clip nodes in a row, and a Conv."""
    constants = {"w1": weight(8, 3, 1, 1, seed=1) * 3, "w2": weight(4, 8, 1, 1, seed=2)}
    nodes = [node("Conv", ["x", "w1"], ["t0"], name="conv")]
    for index, bounds in enumerate(activations):
        source, target, name = f"t{index}", f"t{index + 1}", f"act{index}"
        if bounds is None:
            nodes.append(node("Relu", [source], [target], name=name))
            continue
        inputs = [source]
        for side, value in zip(("low", "high"), bounds, strict=True):
            inputs.append("" if value is None else f"{side}{index}")
            if value is not None:
                constants[f"{side}{index}"] = np.array(value, np.float32)
        nodes.append(node("Clip", inputs, [target], name=name))
    nodes.append(node("Conv", [f"t{len(activations)}", "w2"], ["y"], name="head"))
    return build(nodes, {"x": [1, 3, 6, 6]}, {"y": [1, 4, 6, 6]}, constants)


EXACT = {
    "Relu": (None,),
    "Relu6": ((0.0, 6.0),),
    "Clip from 0": ((0.0, None),),
    "Clip up to a bound nobody reaches": ((0.0, 1e6),),
    "Clip to negative": ((-2.0, 0.0),),
    "no bounds at all": ((None, None),),
    "lower bound within a step of zero": ((-0.01, 6.0),),
    "Relu and Relu6": (None, (0.0, 6.0)),
}


@pytest.mark.parametrize("case", EXACT)
@pytest.mark.parametrize("activation", [UINT8, INT8, UINT16])
@pytest.mark.sampled(12)
def test_an_absorbed_activation_changes_no_output_bit(case, activation):
    model = make_activation(*EXACT[case])
    samples = make_samples(model, 4)
    absorbed = quantize(model, samples, activation=activation)
    kept = quantize(model, samples, activation=activation, emulate=Emulation(keep_activations=True))
    assert ops(absorbed)["Relu"] + ops(absorbed)["Clip"] == 0
    assert ops(kept)["Relu"] + ops(kept)["Clip"] == len(EXACT[case])
    # On inputs beyond the calibrated range, too.
    wide = [{"x": sample["x"] * 5} for sample in samples]
    for a, b in zip(run(absorbed, wide), run(kept, wide), strict=True):
        np.testing.assert_array_equal(a[0], b[0])


INEXACT = {
    "lower bound above zero": ((0.5, 6.0),),
    "upper bound below zero": ((-6.0, -0.5),),
}


@pytest.mark.parametrize("case", INEXACT)
def test_an_activation_that_the_quantizer_cannot_repeat_stays(case):
    model = make_activation(*INEXACT[case])
    samples = make_samples(model, 4)
    result = quantize(model, samples)
    assert ops(result)["Clip"] == 1
    assert quality(model, result, samples) > 30


@pytest.mark.parametrize(
    "fields",
    [
        {"activation": INT8, "activation_symmetric": True},
        {"activation": UINT8, "activation_symmetric": True},
        {"ranges": MinMax(symmetric=True)},
    ],
    ids=["int8", "uint8", "range"],
)
def test_a_relu_stays_where_the_grid_goes_below_zero(fields):
    model = make_activation(None)
    samples = make_samples(model, 4)
    result = quantize(model, samples, **fields)
    assert ops(result)["Relu"] == 1
    assert quality(model, result, samples) > 28


@pytest.mark.parametrize("method", [Percentile(percentile=99.0), MSE()], ids=repr)
def test_clipping_methods_absorb_a_relu_and_keep_a_clip_they_cut_into(method):
    relu = quantize(make_activation(None), ranges=method)
    assert ops(relu)["Relu"] == 0
    assert relu.plan.nodes["act0"].action == "absorb"


def test_a_relu_whose_input_is_also_read_elsewhere_stays():
    model = make_activation(None)
    model.graph.node.append(node("Conv", ["t0", "w2"], ["side"], name="side"))
    model.graph.output.add().CopyFrom(model.graph.output[0])
    model.graph.output[1].name = "side"
    samples = make_samples(model, 4)
    result = quantize(model, samples)
    assert ops(result)["Relu"] == 1
    assert quality(model, result, samples) > 30


@pytest.mark.parametrize("format", ["qdq", "qoperator"])
@pytest.mark.parametrize("case", EXACT)
def test_an_activation_before_an_excluded_node_is_done_in_float(case, format):
    model = make_activation(*EXACT[case])
    # A second reader, which is quantized, reads through the quantizer.
    last = f"t{len(EXACT[case])}"
    model.graph.node.append(node("Conv", [last, "w3"], ["side"], name="side"))
    model.graph.initializer.append(numpy_helper.from_array(weight(4, 8, 1, 1, seed=3), "w3"))
    model.graph.output.append(info("side", [1, 4, 6, 6]))
    samples = make_samples(model, 4)
    for excluded in (("head",), ("head", "side")):
        result = quantize(model, samples, format=format, select=Selection(exclude=excluded))
        assert ops(result)["Relu"] + ops(result)["Clip"] == len(EXACT[case])
        assert quality(model, result, samples) > 30
    # Nobody reads a rounded result: nothing is rounded behind the first Conv.
    assert ops(result)["QuantizeLinear"] == 1


def test_an_activation_that_a_body_reads_stays():
    model = make_activation(None)
    branches = [
        helper.make_graph([node(op, ["t1"], ["chosen"], name=op)], op, [], [info("chosen")])
        for op in ("Sqrt", "Neg")
    ]
    # With a constant condition, the optimizer puts the branch in the place of the If.
    model.graph.node.append(node("ReduceMax", ["x"], ["largest"], keepdims=0))
    model.graph.node.append(node("Cast", ["largest"], ["c"], to=TensorProto.BOOL))
    model.graph.node.append(
        node("If", ["c"], ["side"], name="if", then_branch=branches[0], else_branch=branches[1])
    )
    model.graph.output.append(info("side"))
    samples = make_samples(model, 4)
    result = quantize(model, samples)
    assert ops(result)["Relu"] == 1
    assert quality(model, result, samples) > 30


def test_a_clip_with_bounds_computed_at_run_time_stays():
    model = build(
        [
            node("Conv", ["x", "w"], ["c"], name="conv"),
            node("ReduceMax", ["x"], ["top"], name="top", keepdims=0),
            node("Clip", ["c", "", "top"], ["k"], name="clip"),
            node("Conv", ["k", "v"], ["y"], name="head"),
        ],
        {"x": [1, 3, 6, 6]},
        {"y": [1, 4, 6, 6]},
        {"w": weight(8, 3, 1, 1), "v": weight(4, 8, 1, 1)},
    )
    samples = make_samples(model, 4)
    result = quantize(model, samples)
    assert ops(result)["Clip"] == 1
    assert quality(model, result, samples) > 28


# Biases -------------------------------------------------------------------------------------


def make_big_bias(size):
    """Tiny activations and weights beside a bias that int32 cannot hold at their scale."""
    return build(
        [node("Conv", ["x", "w", "b"], ["y"], name="conv")],
        {"x": [1, 3, 5, 5]},
        {"y": [1, 4, 5, 5]},
        {"w": weight(4, 3, 1, 1) * 1e-5, "b": np.array([size, -size, 0, 1], np.float32)},
    )


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_weight_scale_is_widened_where_its_bias_would_overflow(per_channel):
    model = make_big_bias(50.0)
    samples = [{"x": normal(1, 3, 5, 5, seed=i, size=1e-4)} for i in range(4)]
    result = quantize(model, samples, per_channel=per_channel)
    assert result.plan.tensors["w"].method == "minmax, widened for the bias"
    stored = constants_of(result)
    levels = stored["b_quantized"].astype(np.int64)
    assert np.abs(levels).max() < 2**31 - 1
    np.testing.assert_allclose(
        levels * stored["b_quantized_scale"].astype(np.float64), [50, -50, 0, 1], rtol=1e-5
    )
    assert quality(model, result, samples) > 35


@pytest.mark.parametrize("op", ["Conv", "Gemm", "MatMul"])
@pytest.mark.parametrize(("activation", "kind"), [(UINT8, INT8), (UINT16, INT16)], ids=str)
def test_a_float_bias_has_room_for_the_runtime_to_store_it(op, activation, kind):
    """ONNX Runtime makes int32 of it, whether it fits or not: a dead channel had no bias left."""
    shape = (8, 8, 1, 1) if op == "Conv" else (8, 8)
    dead, bias = weight(*shape, seed=1), normal(8, seed=2)
    dead[(slice(None), 0) if op != "Conv" else 0], bias[0] = 1e-9, 3
    product = [node(op, ["x", "w", "b"], ["a"], name="dead")]
    if op == "MatMul":
        product = [
            node(op, ["x", "w"], ["m"], name="dead"),
            node("Add", ["m", "b"], ["a"], name="s"),
        ]
    size = [4, 8, 1, 1] if op == "Conv" else [4, 8]
    model = build(
        [*product, node("MatMul" if op != "Conv" else op, ["a", "v"], ["y"], name="last")],
        {"x": size},
        {"y": size},
        {"w": dead, "b": bias, "v": weight(*shape, seed=3)},
    )
    samples = make_samples(model, 4)
    fields = {"activation": activation, "weight": kind, "per_channel": True}
    result = quantize(model, samples, quantize_bias=False, **fields)
    stored = quantize(model, samples, **fields)
    assert quality(model, result, samples) > quality(model, stored, samples) - 1
    assert quality(model, result, samples) > 35


def test_without_widening_the_bias_saturates():
    model = make_big_bias(50.0)
    samples = [{"x": normal(1, 3, 5, 5, seed=i, size=1e-4)} for i in range(4)]
    result = quantize(model, samples, emulate=Emulation(adjust_for_bias=False))
    assert np.abs(constants_of(result)["b_quantized"].astype(np.int64)).max() >= 2**31 - 1


def test_a_bias_that_fits_leaves_the_weight_scale_alone():
    plan = quantize(make_cnn()).plan
    assert plan.tensors["w1"].method == "minmax"


def test_a_widened_scale_is_widened_only_in_the_channels_that_need_it():
    model = make_big_bias(50.0)
    samples = [{"x": normal(1, 3, 5, 5, seed=i, size=1e-4)} for i in range(4)]
    plain = quantize(model, samples, per_channel=True, emulate=Emulation(adjust_for_bias=False))
    wider = quantize(model, samples, per_channel=True)
    grown = np.array(wider.plan.tensors["w"].scale) > np.array(plain.plan.tensors["w"].scale)
    assert list(grown) == [True, True, False, True]


# Ranges -------------------------------------------------------------------------------------


def test_a_clipped_tensor_needs_no_levels_for_what_is_cut_off():
    model = make_activation((0.0, 1.0))
    constants = constants_of(quantize(model))
    assert float(constants["t1_scale"]) == pytest.approx(1 / 255)


def test_a_softmax_has_255_steps_of_one():
    named = Selection(op_types=("Add", "MatMul", "Mul", "Reshape", "Softmax", "Transpose"))
    plan = quantize(make_transformer(), select=named).plan
    assert plan.tensors["p"].scale == pytest.approx(1 / 255)
    assert plan.tensors["p"].method == "by definition"


def test_zero_is_always_a_level():
    model = make_mlp()
    samples = [{"x": np.abs(normal(4, 16, seed=i)) + 5} for i in range(4)]
    plan = quantize(model, samples).plan
    assert plan.tensors["x"].zero_point == 0
    assert plan.tensors["x"].range[0] == 0


@pytest.mark.parametrize(
    ("fields", "zero_point", "signed"),
    [
        ({"weight": INT8}, 0, True),
        ({"weight": UINT8}, None, False),
        ({"weight": UINT8, "weight_symmetric": True}, 128, False),
        ({"weight": INT8, "weight_symmetric": False}, None, True),
        ({"weight": INT16}, 0, True),
    ],
    ids=str,
)
def test_weights_are_symmetric_by_type_unless_told(fields, zero_point, signed):
    found = quantize(make_mlp(), **fields).plan.tensors["w1"].zero_point
    assert found == zero_point if zero_point is not None else found not in (0, 128)


def test_a_constant_addend_follows_the_symmetry_of_activations_not_of_weights():
    model = make_transformer()
    place = Placement(isolated=True, float_bias_add=False)
    plan = quantize(model, activation=INT8, weight=INT8, place=place).plan
    assert plan.tensors["w_q"].zero_point == 0
    assert plan.tensors["b_q"].zero_point != 0


def test_a_minimum_real_range_is_kept():
    model = make_mlp()
    samples = [{"x": normal(4, 16, seed=i, size=1e-6)} for i in range(4)]
    plan = quantize(model, samples, min_real_range=0.1).plan
    assert plan.tensors["x"].scale >= 0.1 / 255 * 0.999


# What cannot be decided ---------------------------------------------------------------------


def test_a_run_that_quantizes_nothing_is_an_error_with_reasons():
    with pytest.raises(ModelError, match=r"nothing .* was quantized \(.*because|not among"):
        quantize(make_mlp(), select=Selection(op_types=("Conv",)))


def test_a_tensor_that_no_sample_fills_is_an_error():
    model = build(
        [
            node("NonZero", ["x"], ["where"], name="find"),
            node("Cast", ["where"], ["f"], name="cast", to=1),
            node("Transpose", ["f"], ["t"], name="turn", perm=[1, 0]),
            node("MatMul", ["t", "w"], ["y"], name="mm"),
        ],
        {"x": [4, 4]},
        {"y": ["n", 8]},
        {"w": weight(2, 8)},
    )
    with pytest.raises(DataError, match=r"tensor 't' was never seen.*'mm'"):
        quantize(model, [{"x": np.zeros((4, 4), np.float32)}] * 3)


def test_experts_that_no_token_goes_to_stay_float():
    def expert(name, sign):
        return [
            node("Mul", ["x", sign], [f"{name}_s"], name=f"{name}_sign"),
            node(
                "ReduceMax", [f"{name}_s"], [f"{name}_m"], name=f"{name}_max", axes=[1], keepdims=0
            ),
            node("Greater", [f"{name}_m", "limit"], [f"{name}_c"], name=f"{name}_chosen"),
            node("Compress", ["x", f"{name}_c"], [f"{name}_x"], name=f"{name}_rows", axis=0),
            node("MatMul", [f"{name}_x", "w"], [f"{name}_y"], name=f"{name}_mm"),
        ]

    model = build(
        [*expert("a", "plus"), *expert("b", "minus")],
        {"x": [4, 16]},
        {"a_y": ["n", 8], "b_y": ["m", 8]},
        {
            "w": weight(16, 8),
            "plus": np.float32(1.0),
            "minus": np.float32(-1.0),
            "limit": np.float32(0.0),
        },
    )
    samples = [{"x": np.abs(normal(4, 16, seed=i)) + 0.1} for i in range(3)]
    plan = quantize(model, samples).plan
    assert plan.nodes["a_mm"].action == "quantize"
    assert plan.nodes["b_mm"].reason == "it never ran during calibration"
    assert any("no sample of the calibration data reached" in note for note in plan.notes)


def test_every_float_node_carries_a_reason():
    for model in (make_cnn(), make_transformer()):
        plan = quantize(model, select=Selection(exclude=("re:.*(fc|norm1)",))).plan
        assert all(n.reason for n in plan.nodes.values() if n.action == "float")


# Channels ------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["qdq", "qoperator"])
def test_an_override_gives_each_channel_a_zero_point(format):
    model = make_cnn()
    model.graph.initializer[0].CopyFrom(
        numpy_helper.from_array(np.abs(constants_of(model)["w1"]), "w1")
    )
    samples = make_samples(model)
    kept = quantize(model, samples, per_channel=True, format=format)
    asked = {"w1": Override(symmetric=False)}
    moved = quantize(model, samples, per_channel=True, format=format, overrides=asked)
    assert not np.any(kept.plan.tensors["w1"].zero_point)
    assert np.all(np.array(moved.plan.tensors["w1"].zero_point) == -128)
    assert moved.plan.tensors["w1"].scale[0] < 0.6 * kept.plan.tensors["w1"].scale[0]
    assert quality(model, moved, samples) > 35


# What the runtime would fuse and then refuse --------------------------------------------------


@pytest.mark.parametrize("format", ["qdq", "qoperator"])
@pytest.mark.parametrize(("dilations", "pooled"), [([1, 1], True), ([2, 2], False)])
def test_an_average_pool_with_dilations_stays_float(format, dilations, pooled):
    nodes = [
        node("Conv", ["x", "w1"], ["h"], name="before"),
        node("AveragePool", ["h"], ["p"], name="pool", kernel_shape=[2, 2], dilations=dilations),
        node("Conv", ["p", "w2"], ["y"], name="after"),
    ]
    constants = {"w1": weight(4, 3, 1, 1, seed=1), "w2": weight(2, 4, 1, 1, seed=2)}
    model = build(nodes, {"x": [1, 3, 10, 10]}, {"y": None}, constants, opset=19)
    samples = make_samples(model)
    result = quantize(model, samples, format=format)
    plan = result.plan.nodes["pool"]
    assert plan.quantized == pooled
    if not pooled:
        assert plan.reason == "ONNX Runtime has no integer AveragePool with dilations"
    assert quality(model, result, samples) > 30
    wide = quantize(model, samples, activation=UINT16, weight=INT8)
    assert wide.plan.nodes["pool"].quantized


# Rounding -----------------------------------------------------------------------------------


def lost_by(result, name, float_weight):
    """Return the sum of errors of each kernel of a weight, in steps."""
    entry = result.plan.tensors[name]
    integers = constants_of(result.to_proto())[f"{name}_quantized"]
    exact = float_weight.astype(np.float64) / entry.scale
    return np.abs((integers - exact).sum(axis=(2, 3)))


def test_weights_of_convolutions_are_rounded_in_balance_and_no_others():
    model = make_cnn(channels=16)
    result = quantize(model)
    planned = {key: entry.rounding for key, entry in result.plan.tensors.items()}
    assert planned["w1"] == planned["w2"] == "squant"
    assert {planned[key] for key in planned if key not in ("w1", "w2")} == {"nearest"}
    floats = constants_of(model)["w2"]
    assert lost_by(result, "w2", floats).max() <= 1
    assert lost_by(quantize(model, rounding="nearest"), "w2", floats).max() > 1


def test_weights_that_the_runtime_rounds_are_planned_as_it_rounds_them():
    result = quantize(make_cnn(), emulate=Emulation(weight_pairs=True))
    assert {entry.rounding for entry in result.plan.tensors.values()} == {"nearest"}


def test_balanced_rounding_brings_a_model_closer_to_float():
    model = make_cnn(channels=32)
    samples = make_samples(model)
    samples = [{"x": np.abs(sample["x"])} for sample in samples]  # as behind a Relu
    results = {
        rounding: quantize(model, samples, rounding=rounding, activation=UINT16)
        for rounding in ("nearest", "squant")
    }
    assert (
        quality(model, results["squant"], samples) > quality(model, results["nearest"], samples) + 2
    )


def test_a_model_without_inputs_has_nothing_to_quantize():
    product = node("MatMul", ["a", "w"], ["y"], name="product")
    constants = {"a": np.ones((2, 4), np.float32), "w": np.ones((4, 3), np.float32)}
    model = build([product], {}, {"y": [2, 3]}, constants)
    with pytest.raises(ModelError, match="nothing in this model depends on its inputs"):
        bitwright.quantize(model, data=[{}], holdout=False)


# Other ranges -------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [make_cnn, make_transformer])
@pytest.mark.parametrize("activation", [UINT8, INT8])
def test_other_ranges_are_those_that_the_plan_would_have_been_made_with(make, activation):
    recipe = Recipe(activation=activation, per_channel=True)
    other = recipe.replace(ranges=Percentile(percentile=90.0))
    prepared = open_model(make(), recipe)
    layout = lay_out(prepared.model, recipe)
    histograms = replace(prepared, recipe=other)  # extremes are a part of them
    calibrated = calibrate(histograms, layout, Calibration(data=make_samples(make(), 4)))
    before, expected = (
        decide_layout(replace(prepared, recipe=one), layout, calibrated) for one in (recipe, other)
    )
    found = with_ranges(before, layout, calibrated.sketches, other)
    moved = 0
    for key, tensor in expected.tensors.items():
        given = found.tensors[key]
        assert (given.scale, given.zero_point) == (tensor.scale, tensor.zero_point)
        moved += given.scale != before.tensors[key].scale
    assert moved > 2
