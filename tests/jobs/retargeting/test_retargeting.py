"""A quantized model in the encoding of another target computes what it did before, bit by bit."""

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from support.language_models import make_block
from support.models import BOOL, build, info, make_mlp, make_samples, node
from support.target_models import MODELS, fix_batch

import bitwright
from bitwright.errors import ModelError, TargetError
from bitwright.jobs.retargeting.integer_operators import expand_integer_operators
from bitwright.jobs.retargeting.zero_points import move_zero_points
from bitwright.run import Session

DEMO = bitwright.load_demo()
LEVELS = onnxruntime.GraphOptimizationLevel


def run(model, level=LEVELS.ORT_DISABLE_ALL):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    return session.run(None, {"image": DEMO.calibration[:32]})[0]


@pytest.fixture(scope="module")
def signed():
    return bitwright.quantize(
        DEMO.model_path,
        data=DEMO.calibration[:8],
        recipe="int8-symmetric",
        target="arm-cpu",
        holdout=False,
    ).model


@pytest.fixture(scope="module")
def unsigned():
    return bitwright.quantize(
        DEMO.model_path, data=DEMO.calibration[:8], recipe="int8-per-channel", holdout=False
    )


def test_int8_becomes_uint8_for_x86_and_back_for_tensorrt(signed):
    moved = bitwright.retarget(signed, "x86-vnni")
    assert "now uint8" in moved.changes[0]
    assert np.array_equal(run(moved.model), run(signed))
    assert bitwright.inspect(moved.model).quantized_types.keys() == {"uint8", "int8", "int32"}
    back = bitwright.retarget(moved.model, "nvidia-tensorrt")
    assert back.changes[1] == "wrote 8 quantized bias vectors in float"
    assert np.array_equal(run(back.model), run(signed))
    assert back.verification.ok
    assert not bitwright.retarget(signed, "arm-cpu").changes


def test_pairs_become_integer_operators_and_pairs_again(unsigned, tmp_path):
    model = unsigned.model
    integers = bitwright.retarget(model, "cpu-any", tmp_path / "q.onnx", format="qoperator")
    assert "QLinearConv" in {n.op_type for n in integers.model.graph}
    whole = LEVELS.ORT_ENABLE_ALL
    assert np.array_equal(run(integers.model, whole), run(model, whole))
    pairs = bitwright.retarget(tmp_path / "q.onnx", "qualcomm-htp")
    assert "as Q/DQ pairs" in pairs.changes[0]
    assert not any(n.op_type.startswith("QLinear") for n in pairs.model.graph)
    assert np.array_equal(run(pairs.model), run(model))
    assert np.array_equal(run(pairs.model, whole), run(model, whole))


@pytest.mark.parametrize("format", ["qdq", "qoperator"])
def test_integer_operators_beside_float_nodes_are_written_anew(format):
    recipe = bitwright.load_recipe("int8-symmetric").replace(
        format="qoperator", select={"exclude": ("residual_b_conv", "pool")}
    )
    options = {"data": DEMO.calibration[:8], "holdout": False, "target": "arm-cpu"}
    first = bitwright.quantize(DEMO.model_path, recipe=recipe, **options).model
    assert "Clip" in {n.op_type for n in first.graph}
    for target in ("x86-vnni", "arm-cpu"):
        again = bitwright.retarget(first, target, format=format).model
        integers = any(n.op_type.startswith("QLinear") for n in again.graph)
        assert integers == (format == "qoperator")
        # The last product adds up in float; a level beside would be a thousand times more.
        np.testing.assert_allclose(run(again), run(first), atol=1e-5)


