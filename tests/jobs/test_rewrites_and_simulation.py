"""Whole jobs with every rewrite and every stand-in: they run, and are measured against the model
that was given."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.models import Reader, build, node, normal, ops, run, sqnr, weight
from support.rewriting import to_last

import bitwright
from bitwright import RandomData
from bitwright.errors import RecipeError
from bitwright.recipe import (
    Emulation,
    Recipe,
    Rewrites,
    Selection,
    Simulation,
    SimulationSwitches,
    SmoothQuant,
)


def make_npu_cnn():
    """One of each op that a rewrite or a stand-in is about, 32x32 for a large pool."""
    norm = {
        "scale": 1 + normal(3, seed=10, size=0.1),
        "bias": normal(3, seed=11, size=0.1),
        "mean": normal(3, seed=12, size=0.1),
        "var": 1 + np.abs(normal(3, seed=13, size=0.1)),
    }
    constants = {
        **norm,
        "w1": weight(8, 3, 3, 3, seed=1),
        "w2": weight(4, 4, 3, 3, seed=2),
        "w3": weight(12, 6, seed=3),
        "gamma": 1 + normal(8, seed=4, size=0.1),
        "beta": normal(8, seed=5, size=0.1),
        "zero": np.float32(0),
        "six": np.float32(6),
        "halves": np.array([4, 4]),
        "eps": np.float32(1e-12),
        "axis": np.array([1]),
    }
    nodes = [
        node("BatchNormalization", ["x", "scale", "bias", "mean", "var"], ["n"], name="norm"),
        node("Relu", ["n"], ["nr"], name="norm_relu"),
        node("Conv", ["nr", "w1"], ["c1"], name="conv1", pads=[1, 1, 1, 1]),
        node("InstanceNormalization", ["c1", "gamma", "beta"], ["i"], name="instance"),
        node("Clip", ["i", "zero", "six"], ["r1"], name="clip"),
        node("Split", ["r1", "halves"], ["s1", "s2"], name="split", axis=1),
        node("Conv", ["s1", "w2"], ["c2"], name="conv2", pads=[1, 1, 1, 1]),
        node("LeakyRelu", ["c2"], ["l"], name="leaky", alpha=0.1),
        node("Sigmoid", ["s2"], ["g"], name="sigmoid"),
        node("Mul", ["s2", "g"], ["sw"], name="swish"),
        node("Concat", ["l", "sw", "s2"], ["j"], name="join", axis=1),
        node("AveragePool", ["j"], ["a"], name="pool", kernel_shape=[3, 3], strides=[1, 1]),
        node("ReduceMean", ["j"], ["m"], name="mean", axes=[2, 3]),
        node("GlobalAveragePool", ["a"], ["ga"], name="global"),
        node("Add", ["m", "ga"], ["t"], name="total"),
        node("Flatten", ["t"], ["f"], name="flat"),
        node("Mul", ["f", "f"], ["ff"], name="square"),
        node("ReduceSum", ["ff", "axis"], ["fs"], name="sum", keepdims=1),
        node("Max", ["fs", "eps"], ["fm"], name="guard"),
        node("Sqrt", ["fm"], ["fl"], name="length"),
        node("Div", ["f", "fl"], ["u"], name="unit"),
        node("MatMul", ["u", "w3"], ["logits"], name="fc"),
        node("Softmax", ["logits"], ["y"], name="softmax"),
    ]
    return build(nodes, {"x": ["n", 3, 32, 32]}, {"y": None, "l": None}, constants)


MODEL = make_npu_cnn()
SAMPLES = [{"x": normal(1, 3, 32, 32, seed=i)} for i in range(9)]

REWRITES = {
    "batch_norm_to_conv": {"BatchNormalization": 0, "Conv": 3},
    "reduce_mean_to_pool": {"ReduceMean": 0, "GlobalAveragePool": 2},
    "split_large_pools": {"AveragePool": 2},
    "split_to_slice": {"Split": 0, "Slice": 2},
    "swish_to_mul": {"HardSwish": 0},  # there is none: its own tests have some
    "fuse_instance_norm": {"InstanceNormalization": 1},
    "fuse_l2_norm": {"LpNormalization": 1, "Sqrt": 0},
    "clip6_to_relu": {"Clip": 0},
    "channels_last": {"Transpose": 2},
    "conv_attributes": {},
}
EMULATED = {"clip_to_relu": {"Clip": 0}, "widen_interface": {}}
SIMULATIONS = {
    "leaky_relu": ("the slope of 1 LeakyRelu", {"LeakyRelu": 1}),
    "sigmoid": ("1 Sigmoid by HardSigmoid", {"Sigmoid": 0, "HardSigmoid": 1}),
    "hard_sigmoid": (None, {"HardSigmoid": 0}),
    "average_pool": ("the divisor of 2 average pools", {"Mul": 2 + 2}),
    "reduce_mean": (None, {"Mul": 2}),  # 32 x 32 is a power of two
    "softmax": ("1 Softmax in bfloat16", {"Softmax": 0}),
    "instance_norm": ("1 InstanceNormalization in bfloat16", {"InstanceNormalization": 0}),
    "clip": ("the bounds of 1 Clip", {}),
}


def test_every_rewrite_is_tried():
    # These have models of their own, in the tests of their passes and of targets.
    elsewhere = {"fix_shapes", "needs_fixed_shapes", "fuse_gelu", "fuse_layer_norm"}
    elsewhere |= {"nearest_to_floor", "pads_of_all_axes", "positive_indices"}
    assert {*REWRITES, *elsewhere, "fuse_space_to_depth"} == {*Rewrites.__struct_fields__}


def assert_ops(result, expected):
    found = ops(result)
    assert {op: found[op] for op in expected} == expected


@pytest.mark.parametrize("field", [*REWRITES, *EMULATED])
def test_each_rewrite_alone(field):
    recipe = Recipe(**{"emulate" if field in EMULATED else "rewrite": {field: True}})
    result = bitwright.quantize(MODEL, data=SAMPLES, recipe=recipe, progress=False)
    assert_ops(result, (REWRITES | EMULATED)[field])
    onnx.checker.check_model(result.to_proto(), full_check=True)
    # The figures are those of a comparison with the model that was given.
    turned = field == "channels_last"
    feeds = [{"x": to_last(s["x"])} if turned else s for s in SAMPLES[7:8]]
    expected = run(MODEL, SAMPLES[7:8])[0]
    expected = [to_last(array) if turned else array for array in expected]
    for index, comparison in enumerate(result.outputs):
        measured = sqnr(expected[index], run(result, feeds)[0][index])
        assert comparison.sqnr == pytest.approx(measured, abs=0.05)
        assert comparison.sqnr > (15 if "clip" in field else 20)


def simulating(*fields):
    """Return a recipe that simulates nothing but this."""
    alone = {name: name in fields for name in SimulationSwitches.__struct_fields__}
    asked = {name: True for name in fields if name in Simulation.__struct_fields__}
    return Recipe(simulate=Simulation(**asked), emulate={"simulate": alone})


@pytest.mark.parametrize("field", SIMULATIONS)
def test_each_simulation_alone(field):
    recipe = simulating(field)
    result = bitwright.quantize(MODEL, data=SAMPLES, recipe=recipe, progress=False)
    sentence, expected = SIMULATIONS[field]
    assert_ops(result, expected)
    told = [note for note in result.plan.notes if note.startswith("simulated")]
    assert told == ([] if sentence is None else [f"simulated {sentence}"])
    onnx.checker.check_model(result.to_proto(), full_check=True)
    expected = run(MODEL, SAMPLES[7:8])[0]
    for index, comparison in enumerate(result.outputs):
        measured = sqnr(expected[index], run(result, SAMPLES[7:8])[0][index])
        assert comparison.sqnr == pytest.approx(measured, abs=0.05)
        assert comparison.sqnr > 15


def test_everything_at_once_and_the_plan_applied_again():
    recipe = Recipe(
        rewrite=Rewrites(**dict.fromkeys(REWRITES, True), fix_shapes={"n": 1}),
        emulate=Emulation(**dict.fromkeys(EMULATED, True)),
        simulate=Simulation(**dict.fromkeys(Simulation.__struct_fields__, True)),
    )
    result = bitwright.quantize(MODEL, data=SAMPLES, recipe=recipe, progress=False)
    assert all(comparison.sqnr > 10 for comparison in result.outputs)
    again = bitwright.apply_plan(result.plan, MODEL, data=SAMPLES[7:8])
    assert again.to_proto() == result.to_proto()
    assert [c.sqnr for c in again.outputs] == pytest.approx([c.sqnr for c in result.outputs])
    assert any("NHWC" in note for note in result.plan.notes)


def test_steps_in_bfloat16_stay_float_with_a_reason():
    recipe = simulating("softmax")
    plan = bitwright.make_plan(MODEL, data=SAMPLES, recipe=recipe, progress=False)
    reasons = {node.reason for name, node in plan.nodes.items() if name.startswith("y_")}
    assert reasons == {"it is a bfloat16 step of the simulated NPU"}


def test_the_demo_model_with_the_rewrites_of_the_npu():
    demo = bitwright.load_demo()
    recipe = Recipe(
        rewrite=Rewrites(
            batch_norm_to_conv=True,
            reduce_mean_to_pool=True,
            split_large_pools=True,
            split_to_slice=True,
        ),
        simulate=Simulation(),
    )
    result = bitwright.quantize(
        demo.model_path, data=demo.calibration[:32], recipe=recipe, progress=False
    )
    assert result.outputs[0].agreement == 1


@pytest.mark.parametrize("smooth", [None, SmoothQuant()])
@pytest.mark.parametrize("kind", ["list", "reader", "random"])
def test_data_for_channels_last_keeps_the_layout_of_the_given_model(kind, smooth):
    data = {"list": SAMPLES, "reader": Reader(SAMPLES), "random": RandomData(count=8)}[kind]
    recipe = Recipe(rewrite=Rewrites(channels_last=True), smooth=smooth)
    result = bitwright.quantize(MODEL, data=data, recipe=recipe, progress=False)
    assert result.outputs[0].sqnr > 15
    fed = result.to_proto().graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_value for d in fed][1:] == [32, 32, 3]


def test_a_node_that_was_rewritten_cannot_be_excluded_by_its_old_name():
    recipe = Recipe(rewrite=Rewrites(split_to_slice=True), select=Selection(exclude=("split",)))
    with pytest.raises(RecipeError, match="rewritten"):
        bitwright.quantize(MODEL, data=SAMPLES, recipe=recipe, progress=False)


def test_initializers_among_the_inputs_are_constants_afterwards():
    proto = build(
        [node("Conv", ["x", "w"], ["y"], name="conv")],
        {"x": [1, 3, 8, 8], "w": [4, 3, 3, 3]},
        {"y": None},
        {"w": weight(4, 3, 3, 3)},
    )
    result = bitwright.quantize(
        proto, data=[{"x": normal(1, 3, 8, 8)}], recipe="int8", progress=False
    )
    assert [i.name for i in result.to_proto().graph.input] == ["x"]
