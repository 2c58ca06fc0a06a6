"""What `verify` finds in a quantized model, whoever wrote it and however it spells its pairs."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.models import build, info, make_cnn, make_mlp, make_samples, node, normal
from support.npu_recipes import npu_recipe
from support.pair_models import Pairs, make_conv

import bitwright
from bitwright import verify
from bitwright.errors import TargetError
from bitwright.recipe import LimitDetails
from bitwright.run import Session
from bitwright.targets import NPU_CNN
from bitwright.verification import CONSEQUENCES

DIALECTS = {
    "": ("QuantizeLinear", "DequantizeLinear"),
    "com.microsoft": ("QuantizeLinear", "DequantizeLinear"),
    "com.vai.quantize": ("VitisQuantizeLinear", "VitisDequantizeLinear"),
    "com.amd.quark": ("ExtendedQuantizeLinear", "ExtendedDequantizeLinear"),
}


class Writer:
    """Writes a Q/DQ model by hand, with any scale anywhere."""

    def __init__(self, domain=""):
        self.domain = domain
        self.quantize, self.dequantize = DIALECTS[domain]
        self.nodes, self.constants = [], {}

    def parameters(self, name, scale, zero_point):
        self.constants[f"{name}_s"] = np.asarray(scale, np.float32)
        self.constants[f"{name}_z"] = np.asarray(zero_point)
        return [f"{name}_s", f"{name}_z"]

    def pair(self, name, scale):
        """Put a pair behind a tensor and return what its readers read."""
        more = self.parameters(name, scale, np.int8(0))
        ins, outs = [name, *more], [f"{name}_q"]
        self.nodes.append(node(self.quantize, ins, outs, name=f"{name}_Q", domain=self.domain))
        ins, outs = [f"{name}_q", *more], [f"{name}_d"]
        self.nodes.append(node(self.dequantize, ins, outs, name=f"{name}_D", domain=self.domain))
        return f"{name}_d"

    def stored(self, name, integers, scale, **attributes):
        """Store integers and return what reads them."""
        self.constants[name] = integers
        zero = np.zeros(np.shape(scale), integers.dtype)
        ins = [name, *self.parameters(name, scale, zero)]
        self.nodes.append(
            node(
                self.dequantize,
                ins,
                [f"{name}_d"],
                name=f"{name}_D",
                domain=self.domain,
                **attributes,
            )
        )
        return f"{name}_d"

    def add(self, op_type, inputs, output, **attributes):
        self.nodes.append(node(op_type, inputs, [output], name=output, **attributes))
        return output

    def model(self, *outputs, inputs=("x",), shape=(1, 3, 4, 4)):
        domains = [self.domain] if self.domain else []
        return build(
            self.nodes,
            [info(name, shape) for name in inputs],
            [info(name, [None] * 4) for name in outputs],
            self.constants,
            opset=21,
            ir_version=10,
            domains=domains,
        )


def conv(domain="", *, x=2.0**-5, w=2.0**-8, b=None, y=2.0**-4, bias_type=np.int8, fused=None):
    writer = Writer(domain)
    inputs = [writer.pair("x", x), writer.stored("w", np.ones((3, 3, 1, 1), np.int8), w)]
    if b is not None:
        inputs.append(writer.stored("b", np.ones(3, bias_type), b))
    result = writer.add("Conv", inputs, "conv")
    if fused:
        result = writer.add(fused, [result], "activation")
    writer.pair(result, y)
    return writer.model(f"{result}_d")


def found(model, target="npu-cnn"):
    return [(finding.rule, finding.node) for finding in verify(model, target).findings]


# Limits, in every dialect ---------------------------------------------------------------------


@pytest.mark.parametrize("domain", DIALECTS)
def test_positions_are_read_in_every_dialect(domain):
    assert verify(conv(domain), "npu-cnn").ok
    (finding,) = verify(conv(domain, w=2.0**-19), "npu-cnn").findings
    assert (finding.rule, finding.node) == ("shift_cut", "conv")
    assert finding.message == "weight + input - output is 20 and must lie in 0..16"
    assert finding.values == {"input": 5, "weight": 19, "output": 4}


@pytest.mark.parametrize("fused", ["Relu", "LeakyRelu"])
def test_an_activation_without_a_pair_before_it_belongs_to_its_producer(fused):
    assert found(conv(w=2.0**-19, fused=fused)) == [("shift_cut", "conv")]


def test_a_bias_is_held_against_its_accumulator():
    assert found(conv(b=2.0**-16)) == []
    assert found(conv(b=2.0**-21)) == [("shift_bias", "conv")]
    assert found(conv(b=2.0**3)) == [("shift_bias", "conv")]
    assert found(conv(b=2.0**-14, fused="LeakyRelu")) == [("shift_bias", "conv")]


def test_one_op_for_a_pair_is_read_too():
    nodes = [
        node("FixNeuron", ["x", "s8", "z"], ["a"], name="fix_x", domain="com.vai.quantize"),
        node("AveragePool", ["a"], ["p"], name="pool", kernel_shape=[2, 2]),
        node("FixNeuron", ["p", "s4", "z"], ["y"], name="fix_y", domain="com.vai.quantize"),
    ]
    constants = {"s8": np.float32(2**-8), "s4": np.float32(2**-4), "z": np.int8(0)}
    outputs = {"y": [1, 3, 3, 3]}
    model = build(nodes, {"x": [1, 3, 4, 4]}, outputs, constants, domains=["com.vai.quantize"])
    assert found(model) == [("align_pool", "pool")]


def pool(factor=None, padded=False):
    writer = Writer()
    source = writer.pair("x", 2.0**-5)
    if padded:
        writer.constants["by"] = np.array([0, 0, 1, 1, 0, 0, 1, 1])
        source = writer.add("Pad", [source, "by"], "pad")
    result = writer.add("AveragePool", [source], "pool", kernel_shape=[3, 3])
    if factor:
        writer.constants["factor"] = np.float32(factor)
        result = writer.add("Mul", [result, "factor"], "simulated")
    writer.pair(result, 2.0**-6)
    return writer.model(f"{result}_d")


@pytest.mark.parametrize("options", [{}, {"factor": 0.984375}, {"padded": True}])
def test_pools_are_held_against_what_goes_in_and_comes_out(options):
    assert found(pool(**options)) == [("align_pool", "pool")]


def moved(op_type, constants, y):
    writer = Writer()
    writer.constants |= constants
    result = writer.add(op_type, [writer.pair("x", 2.0**-5), *constants], "op")
    writer.pair(result, 2.0**-y)
    return writer.model("op_d")


@pytest.mark.parametrize(
    ("op_type", "constants", "rule"),
    [
        ("Pad", {"by": np.array([0, 0, 1, 1, 0, 0, 1, 1])}, "align_pad"),
        (
            "Slice",
            {"from": np.array([1]), "to": np.array([3]), "axes": np.array([2])},
            "align_slice",
        ),
    ],
)
def test_what_only_moves_values_keeps_their_position(op_type, constants, rule):
    assert found(moved(op_type, constants, 6)) == [(rule, "op")]
    assert found(moved(op_type, constants, 5)) == []


def two_inputs(op_type, a, b, y, **attributes):
    writer = Writer()
    result = writer.add(op_type, [writer.pair("a", 2.0**-a), writer.pair("b", 2.0**-b)], "op")
    writer.nodes[-1].attribute.extend(
        helper.make_attribute(name, value) for name, value in attributes.items()
    )
    writer.pair(result, 2.0**-y)
    return writer.model("op_d", inputs="ab")


@pytest.mark.parametrize(
    ("model", "rules"),
    [
        (two_inputs("Add", 4, 11, 4), []),
        (two_inputs("Add", 4, 12, 4), ["shift_read"]),
        (two_inputs("Sub", 12, 4, 4), ["shift_read"]),
        (two_inputs("Add", 4, 4, 12), ["shift_write"]),
        (two_inputs("Mul", 4, 4, 9), ["shift_write"]),
        (two_inputs("Mul", 4, 4, -20), []),
        (two_inputs("Concat", 4, 5, 4, axis=1), ["align_concat"]),
    ],
)
def test_each_limit_is_found(model, rules):
    assert [rule for rule, _ in found(model)] == rules


def swish(gate, y, alpha=1 / 6):
    writer = Writer()
    source = writer.pair("x", 2.0**-5)
    writer.add("HardSigmoid", [source], "gate", alpha=alpha)
    writer.pair("gate", 2.0**-gate)
    writer.add("Mul", [source, "gate_d"], "swish")
    writer.pair("swish", 2.0**-y)
    return writer.model("swish_d")


def test_a_swish_is_known_by_the_tensor_that_both_read():
    assert found(swish(7, 5)) == []
    assert found(swish(7, -5)) == [("shift_swish", "swish")]
    assert found(swish(6, 5)) == [("hard_sigmoid", "gate")]
    assert found(swish(20, 5)) == [("hard_sigmoid", "gate"), ("shift_swish", "swish")]
    assert found(swish(6, -5, alpha=0.2)) == []


def test_what_leaves_us_for_the_npu_is_within_its_limits():
    data = [{"x": normal(1, 3, 12, 12, seed=seed)} for seed in range(8)]
    result = bitwright.quantize(make_cnn(), data=data, recipe=npu_recipe(), progress=False)
    assert verify(result.model, "npu-cnn").ok
    assert verify(result.model, "cpu").ok


# Scales and zero points -----------------------------------------------------------------------


@pytest.mark.parametrize("target", ["cpu", "npu-cnn", "npu-transformer"])
@pytest.mark.parametrize(
    ("scale", "said"),
    [
        (0.0, "0 is zero"),
        (np.nan, "not a number"),
        (np.inf, "infinite"),
        (2.0**-130, "denormal"),
        (-(2.0**-130), "denormal"),
    ],
)
def test_a_scale_that_no_value_survives_is_found(scale, said, target):
    (finding, *_) = verify(conv(w=scale), target).findings
    assert (finding.rule, finding.node) == ("scale", "w_D")
    assert said in finding.message


def test_negative_scales_of_weights_are_a_matter_of_the_target():
    for target in ("cpu", "intel-openvino", "directml", "x86-vnni"):
        assert found(conv(w=-(2.0**-8)), target) == []
    for target in ("nvidia-tensorrt", "qualcomm-htp", "npu-transformer", "npu-cnn"):
        assert ("positive_scales", "conv") in found(conv(w=-(2.0**-8)), target)
    for target in ("cpu", "npu-cnn", "nvidia-tensorrt"):
        (finding, *_) = verify(conv(x=-(2.0**-5)), target).findings
        assert (finding.rule, finding.node) == ("scale", "x_Q")
        assert "negative" in finding.message


@pytest.mark.parametrize("op", ["Conv", "MatMul"])
def test_kernels_multiply_by_negative_scales_of_weights(op):
    scales = np.array([-0.01, 0.02, -0.03], np.float32)
    shape, axis = ((3, 3, 1, 1), 0) if op == "Conv" else ((4, 3), 1)
    weight = np.arange(-5, -5 + np.prod(shape)).reshape(shape).astype(np.int8)
    writer = Writer()
    stored = writer.stored("w", weight, scales, axis=axis)
    writer.add(op, [writer.pair("x", 0.03), stored], "r")
    writer.pair("r", 0.00217)
    model = writer.model("r_d")
    sample = {"x": normal(1, 3, 4, 4, seed=1)}
    plain, fused = (
        Session(model, level=level).runtime.run(None, sample)[0] for level in ("disabled", "all")
    )
    np.testing.assert_array_equal(fused, plain)
    assert np.abs(plain).max() > 0.05
    assert verify(model, "cpu").ok


def test_low_bit_pairs_of_our_own_are_clean_where_they_run():
    model = make_mlp()
    recipe = {"base": "int4-rtn", "weights": {"symmetric": True, "output": "qdq"}}
    made = bitwright.quantize(model, recipe=recipe)
    scales = [
        ir_value.const_value.numpy()
        for name, ir_value in made.model.graph.initializers.items()
        if "scale" in name
    ]
    assert any((scale < 0).any() for scale in scales)
    assert verify(made.model, "cpu").ok
    assert {f.rule for f in verify(made.model, "nvidia-tensorrt").errors} >= {"positive_scales"}
    positive = bitwright.quantize(model, recipe=recipe, target="nvidia-tensorrt:int4")
    refused = {f.rule for f in verify(positive.model, "nvidia-tensorrt:int4").errors}
    assert "positive_scales" not in refused


def test_a_denormal_scale_of_a_bias_loses_nothing():
    tiny = conv(x=2.0**-60, w=2.0**-70, b=2.0**-130, bias_type=np.int32)
    assert found(tiny, "cpu") == []


def test_scales_are_powers_of_two_one_a_tensor_on_the_npu():
    odd = conv(w=0.01)
    assert found(odd) == [("power_of_two", "w_D")]
    assert found(odd, "cpu") == []
    writer = Writer()
    scales = np.full(3, 2.0**-8, np.float32)
    stored = writer.stored("w", np.ones((3, 3, 1, 1), np.int8), scales, axis=0)
    writer.add("Conv", [writer.pair("x", 2.0**-5), stored], "conv")
    writer.pair("conv", 2.0**-4)
    model = writer.model("conv_d")
    assert found(model) == [("per_tensor", "w_D")]
    assert found(model, "cpu") == []


def test_zero_points_that_do_not_belong_to_their_values_are_found():
    model = conv(b=2.0**-13, bias_type=np.int32)
    for tensor in model.graph.initializer:
        if tensor.name == "b_z":
            tensor.CopyFrom(numpy_helper.from_array(np.int32(3), "b_z"))
    assert ("zero_point", "b_D") in found(model, "cpu")
    for tensor in model.graph.initializer:
        if tensor.name == "b_z":
            tensor.CopyFrom(numpy_helper.from_array(np.int8(0), "b_z"))
    (finding, *_) = [f for f in verify(model, "cpu").findings if f.rule == "zero_point"]
    assert finding.message == "its zero point is int8 beside int32 values"


# Biases ---------------------------------------------------------------------------------------


def test_an_int32_bias_at_another_scale_than_its_accumulator_is_found():
    assert found(conv(b=2.0**-13, bias_type=np.int32), "cpu") == []
    (finding,) = verify(conv(b=2.0**-10, bias_type=np.int32), "cpu").findings
    assert (finding.rule, finding.node) == ("bias", "conv")
    assert finding.values["bias scale"] == 2.0**-10
    assert finding.values["input scale x weight scale"] == 2.0**-13


def test_a_bias_that_was_cut_off_is_found():
    model = conv(b=2.0**-13, bias_type=np.int32)
    for tensor in model.graph.initializer:
        if tensor.name == "b":
            cut = np.array([1, 2**31 - 1, 5], np.int32)
            tensor.CopyFrom(numpy_helper.from_array(cut, "b"))
    assert found(model, "cpu") == [("bias", "conv")]


# The file -------------------------------------------------------------------------------------


def test_nodes_out_of_order_are_found_and_the_rest_is_still_checked():
    model = conv(w=2.0**-19)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(nodes[::-1])
    rules = [rule for rule, _ in found(model)]
    assert rules == ["order", "shift_cut"]
    assert "before any node makes it" in verify(model).findings[0].message


def test_a_domain_without_an_import_is_found():
    model = conv("com.amd.quark")
    kept = [entry for entry in model.opset_import if entry.domain != "com.amd.quark"]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    (finding,) = verify(model, "cpu").findings
    assert finding.rule == "domains"
    assert "'com.amd.quark'" in finding.message


def test_what_onnx_refuses_is_found():
    model = conv()
    model.graph.node[-1].attribute.append(helper.make_attribute("no_such_attribute", 1))
    (finding,) = verify(model, "cpu").findings
    assert finding.rule == "onnx"
    assert "no_such_attribute" in finding.message


def test_a_float_model_has_nothing_to_verify():
    assert found(make_cnn(), "cpu") == [("quantized", "")]
    assert found(make_cnn(), "npu-cnn") == [("quantized", "")]


def test_integer_ops_are_no_pairs():
    nodes = [node("QLinearMatMul", ["x", "s", "z", "w", "s", "z", "s", "z"], ["y"], name="product")]
    constants = {"s": np.float32(0.5), "z": np.uint8(1), "w": np.ones((4, 4), np.uint8)}
    inputs, outputs = info("x", [2, 4], TensorProto.UINT8), info("y", [2, 4], TensorProto.UINT8)
    model = build(nodes, [inputs], [outputs], constants)
    assert found(model, "cpu") == []
    assert found(model, "npu-cnn") == [("quantized", "")]


@pytest.mark.parametrize("target", ["npu-cnn", "npu-transformer"])
def test_integer_ops_between_pairs_are_named_for_the_npu(target):
    model = make_cnn()
    recipe = bitwright.load_recipe("int8").replace(format="qoperator")
    quantized = bitwright.quantize(model, data=make_samples(model), recipe=recipe).model
    rules = {str(finding) for finding in verify(quantized, target).findings}
    assert any("QLinearConv is an integer operator" in rule for rule in rules)


def test_scales_in_constant_nodes_and_nameless_nodes_are_read():
    model = conv(w=2.0**-19)
    lifted = [t for t in model.graph.initializer if t.name.endswith("_s")]
    for tensor in lifted:
        model.graph.initializer.remove(tensor)
        model.graph.node.insert(0, node("Constant", [], [tensor.name], value=tensor))
    for step in model.graph.node:
        step.name = ""
    assert found(model) == [("shift_cut", "Conv of 'conv'")]


def test_a_model_given_as_it_is_stays_as_it_is(tmp_path):
    model = conv(w=2.0**-19)
    before = model.SerializeToString()
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    assert verify(model, "npu-cnn") == verify(path, "npu-cnn")
    assert model.SerializeToString() == before


def test_an_unknown_target_is_named():
    with pytest.raises(TargetError, match="Did you mean 'npu-cnn'"):
        verify(conv(), "npu-cn")


# What comes out -------------------------------------------------------------------------------


def test_findings_come_as_data_as_junit_and_as_a_table():
    good, bad = verify(conv(), "npu-cnn"), verify(conv(w=2.0**-19), "npu-cnn")
    assert good.to_dict()["ok"] and not good.to_dict()["findings"]
    assert bad.to_dict()["findings"][0]["values"] == {"input": 5, "weight": 19, "output": 4}
    suite = ElementTree.fromstring(bad.to_junit())
    assert suite.get("failures") == "1"
    assert int(suite.get("tests")) == len(bad.rules) == len(suite.findall("testcase"))
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["shift_cut"]
    assert "must lie in 0..16" in suite.find("testcase/failure").text
    assert re.search(r">conv</td><td[^>]*>shift_cut</td>", bad._repr_html_())
    assert "hold" in good._repr_html_()


def test_every_rule_is_listed_once():
    for target in ("cpu", "npu-cnn", "npu-transformer"):
        rules = verify(conv(), target).rules
        assert len(set(rules)) == len(rules)
    assert set(LimitDetails.__struct_fields__) - {"max_rounds"} <= set(
        verify(conv(), "npu-cnn").rules
    )


def reverse_nodes(model):
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(nodes[::-1])
    return model


def forget_domains(model):
    del model.opset_import[1:]
    return model


def with_odd_attribute(model):
    model.graph.node[-1].attribute.append(helper.make_attribute("no_such_attribute", 1))
    return model


def with_constant(model, name, value):
    (tensor,) = (tensor for tensor in model.graph.initializer if tensor.name == name)
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(value), name))
    return model


def conv_of_shape(*shape):
    writer = Writer()
    stored = writer.stored("w", np.ones((3, 3, 1, 1), np.int8), 2.0**-8)
    writer.add("Conv", [writer.pair("x", 2.0**-5), stored], "conv")
    writer.pair("conv", 2.0**-4)
    return writer.model("conv_d", shape=shape)


def conv_with_scales():
    writer = Writer()
    scales = np.full(3, 2.0**-8, np.float32)
    stored = writer.stored("w", np.ones((3, 3, 1, 1), np.int8), scales, axis=0)
    writer.add("Conv", [writer.pair("x", 2.0**-5), stored], "conv")
    writer.pair("conv", 2.0**-4)
    return writer.model("conv_d")


def moved_int8(*, paired):
    """A product behind a Transpose, which the runtime of x86 refuses without a pair of its own."""
    pairs = Pairs()
    moved = pairs.add("Transpose", [pairs.pair("x", "int8")], "moved", perm=[1, 0])
    moved = pairs.pair(moved, "int8") if paired else moved
    product = pairs.add("MatMul", [moved, pairs.stored("w", np.ones((4, 4)))], "product")
    return pairs.model([pairs.pair(product, "int8")], {"x": [4, 4]}, 21)


def float_layer(*, paired):
    pairs = Pairs()
    source = pairs.pair("x", zero_point=128) if paired else "x"
    pairs.add("Conv", [source, pairs.constant("w", normal(4, 4, 3, 3))], "layer")
    return pairs.model([pairs.pair("layer", scale=0.1, zero_point=128)], {"x": [1, 4, 6, 6]})


def product_of(rows, value):
    pairs = Pairs()
    stored = pairs.stored("w", np.full((rows, 2), value))
    pairs.add("MatMul", [pairs.pair("x"), stored], "product")
    return pairs.model([pairs.pair("product")], {"x": [1, rows]})


# Rule that stands in no file of a target -> what breaks it, what keeps it, and where they run.
COMMON = {
    "order": (lambda: reverse_nodes(conv()), conv, {"target": "npu-cnn"}),
    "domains": (
        lambda: forget_domains(conv("com.amd.quark")),
        lambda: conv("com.amd.quark"),
        {"target": "npu-cnn"},
    ),
    "onnx": (lambda: with_odd_attribute(conv()), conv, {"target": "npu-cnn"}),
    "runtime": (
        lambda: moved_int8(paired=False),
        lambda: moved_int8(paired=True),
        {"cpu": "vnni"},
    ),
    "other_cpu": (
        lambda: moved_int8(paired=False),
        lambda: moved_int8(paired=True),
        {"cpu": "arm"},
    ),
    "fixed_shapes": (lambda: conv_of_shape("n", 3, 4, 4), conv, {"target": "npu-cnn"}),
    "quantized": (make_cnn, conv, {"target": "npu-cnn"}),
    "unfused": (lambda: make_conv(paired=False), make_conv, {"cpu": "arm"}),
    "scale": (lambda: conv(w=0.0), conv, {"target": "npu-cnn"}),
    "zero_point": (
        lambda: with_constant(conv(), "w_z", np.int32(0)),
        conv,
        {"target": "npu-cnn"},
    ),
    "bias": (
        lambda: conv(b=2.0**-10, bias_type=np.int32),
        lambda: conv(b=2.0**-13, bias_type=np.int32),
        {"target": "npu-transformer"},
    ),
    "accumulator": (
        lambda: product_of(70_000, 127),
        lambda: product_of(100, 127),
        {"cpu": "arm"},
    ),
    "saturation": (lambda: product_of(8, 127), lambda: product_of(8, 60), {"cpu": "avx2"}),
    "float_weights": (
        lambda: float_layer(paired=True),
        lambda: float_layer(paired=False),
        {"cpu": "vnni"},
    ),
    "eight_bits": (
        lambda: with_constant(with_constant(conv(), "x_z", np.int16(0)), "w_z", np.int8(0)),
        conv,
        {"target": "npu-cnn"},
    ),
    "power_of_two": (lambda: conv(w=0.01), conv, {"target": "npu-cnn"}),
    "per_tensor": (conv_with_scales, conv, {"target": "npu-cnn"}),
}


@pytest.mark.parametrize("rule", COMMON)
def test_a_rule_that_is_in_no_file_is_broken_by_one_model_and_kept_by_another(rule):
    broken, kept, where = COMMON[rule]
    assert rule in {finding.rule for finding in verify(broken(), **where).findings}
    assert rule not in {finding.rule for finding in verify(kept(), **where).findings}


def test_no_rule_is_without_two_models():
    limits = {rule.name for rule in NPU_CNN.limits}
    assert {*CONSEQUENCES} == {*COMMON} | limits


@pytest.mark.parametrize("shape", [("n", 3, 4, 4), (2, 3, 4, 4), (1, 3, "h", "w")])
def test_the_npu_takes_fixed_shapes_and_one_image_at_a_time(shape):
    writer = Writer("")
    relu = writer.add("Relu", [writer.pair("x", 2.0**-4)], "relu")
    model = writer.model(writer.pair(relu, 2.0**-4), shape=shape)
    assert "fixed_shapes" in {finding.rule for finding in verify(model, "npu-cnn").findings}
    assert "fixed_shapes" not in {finding.rule for finding in verify(model, "cpu").findings}