def test_integers_beside_those_that_are_moved_become_the_numbers_they_stand_for():
    constants = {
        "s": np.float32(0.1),
        "z": np.uint8(120),
        "low": np.uint8(125),
        "fill": np.uint8(140),
        "pads": np.int64([0, 1, 0, 1]),
    }
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("Clip", ["q", "low"], ["c"]),
        node("Pad", ["c", "pads", "fill"], ["p"]),
        node("ArgMax", ["p"], ["best"], axis=1),
        node("DequantizeLinear", ["p", "s", "z"], ["y"]),
    ]
    outputs = [info("y", [2, 6]), info("best", [2, 1], onnx.TensorProto.INT64)]
    model = build(nodes, [info("x", [2, 4])], outputs, constants, opset=13)
    feeds = {"x": np.float32([[-3, -1, 0.2, 7], [0.5, 1, 4, 1]])}
    expected = Session(model, level="disabled").runtime.run(None, feeds)
    changed = ir.from_proto(onnx.shape_inference.infer_shapes(model))
    expand_integer_operators(changed)
    bounds = next(n for n in changed.graph if n.op_type == "Clip").inputs[1]
    assert bounds.const_value.numpy() == np.float32(0.5)
    found = Session(ir.to_proto(changed), level="disabled").runtime.run(None, feeds)
    for one, two in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, two)


def test_what_cannot_be_encoded_is_refused_with_the_node(unsigned):
    with pytest.raises(TargetError, match=r"cannot be re-encoded for nvidia-tens.*zero point"):
        bitwright.retarget(unsigned.model, "nvidia-tensorrt")


@pytest.mark.parametrize(("target", "size"), [("qualcomm-htp:v66", 1), ("qualcomm-htp", 10)])
def test_a_kept_plan_gets_the_granularity_of_the_target(unsigned, target, size):
    made = bitwright.retarget(DEMO.model_path, target, plan=unsigned.plan)
    assert not [f for f in made.verification.errors if f.rule in ("channels", "blocks")]
    scales = [
        value.const_value.size
        for name, value in made.model.graph.initializers.items()
        if name.startswith("classify_weight") and name.endswith("scale")
    ]
    assert scales == [size]


def test_channels_become_blocks_and_blocks_channels(unsigned):
    blocks = bitwright.retarget(DEMO.model_path, "cpu-any", plan=unsigned.plan, block_size=16)
    assert bitwright.inspect(blocks.model).scales["per block"] == 1
    assert np.abs(run(blocks.model) - run(unsigned.model)).max() < 0.2
    plan = unsigned.plan.recipe.replace(block_size=16)
    made = bitwright.make_plan(DEMO.model_path, data=DEMO.calibration[:8], recipe=plan)
    channels = bitwright.retarget(DEMO.model_path, "qualcomm-htp", plan=made)
    assert "per block" not in bitwright.inspect(channels.model).scales


def test_options_that_contradict_each_other_are_refused(unsigned, tmp_path):
    with pytest.raises(TargetError, match="block_size needs plan"):
        bitwright.retarget(unsigned.model, "cpu-any", block_size=16)
    with pytest.raises(TargetError, match="format is the plan's own"):
        bitwright.retarget(DEMO.model_path, "cpu-any", plan=unsigned.plan, format="qdq")
    with pytest.raises(ModelError, match="another model"):
        other = msgspec.structs.replace(unsigned.plan, fingerprint="0")
        bitwright.retarget(DEMO.model_path, "cpu-any", plan=other)


def make_moved_integers():
    """A Q whose integers a MaxPool reads, and not a dequantizer."""
    constants = {"s": np.float32(0.1), "z": np.int8(0)}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q"),
        node("MaxPool", ["q"], ["m"], name="pool", kernel_shape=[2, 2]),
        node("DequantizeLinear", ["m", "s", "z"], ["y"], name="d"),
    ]
    return ir.from_proto(build(nodes, {"x": [1, 1, 4, 4]}, {"y": [1, 1, 3, 3]}, constants))


def test_integers_that_others_read_are_not_moved_but_get_pairs_first():
    with pytest.raises(ModelError, match="are read by pool"):
        move_zero_points(make_moved_integers(), "uint8")
    model = make_moved_integers()
    assert expand_integer_operators(model) == 0
    assert move_zero_points(model, "uint8") == 2
    assert [n.op_type for n in model.graph if n.name == "pool"] == ["MaxPool"]


