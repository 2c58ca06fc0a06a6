"""Options about which nodes are quantized and where pairs go: what each changes in the model."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.models import (
    BOOL,
    build,
    constants_of,
    dequantizer_before,
    element_types,
    info,
    make_cnn,
    make_mlp,
    make_samples,
    make_transformer,
    node,
    nodes_by_name,
    normal,
    ops,
    producer_of,
    quality,
    run,
    weight,
)
from support.vai_q_onnx import (
    activation_model,
    conv,
    on_npu,
    option,
    quantize_vai,
    recipe_of,
    scale,
)

from bitwright.compat.vai_q_onnx import PowerOfTwoMethod, VitisQuantFormat, VitisQuantType
from bitwright.errors import RecipeError


@option("EnableSubgraph")
def test_bodies_are_quantized():
    def body(name, seed):
        inner = [node("MatMul", ["x", f"w_{name}"], [f"y_{name}"], name=f"in_{name}")]
        constant = onnx.numpy_helper.from_array(weight(8, 8, seed=seed), f"w_{name}")
        return helper.make_graph(inner, name, [], [info(f"y_{name}", [4, 8])], [constant])

    nodes = [
        node("If", ["c"], ["b"], name="if", then_branch=body("a", 1), else_branch=body("b", 2)),
        node("MatMul", ["b", "w"], ["y"], name="after"),
    ]
    model = build(
        nodes, [info("x", [4, 8]), info("c", [], BOOL)], [info("y", [4, 8])], {"w": weight(8, 8)}
    )
    samples = [{"x": normal(4, 8, seed=i), "c": np.array(i % 2 == 0)} for i in range(4)]

    def quantizers_inside(made):
        owner = nodes_by_name(made)["if"]
        return sum(n.op_type == "DequantizeLinear" for a in owner.attribute for n in a.g.node)

    assert quantizers_inside(quantize_vai(model, samples=samples)) == 0
    assert quantizers_inside(quantize_vai(model, {"EnableSubgraph": True}, samples=samples)) > 0


@option("MatMulConstBOnly")
def test_products_of_two_activations_stay_float():
    model = make_transformer()
    made = quantize_vai(model, {"MatMulConstBOnly": True}, op_types_to_quantize=["MatMul"])
    assert dequantizer_before(made, "q_matmul", 1) is not None
    assert dequantizer_before(made, "scores", 1) is None
    # So they do on the transformer target, where only matrix products are quantized at all.
    made = quantize_vai(model, enable_npu_transformer=True)
    assert dequantizer_before(made, "scores", 1) is None
    assert dequantizer_before(made, "softmax", 0) is None


def float_island(*between):
    nodes = [
        node("MatMul", ["x", "w"], ["m"], name="mm"),
        node("Atan", ["m"], ["e"], name="atan"),
        *between,
        node("MatMul", ["f", "w"], ["y"], name="mm2"),
    ]
    return build(nodes, {"x": [8, 8]}, {"y": [8, 8]}, {"w": weight(8, 8)})


@option("QuantizeAllOpTypes")
def test_every_op_type_of_the_model():
    model = float_island(node("Atan", ["e"], ["f"], name="atan2"))
    assert "e_scale" not in constants_of(quantize_vai(model))
    assert "e_scale" in constants_of(quantize_vai(model, {"QuantizeAllOpTypes": True}))
    with pytest.raises(RecipeError, match="contradicts op_types_to_quantize"):
        quantize_vai(model, {"QuantizeAllOpTypes": True}, op_types_to_quantize=["MatMul"])


@option("ForceQuantizeNoInputCheck")
def test_data_movement_is_quantized_also_behind_float():
    model = float_island(
        node("Transpose", ["e"], ["t"], name="turn", perm=[1, 0]),
        node("Atan", ["t"], ["f"], name="atan2"),
    )
    assert dequantizer_before(quantize_vai(model), "turn", 0) is None
    made = quantize_vai(model, {"ForceQuantizeNoInputCheck": True})
    assert dequantizer_before(made, "turn", 0) is not None


@option("AddQDQPairToWeight")
def test_float_weights_with_pairs():
    made = quantize_vai(make_mlp(), {"AddQDQPairToWeight": True})
    assert element_types(made)["w1"] == TensorProto.FLOAT
    # With power-of-two scales that goes for biases too.
    for method in PowerOfTwoMethod:
        made = quantize_vai(make_cnn(), {"AddQDQPairToWeight": True}, calibrate_method=method)
        assert element_types(made)["w1"] == element_types(made)["b1"] == TensorProto.FLOAT
    made = on_npu(make_cnn(), {"AddQDQPairToWeight": True})
    assert element_types(made)["w1"] == element_types(made)["b1"] == TensorProto.FLOAT


@option("OpTypesToExcludeOutputQuantization")
def test_outputs_of_these_types_have_no_pair():
    made = quantize_vai(make_cnn(), {"OpTypesToExcludeOutputQuantization": ["Gemm"]})
    assert producer_of(made, "y").op_type == "Gemm"
    assert producer_of(quantize_vai(make_cnn()), "y").op_type == "DequantizeLinear"


@option("DedicatedQDQPair")
def test_a_pair_for_each_reader():
    made = quantize_vai(make_cnn(), {"DedicatedQDQPair": True})
    readers = [("conv2", 0), ("residual", 1)]
    assert len({dequantizer_before(made, *reader).name for reader in readers}) == 2


@option("DedicateDQNode")
def test_a_dequantizer_for_each_reader_of_one_quantizer():
    shared, split = (quantize_vai(make_cnn(), {"DedicateDQNode": asked}) for asked in (False, True))
    assert ops(split)["QuantizeLinear"] == ops(shared)["QuantizeLinear"]
    readers = Counter(name for n in split.graph.node for name in set(n.input))
    made = [n for n in split.graph.node if n.op_type == "DequantizeLinear"]
    outputs = {value.name for value in split.graph.output}
    assert len(made) > ops(shared)["DequantizeLinear"]
    assert all(readers[n.output[0]] + (n.output[0] in outputs) == 1 for n in made)
    samples = make_samples(make_cnn())
    assert np.isinf(quality(shared, split, samples)) or quality(shared, split, samples) > 100


@option("NodesToExcludeOutputQuantization")
def test_outputs_of_these_nodes_have_no_pair():
    made = quantize_vai(make_cnn(), {"NodesToExcludeOutputQuantization": ["residual"]})
    assert recipe_of(made)["emulate"]["unquantized_nodes"] == ["residual"]
    written = nodes_by_name(made)["residual"].output[0]
    assert not any(n.op_type == "QuantizeLinear" and written in n.input for n in made.graph.node)
    assert dequantizer_before(made, "residual", 0) is not None


def chain(*between, constants=None):
    """A convolution, and what its result goes through."""
    nodes = [conv(["x", "w"], "t0", "conv")]
    for number, (op_type, more) in enumerate(between):
        target = "y" if number == len(between) - 1 else f"t{number + 1}"
        nodes.append(node(op_type, [f"t{number}", *more], [target], name=op_type.lower()))
    constants = {"w": weight(4, 3, 1, 1), "k": normal(1, 4, 1, 1), **(constants or {})}
    used = {name for n in nodes for name in n.input}
    constants = {name: array for name, array in constants.items() if name in used}
    return build(nodes, {"x": [1, 3, 6, 6]}, {"y": [1, 4, 6, 6]}, constants)


@pytest.mark.parametrize(
    ("key", "value", "model", "reader"),
    [
        ("RemoveQDQMulAdd", True, chain(("Mul", ["k"]), ("Add", ["k"])), "add"),
        (
            "RemoveQDQBetweenOps",
            [("Mul", "Add"), ("Conv", "Mul")],
            chain(("Mul", ["k"]), ("Add", ["k"])),
            "mul",
        ),
        ("RemoveQDQConvGelu", True, chain(("Gelu", [])), "gelu"),
        (
            "RemoveQDQInstanceNorm",
            True,
            chain(
                ("InstanceNormalization", ["s", "s"]),
                ("Relu", []),
                constants={"s": np.ones(4, np.float32)},
            ),
            "relu",
        ),
    ],
)
@option("RemoveQDQMulAdd", "RemoveQDQBetweenOps", "RemoveQDQConvGelu", "RemoveQDQInstanceNorm")
def test_no_pair_between_these_ops(key, value, model, reader):
    # Without clean-ups: a Mul behind a convolution would become part of its weights.
    arguments = {"optimize_model": False, "extra_op_types_to_quantize": ["Gelu"]}
    model.opset_import[0].version = 20
    plain = quantize_vai(model, {"ActivationSymmetric": True}, **arguments)
    assert dequantizer_before(plain, reader, 0) is not None
    made = quantize_vai(model, {"ActivationSymmetric": True, key: value}, **arguments)
    assert dequantizer_before(made, reader, 0) is None
    assert ops(made)["QuantizeLinear"] < ops(plain)["QuantizeLinear"]
    assert quality(model, made, make_samples(model)) > 20


@option("QDQOpTypePerChannelSupportToAxis")
def test_the_axis_of_channels():
    options = {"QDQOpTypePerChannelSupportToAxis": {"MatMul": 1}}
    assert scale(quantize_vai(make_mlp(), options, per_channel=True), "w2").shape == (4,)


FUSED = [
    ("Relu", "RemoveQDQConvRelu", True),
    ("Clip", "RemoveQDQConvClip", True),
    ("LeakyRelu", "RemoveQDQConvLeakyRelu", False),
    ("PRelu", "RemoveQDQConvPRelu", False),
]


@option("RemoveQDQConvRelu", "RemoveQDQConvClip", "RemoveQDQConvLeakyRelu", "RemoveQDQConvPRelu")
@pytest.mark.parametrize(("op_type", "key", "is_default"), FUSED)
def test_no_pair_between_a_convolution_and_its_activation(op_type, key, is_default):
    model = activation_model(op_type)
    for options, is_fused in (({}, is_default), ({key: True}, True), ({key: False}, False)):
        made = on_npu(model, options)
        assert (dequantizer_before(made, "act", 0) is None) is is_fused
        assert ops(made)[op_type] == 1


@option("FoldRelu")
def test_a_relu_is_absorbed_or_kept():
    assert ops(quantize_vai(make_cnn(), {"FoldRelu": True}))["Relu"] == 0
    assert ops(quantize_vai(make_cnn(), {"FoldRelu": False}))["Relu"] == 2


@option("BF16QDQToCast")
def test_bfloat16_pairs_are_casts():
    bf16 = {"activation_type": VitisQuantType.QBFloat16, "weight_type": VitisQuantType.QBFloat16}
    arguments = {"quant_format": VitisQuantFormat.QDQ, **bf16}
    model = make_cnn()
    pairs = quantize_vai(model, **arguments)
    made = quantize_vai(model, {"BF16QDQToCast": True}, **arguments)
    assert not ops(made)["VitisQuantizeLinear"] and not made.functions
    assert (
        ops(made)["Cast"] == ops(pairs)["VitisQuantizeLinear"] + ops(pairs)["VitisDequantizeLinear"]
    )
    assert not [t.name for t in made.graph.initializer if t.name.endswith("_scale")]
    feeds = make_samples(model)[0]
    np.testing.assert_array_equal(run(made, feeds)[0], run(pairs, feeds)[0])
    with pytest.warns(UserWarning, match="neither activations nor weights are bfloat16"):
        assert quantize_vai(model, {"BF16QDQToCast": True}) == quantize_vai(model)


@option("UseQDQContribOps")
def test_pairs_in_the_runtime_s_domain():
    made = quantize_vai(make_cnn(), {"UseQDQContribOps": True})
    assert {n.domain for n in made.graph.node if n.op_type == "QuantizeLinear"} == {"com.microsoft"}


@option("UseQDQVitisCustomOps")
def test_pairs_of_the_vendor_or_of_the_standard():
    arguments = {"quant_format": VitisQuantFormat.QDQ, "weight_type": VitisQuantType.QInt8}
    made = quantize_vai(make_cnn(), **arguments)
    assert ops(made)["VitisQuantizeLinear"] and not ops(made)["QuantizeLinear"]
    made = quantize_vai(make_cnn(), {"UseQDQVitisCustomOps": False}, **arguments)
    assert ops(made)["QuantizeLinear"] and not ops(made)["VitisQuantizeLinear"]