@pytest.mark.parametrize("shape", [(), (4,)])
def test_a_zero_point_that_is_left_out_means_uint8(shape):
    constants = {"s": np.full(shape, 0.1, np.float32)}
    nodes = [
        node("QuantizeLinear", ["x", "s"], ["q"], name="q", axis=0),
        node("DequantizeLinear", ["q", "s"], ["d"], name="d", axis=0),
        node("Relu", ["d"], ["y"], name="relu"),
    ]
    model = ir.from_proto(build(nodes, {"x": [4]}, {"y": [4]}, constants))
    assert move_zero_points(model, "int8") == 1
    zeros = [n.inputs[2].const_value.numpy() for n in model.graph if len(n.inputs) == 3]
    assert [zero.shape for zero in zeros] == [shape] * 2 and np.unique(zeros) == -128
    sample = {"x": np.array([-1, 0.3, 5, 100], np.float32)}
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    assert np.allclose(session.run(None, sample)[0], [0, 0.3, 5, 25.5])


def test_a_product_of_integers_with_a_float_result_becomes_pairs_again():
    model = MODELS["gates"]()
    samples = make_samples(model, 4)
    options = {"target": "x86-vnni", "purpose": "size", "effort": "low"}
    made = bitwright.quantize(model, data=samples, **options)
    integers = bitwright.retarget(made.model, "x86-vnni", format="qoperator")
    ops = {node.op_type for node in integers.model.graph.all_nodes()}
    assert "MatMulInteger" in ops
    pairs = bitwright.retarget(integers.model, "x86-vnni", format="qdq")
    ops = {node.op_type for node in pairs.model.graph.all_nodes()}
    assert "MatMul" in ops and not ops & {"MatMulInteger", "Cast"}
    wanted, found = (
        Session(one).runtime.run(None, samples[0])[0] for one in (made.model, pairs.model)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("target", "form", "scales"),
    [
        ("intel-openvino:npu", {"DequantizeLinear", "Transpose"}, "per channel"),
        ("nvidia-tensorrt:int4", {"DequantizeLinear"}, "per block"),
        ("cpu", {"MatMulNBits"}, None),  # whose scales are the operator's own
    ],
)
def test_low_bit_weights_of_a_kept_plan_get_the_form_of_the_target(target, form, scales):
    model = fix_batch(make_mlp(width=32))
    kept = bitwright.quantize(model, recipe="int4-rtn").plan
    made = bitwright.retarget(model, target, plan=kept)
    assert not made.verification.findings
    assert form <= {node.op_type for node in made.model.graph}
    assert made.verification.residence.quantized_share == 1
    assert [*bitwright.inspect(made.model).scales] == ([] if scales is None else [scales])


def test_the_plan_of_another_model_is_refused():
    kept = bitwright.quantize(make_mlp(), recipe="int4-rtn").plan
    with pytest.raises(ModelError, match="made for another model"):
        bitwright.retarget(make_mlp(width=32), "cpu", plan=kept)


@pytest.mark.parametrize(("asked", "found"), [(None, {32}), (64, {64}), (0, {128})])
def test_low_bit_weights_get_blocks_of_the_size_that_is_asked_for(asked, found):
    plan = bitwright.quantize(make_block(), recipe="int4-rtn", progress=False).plan
    sized = {} if asked is None else {"block_size": asked}  # 0: whole columns
    result = bitwright.retarget(make_block(), "cpu-any", plan=plan, **sized)
    products = (one for one in result.model.graph if one.op_type == "MatMulNBits")
    assert {one.attributes.get_int("block_size", 0) for one in products} == found


def integer_node(op, inputs, rank=4, domain="com.microsoft", **attributes):
    """A model of one integer operator, and a sample of its inputs, all uint8.

    An input is a scale and a zero point, or beside them the integers of a constant.
    """
    constants, sample, reads = {}, {}, {}
    for index, (name, (scale, zero, *stored)) in enumerate(inputs.items()):
        made = np.random.default_rng(index).integers(0, 256, [2, 4, 6, 6][-rank:]).astype(np.uint8)
        constants[f"{name}_s"], constants[f"{name}_z"] = np.float32(scale), zero
        (constants if stored else sample)[name] = stored[0] if stored else made
        reads[name] = [name, f"{name}_s", f"{name}_z"]
    result = reads.pop("result")[1:]
    del sample["result"]
    others = [name for read in reads.values() for name in read]
    read = [*result, *others] if op == "QLinearConcat" else [*others, *result]
    if op == "QLinearConv":
        read.append("bias")
        constants["bias"] = np.int32([300, -200, 100])
    kind = onnx.TensorProto.UINT8
    given = [info(name, array.shape, kind) for name, array in sample.items()]
    steps = [node(op, read, ["y"], name="op", domain=domain, **attributes)]
    model = build(steps, given, [info("y", None, kind)], constants, domains=["com.microsoft"])
    return model, sample


X, RESULT, UNIT = (0.1, np.uint8(120)), (0.2, np.uint8(100)), (1 / 256, np.uint8(0))
COLUMNS = np.random.default_rng(9).integers(-128, 128, (6, 3)).astype(np.int8)
KERNEL = np.random.default_rng(9).integers(-128, 128, (3, 2, 3, 3)).astype(np.int8)
PER_CHANNEL = (np.float32([0.01, 0.02, 0.03]), np.zeros(3, np.int8))
INTEGER_NODES = {
    "Concat": ("QLinearConcat", {"axis": 1}, {"a": X, "b": (0.3, np.uint8(9)), "c": RESULT}),
    "Add": ("QLinearAdd", {}, {"a": X, "b": (0.05, np.uint8(7), np.uint8([200]))}),
    "Mul": ("QLinearMul", {}, {"a": X, "b": (0.05, np.uint8(90))}),
    "Sigmoid": ("QLinearSigmoid", {}, {"a": X, "result": UNIT}),
    "LeakyRelu": ("QLinearLeakyRelu", {"alpha": 0.3}, {"a": X}),
    "Softmax": ("QLinearSoftmax", {"axis": -1, "opset": 13}, {"a": X, "result": UNIT}),
    "AveragePool": ("QLinearAveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}, {"a": X}),
    "GlobalAveragePool": ("QLinearGlobalAveragePool", {}, {"a": X}),
    "MatMul": ("QLinearMatMul", {"domain": ""}, {"a": X, "w": (*PER_CHANNEL, COLUMNS)}),
    "Conv": (
        "QLinearConv",
        {"domain": "", "group": 1, "pads": [1, 1, 1, 1], "strides": [2, 2]},
        {"a": X, "w": (*PER_CHANNEL, np.concatenate([KERNEL, KERNEL], 1))},
    ),
}  # fmt: skip


@pytest.mark.parametrize("computes", INTEGER_NODES)
def test_an_integer_operator_and_the_pairs_in_its_place_give_the_same_integers(computes):
    """By ONNX Runtime's kernels for both, up to a level where a sum lies between two."""
    op, attributes, inputs = INTEGER_NODES[computes]
    model, sample = integer_node(op, {"result": RESULT, **inputs}, **attributes)
    expanded = ir.from_proto(model)
    assert expand_integer_operators(expanded) == 1
    assert "com.microsoft" not in expanded.opset_imports
    assert computes in {n.op_type for n in expanded.graph}
    wanted, found = (
        Session(one, level="disabled").runtime.run(None, sample)[0]
        for one in (model, ir.to_proto(expanded))
    )
    assert found.dtype == wanted.dtype and np.ptp(wanted) > 10
    assert np.abs(found.astype(int) - wanted).max() <= 1
    assert (found == wanted).mean() > 0.95


def test_sums_of_integers_with_a_scale_for_each_column_become_a_product_of_floats():
    constants = {
        **{"s": np.float32(0.1), "z": np.uint8(120), "w": COLUMNS, "wz": np.int8(0)},
        "scales": np.float32([0.001, 0.002, 0.003]),
    }
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q"),
        node("MatMulInteger", ["q", "w", "z", "wz"], ["sums"], name="product"),
        node("Cast", ["sums"], ["wide"], name="cast", to=1),
        node("Mul", ["wide", "scales"], ["y"], name="scale"),
    ]
    model = build(nodes, {"x": [5, 6]}, {"y": [5, 3]}, constants)
    expanded = ir.from_proto(model)
    assert expand_integer_operators(expanded) == 1
    feeds = {"x": np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)}
    wanted, found = (
        Session(one, level="disabled").runtime.run(None, feeds)[0]
        for one in (model, ir.to_proto(expanded))
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (node("QLinearAveragePool", ["q", "s", "z", "s", "z"], ["p"], "step", kernel_shape=[1, 1],
              channels_last=1, domain="com.microsoft"), "no form with Q/DQ pairs"),
        (node("ConvInteger", ["q", "w"], ["p"], "step"), "no form with Q/DQ pairs"),
        (node("QLinearErf", ["q", "s", "z"], ["p"], "step", domain="com.microsoft"),
         "no form with Q/DQ pairs"),
        (node("Clip", ["q", "low"], ["p"], "step"), "are computed at run time without a scale"),
    ],
)  # fmt: skip
def test_what_has_no_form_with_pairs_is_refused_with_the_node(step, told):
    constants = {"s": np.float32(0.1), "z": np.uint8(0), "w": np.ones((1, 1, 1, 1), np.uint8)}
    shape, kind = [1, 1, 2, 2], onnx.TensorProto.UINT8
    model = build(
        [node("QuantizeLinear", ["x", "s", "z"], ["q"], "quantizer"), step],
        [info("x", shape), info("low", [], kind)],
        [info("p", shape, kind)],
        {name: constants[name] for name in {*step.input, "s", "z"} & constants.keys()},
    )
    with pytest.raises(ModelError, match=f"'step'.*{told}"):
        expand_integer_operators(ir.from_proto(model))


def test_a_bias_whose_scale_is_computed_is_refused_where_it_has_to_be_float():
    constants = {
        **{"s": np.float32(0.1), "z": np.int8(0), "b": np.int32([7, -9]), "ws": np.float32(0.02)},
        **{"w": np.int8([[[[3]], [[5]]], [[[-7]], [[11]]]]), "bs": np.float32(0.002)},
    }
    nodes = [node("Mul", ["s", "factor"], ["made"], name="made")]
    for name, source, scale in (("first", "x", "made"), ("second", "y0", "bs")):
        ends = ("y0", "y") if name == "first" else ("y1", "y")
        nodes += [
            node("QuantizeLinear", [source, "s", "z"], [f"{name}_q"], name=f"{name}_q"),
            node("DequantizeLinear", [f"{name}_q", "s", "z"], [f"{name}_x"], name=f"{name}_x"),
            node("DequantizeLinear", ["w", "ws", "z"], [f"{name}_w"], name=f"{name}_w"),
            node("DequantizeLinear", ["b", scale], [f"{name}_b"], name=f"{name}_b"),
            node("Conv", [f"{name}_x", f"{name}_w", f"{name}_b"], [ends[0]], name=name),
        ]
    inputs = [info("x", [1, 2, 3, 3]), info("factor", [])]
    model = build(nodes, inputs, {"y1": [1, 2, 3, 3]}, constants)
    with pytest.raises(TargetError, match="for nvidia-tensorrt: first: bias: a quantized bias"):
        bitwright.retarget(model, "nvidia-tensorrt")


def test_a_choice_between_integers_is_one_between_floats():
    """Of both sides, each with a scale and zero point of its own."""
    sides = ["c", "x", "xs", "xz", "y", "ys", "yz", "zs", "zz"]
    steps = [
        node("QuantizeLinear", ["a", "xs", "xz"], ["x"], name="qx"),
        node("QuantizeLinear", ["b", "ys", "yz"], ["y"], name="qy"),
        node("QLinearWhere", sides, ["z"], name="choice", domain="com.microsoft"),
        node("DequantizeLinear", ["z", "zs", "zz"], ["out"], name="dz"),
    ]
    given = {"x": (0.1, 3), "y": (0.02, 128), "z": (0.05, 100)}
    constants = {f"{name}s": np.float32(scale) for name, (scale, _) in given.items()}
    constants |= {f"{name}z": np.uint8(zero) for name, (_, zero) in given.items()}
    inputs = [info("c", [8], BOOL), info("a", [8]), info("b", [8])]
    model = build(steps, inputs, {"out": [8]}, constants, domains=["com.microsoft"])
    sample = {
        "c": np.arange(8) % 2 == 0,
        "a": np.linspace(0, 4, 8, dtype=np.float32),
        "b": np.linspace(-2, 2, 8, dtype=np.float32),
    }
    expanded = ir.from_proto(model)
    assert expand_integer_operators(expanded) == 1
    assert "Where" in {n.op_type for n in expanded.graph}
    runs = (
        onnxruntime.InferenceSession(one.SerializeToString()).run(None, sample)[0]
        for one in (model, ir.to_proto(expanded))
    )
    np.testing.assert_array_equal(*runs)
