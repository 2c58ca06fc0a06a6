"""Models in the vendor's operators: every number type, in one session of stock ONNX Runtime."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from support.models import (
    BOOL,
    as_proto,
    build,
    info,
    make_cnn,
    make_mlp,
    make_samples,
    make_transformer,
    node,
    normal,
    ops,
    run,
    tensors,
    weight,
)
from support.quantizing import quantize, quantize_on

import bitwright
from bitwright.emit import VENDOR_DOMAIN
from bitwright.errors import ModelError, RecipeError
from bitwright.numerics.quantize import fake_quantize
from bitwright.numerics.shared_exponent import round_to_shared_exponents
from bitwright.numerics.types import (
    BFLOAT16,
    BFP16,
    FLOAT8E4M3FN,
    FLOAT16,
    INT8,
    INT16,
    INT32,
    MX9,
    MXFP4E2M1,
    MXFP8E4M3,
    MXINT8,
    QTYPES,
    UINT8,
    UINT16,
    UINT32,
)
from bitwright.recipe import MSE, Emulation, MinMSE, Override, Placement, Recipe, Selection

FORMATS = ["extended", "fix-neuron"]

# Number type of activations and weights -> least signal to noise, in dB.
ON_THE_DEMO = {
    "int8": 30,
    "uint8": 30,
    "int16": 60,
    "uint16": 60,
    "int32": 75,
    "uint32": 75,
    "float16": 55,
    "bfloat16": 35,
    "float8e4m3fn": 15,
    "float8e5m2": 8,
    "bfp16": 28,
    "mxint8": 28,
}
# Sessions with many blocks take their time to open: a smaller model has to do.
ON_A_SMALL_MODEL = {
    "mx9": 35,
    "mx6": 17,
    "mx4": 5,
    "mxfp8e5m2": 13,
    "mxfp8e4m3": 20,
    "mxfp6e3m2": 13,
    "mxfp6e2m3": 20,
    "mxfp4e2m1": 5,
}


@pytest.fixture(scope="module")
def demo():
    return bitwright.load_demo()


@pytest.fixture(scope="module")
def cnn():
    model = make_cnn()
    return model, make_samples(model, 8)


def vendor_ops(result):
    nodes = as_proto(result).graph.node
    return Counter(item.op_type for item in nodes if item.domain == VENDOR_DOMAIN)


def test_every_type_is_measured_here():
    types = {t.name for t in QTYPES.values() if t.bits >= 8 or t.shares_exponent}
    assert {*ON_THE_DEMO, *ON_A_SMALL_MODEL} == types


def quantize_to(qtype, model, samples, **fields):
    weight_type = INT8 if qtype == UINT8 else qtype
    return quantize(model, samples, activation=qtype, weight=weight_type, **fields)


@pytest.mark.parametrize("name", ON_THE_DEMO)
@pytest.mark.sampled(5)
def test_every_type_runs_and_is_as_close_as_it_can_be(demo, name):
    result = quantize_to(QTYPES[name], demo.model_path, demo.calibration[:32], format="extended")
    proto = as_proto(result)
    onnx.checker.check_model(proto)
    assert {f.domain for f in proto.functions} == {VENDOR_DOMAIN}
    assert result.outputs[0].sqnr > ON_THE_DEMO[name]


@pytest.mark.parametrize("name", ON_A_SMALL_MODEL)
@pytest.mark.sampled(4)
def test_every_block_format_runs_and_is_as_close_as_it_can_be(cnn, name):
    result = quantize_to(QTYPES[name], *cnn, format="extended")
    onnx.checker.check_model(as_proto(result))
    assert result.outputs[0].sqnr > ON_A_SMALL_MODEL[name]


@pytest.mark.parametrize(
    "qtype", [t for t in QTYPES.values() if not t.shares_exponent and t.bits >= 8], ids=str
)
@pytest.mark.sampled(5)
def test_one_op_for_a_pair_computes_the_same(cnn, qtype):
    model, samples = cnn
    pairs = quantize_to(qtype, model, samples, format="extended")
    fused = quantize_to(qtype, model, samples, format="fix-neuron")
    assert vendor_ops(fused)["FixNeuron"] > 0 and "VitisQuantizeLinear" not in vendor_ops(fused)
    onnx.checker.check_model(as_proto(fused))
    np.testing.assert_allclose(run(fused, samples[0])[0], run(pairs, samples[0])[0], atol=1e-6)


@pytest.mark.parametrize(
    ("activation", "weight_type", "least"),
    [
        (INT16, INT8, 30),
        (UINT16, INT8, 30),
        (BFLOAT16, INT8, 30),
        (FLOAT16, BFLOAT16, 35),
        (INT8, BFLOAT16, 25),
        (INT32, INT16, 60),
        (BFP16, INT8, 25),
        (MXFP8E4M3, MXFP4E2M1, 8),
        (MXINT8, BFP16, 25),
        (FLOAT8E4M3FN, INT16, 15),
    ],
    ids=str,
)
def test_activations_and_weights_may_differ(cnn, activation, weight_type, least):
    model, samples = cnn
    result = quantize(model, samples, format="extended", activation=activation, weight=weight_type)
    assert result.outputs[0].sqnr > least


def test_a16w8_has_the_vendors_pairs_at_the_opset_of_the_model(cnn):
    model, samples = cnn
    result = quantize(model, samples, format="extended", activation=INT16, weight=INT8)
    assert result.model.opset_imports[""] == 17
    found = vendor_ops(result)
    assert set(found) == {"VitisQuantizeLinear", "VitisDequantizeLinear"}
    assert found["VitisQuantizeLinear"] < found["VitisDequantizeLinear"]


def test_standard_ops_stand_where_they_take_the_type(cnn):
    model, samples = cnn
    fields = {"format": "extended", "emulate": Emulation(extended_ops=False)}
    plain = quantize(model, samples, **fields)
    assert not vendor_ops(plain) and not as_proto(plain).functions
    expected = quantize(model, samples)
    for sample in samples[:2]:
        np.testing.assert_array_equal(run(plain, sample)[0], run(expected, sample)[0])
    wide = quantize(model, samples, activation=UINT16, weight=INT8, **fields)
    assert wide.model.opset_imports[""] == 21 and not vendor_ops(wide)
    floats = quantize(model, samples, activation=BFLOAT16, weight=INT8, **fields)
    assert set(vendor_ops(floats)) == {"VitisQuantizeLinear", "VitisDequantizeLinear"}
    assert ops(as_proto(floats))["DequantizeLinear"] > 0  # the weights


@pytest.mark.parametrize("extended_ops", [True, False])
@pytest.mark.parametrize("activation", [UINT8, INT16, INT32], ids=str)
@pytest.mark.parametrize("make", [make_cnn, make_mlp])
def test_weights_of_32_bits_are_kept_from_integer_kernels(make, activation, extended_ops):
    model = make()
    result = quantize(
        model,
        make_samples(model),
        format="extended",
        activation=activation,
        weight=INT32,
        place=Placement(isolated=True, float_bias_add=False),
        emulate=Emulation(extended_ops=extended_ops),
    )
    assert result.outputs[0].sqnr > (30 if activation is UINT8 else 60)


def test_8_bits_are_as_good_as_in_the_standard_format(cnn):
    model, samples = cnn
    extended = quantize(model, samples, format="extended", per_channel=True)
    standard = quantize(model, samples, per_channel=True)
    for sample in samples[:2]:
        np.testing.assert_allclose(run(extended, sample)[0], run(standard, sample)[0], atol=1e-6)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("qtype", [INT16, BFLOAT16, MXINT8], ids=str)
def test_bare_ops_are_left_to_a_runtime_that_knows_them(cnn, format, qtype, tmp_path):
    model, samples = cnn
    path = tmp_path / "bare.onnx"
    recipe = Recipe(format=format, activation=qtype, weight=qtype, place=Placement(portable=False))
    result = bitwright.quantize(model, path, data=samples, recipe=recipe, progress=False)
    assert not as_proto(result).functions and result.outputs == []
    assert any("not run or measured here" in note for note in result.plan.notes)
    onnx.checker.check_model(onnx.load(path))
    assert vendor_ops(result)


@pytest.mark.parametrize("qtype", [BFLOAT16, BFP16, MXINT8], ids=str)
def test_types_that_need_no_ranges_need_no_data(cnn, qtype):
    model, samples = cnn
    without = quantize_on(None, model, format="extended", activation=qtype, weight=qtype)
    assert without.data == "no data: these number types need none"
    measured = quantize(model, samples, format="extended", activation=qtype, weight=qtype)
    assert measured.plan.tensors == without.plan.tensors
    assert len(measured.outputs) == 1


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("qtype", [INT16, INT32, BFLOAT16, FLOAT8E4M3FN], ids=str)
def test_a_product_is_computed_from_rounded_operands(format, qtype):
    model = build(
        [node("MatMul", ["x", "w"], ["y"], name="product")],
        {"x": ["n", 6]},
        {"y": ["n", 4]},
        {"w": weight(6, 4)},
    )
    x = normal(3, 6, seed=1)
    result = quantize(
        model,
        [{"x": x}],
        format=format,
        activation=qtype,
        weight=qtype,
        place=Placement(unquantized_outputs=("MatMul",)),
    )
    rounded = {}
    for name, value in (("x", x), ("w", weight(6, 4))):
        p = result.plan.parameters(name)
        rounded[name] = fake_quantize(value, np.float32(p.scale), p.zero_point, qtype)
    expected = rounded["x"].astype(np.float64) @ rounded["w"].astype(np.float64)
    np.testing.assert_allclose(run(result, {"x": x})[0], expected, rtol=1e-5)


@pytest.mark.parametrize("qtype", [BFP16, MX9, MXINT8, MXFP8E4M3], ids=str)
@pytest.mark.parametrize(
    ("op", "axes"),
    [("MatMul", {"x": 1, "w": 0}), ("Gemm", {"x": 1, "w": 0}), ("transposed", {"x": 0, "w": 1})],
)
def test_blocks_lie_along_what_a_product_sums_up(qtype, op, axes):
    x, w = normal(40, 40, seed=1), weight(40, 40)
    turned = op == "transposed"
    attributes = {"transA": 1, "transB": 1} if turned else {}
    model = build(
        [node("Gemm" if turned else op, ["x", "w"], ["y"], name="product", **attributes)],
        {"x": [40, 40]},
        {"y": [40, 40]},
        {"w": w},
    )
    place = Placement(unquantized_outputs=("MatMul", "Gemm"))
    result = quantize_on(
        None, model, format="extended", activation=qtype, weight=qtype, place=place
    )
    assert {key: entry.axis for key, entry in result.plan.tensors.items()} == axes
    a, b = (
        round_to_shared_exponents(x, qtype, axes["x"]),
        round_to_shared_exponents(w, qtype, axes["w"]),
    )
    expected = a.T @ b.T if turned else a @ b
    np.testing.assert_allclose(run(result, {"x": x})[0], expected, atol=1e-5)


def test_stored_weights_have_the_type_that_was_asked_for(cnn):
    model, samples = cnn
    for qtype, dtype in ((BFLOAT16, "BFLOAT16"), (FLOAT16, "FLOAT16"), (UINT32, "UINT32")):
        result = quantize(model, samples, format="extended", activation=qtype, weight=qtype)
        stored = result.model.graph.initializers["w1_quantized"]
        assert stored.dtype.name == dtype
    assert result.model.graph.initializers["b1_quantized"].dtype.name == "INT32"


def test_the_bias_of_float_and_block_weights_is_one_more_weight(cnn):
    model, _ = cnn
    for qtype in (BFLOAT16, BFP16):
        plan = quantize_on(None, model, format="extended", activation=qtype, weight=qtype).plan
        assert plan.tensors["b1"].role == "weight"
        assert plan.tensors["b1"].qtype == qtype


def test_an_override_may_bring_in_another_family(cnn):
    model, samples = cnn
    overrides = {"r1": Override(qtype=BFLOAT16), "c2": Override(qtype=INT32)}
    for format in FORMATS:
        result = quantize(
            model,
            samples,
            format=format,
            activation=INT16,
            weight=INT8,
            overrides=overrides,
        )
        types = {key: entry.qtype for key, entry in result.plan.tensors.items()}
        assert {types["r1"], types["c2"]} == {BFLOAT16, INT32}
        assert result.outputs[0].sqnr > 30


def test_scales_given_for_a_float_type_are_honoured(cnn):
    model, _ = cnn
    given = {"x": Override(qtype=FLOAT16, scale=4.0, zero_point=1)}
    scaled = quantize_on(
        None, model, overrides=given, format="extended", activation=FLOAT16, weight=FLOAT16
    )
    assert scaled.plan.parameters("x").scale == 4.0
    names = {value.name for value in scaled.model.graph.initializers.values()}
    assert {"x_scale", "x_zero_point"} <= names


def test_pages_examples_with_power_of_two_scales_run(cnn):
    model, samples = cnn
    for activation, weight_type in ((INT16, INT16), (FLOAT16, FLOAT16), (INT16, INT8)):
        result = quantize(
            model,
            samples,
            format="extended",
            activation=activation,
            weight=weight_type,
            activation_symmetric=True,
            ranges=MinMSE(),
            weight_ranges=MinMSE(),
            scales="power-of-two",
        )
        for entry in result.plan.tensors.values():
            if entry.scale is not None and entry.bias_of is None:
                assert np.all(np.exp2(np.round(np.log2(entry.scale))) == entry.scale)


@pytest.mark.parametrize("qtype", [INT16, BFLOAT16, BFP16, MXINT8], ids=str)
@pytest.mark.parametrize("make", [make_mlp, make_transformer])
@pytest.mark.sampled(4)
def test_transformers_and_perceptrons_run(make, qtype):
    model = make()
    samples = make_samples(model, 4)
    result = quantize(model, samples, format="extended", activation=qtype, weight=qtype)
    assert result.outputs[0].sqnr > 20


def test_a_saved_model_is_the_same_and_is_known_to_be_quantized(cnn, tmp_path):
    model, samples = cnn
    for qtype in (BFLOAT16, MXINT8, INT16):
        path = tmp_path / f"{qtype}.onnx"
        recipe = Recipe(format="extended", activation=qtype, weight=qtype)
        result = bitwright.quantize(model, path, data=samples, recipe=recipe, progress=False)
        np.testing.assert_array_equal(run(path, samples[0])[0], run(result, samples[0])[0])
        facts = bitwright.inspect(path)
        assert facts.is_quantized
        assert qtype.name in facts.quantized_types
        with pytest.raises(ModelError, match="already quantized"):
            bitwright.quantize(path, data=samples)


@pytest.mark.parametrize("qtype", [INT16, INT32, BFLOAT16, MXINT8], ids=str)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.sampled(4)
def test_what_is_written_passes_verification(cnn, format, qtype):
    result = quantize_to(qtype, *cnn, format=format)
    assert bitwright.verify(as_proto(result)).errors == ()


@pytest.mark.parametrize("qtype", [INT16, BFLOAT16, MXINT8], ids=str)
def test_branches_have_the_bodies_of_the_model(qtype):
    branches = {
        "then_branch": onnx.helper.make_graph(
            [node("MatMul", ["h", "inside"], ["t"], name="product_inside")],
            "then",
            [],
            [info("t", [None, 8])],
            tensors({"inside": weight(8, 8)}),
        ),
        "else_branch": onnx.helper.make_graph(
            [node("Neg", ["h"], ["e"], name="negative")], "else", [], [info("e", [None, 8])]
        ),
    }
    model = build(
        [
            node("MatMul", ["x", "w"], ["h"], name="product"),
            node("If", ["which"], ["y"], name="branch", **branches),
        ],
        [info("x", ["n", 8]), info("which", [], BOOL)],
        [info("y", ["n", 8])],
        {"w": weight(8, 8, seed=3)},
    )
    samples = [{"x": normal(4, 8, seed=i), "which": np.array(True)} for i in range(3)]
    result = quantize_to(qtype, model, samples, format="extended", select=Selection(subgraphs=True))
    assert result.quantized["MatMul"] == 2
    assert result.outputs[0].sqnr > 30


def test_a_plan_applied_again_gives_the_same_bytes(cnn):
    model, samples = cnn
    result = quantize(model, samples, format="extended", activation=INT16, weight=INT8)
    again = bitwright.apply_plan(type(result.plan).from_json(result.plan.to_json()), model)
    assert as_proto(again).SerializeToString() == as_proto(result).SerializeToString()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"activation": BFP16}, "set format='extended'"),
        ({"activation": BFLOAT16}, "set format='extended'"),
        ({"format": "extended", "weight": BFP16, "per_channel": True}, "no meaning for bfp16"),
        ({"format": "extended", "weight": BFLOAT16, "reduce_range": True}, "no meaning"),
        ({"format": "extended", "emulate": Emulation(contrib_ops=True)}, "two domains"),
        ({"format": "fix-neuron", "block_size": 32}, "no place in the format fix-neuron"),
        (
            {"format": "fix-neuron", "emulate": Emulation(weight_pairs=True)},
            "no place in the format fix-neuron",
        ),
    ],
)
def test_contradictions_are_refused(fields, message):
    with pytest.raises(RecipeError, match=message):
        Recipe(**fields)


def test_types_that_do_not_fit_the_format_are_refused_with_the_remedy(cnn):
    model, samples = cnn
    with pytest.raises(RecipeError, match=r"int32.*or the format extended"):
        quantize(model, samples, activation=INT32)
    with pytest.raises(RecipeError, match="float8e4m3fn takes the range methods minmax"):
        quantize(
            model,
            samples,
            format="extended",
            activation=FLOAT8E4M3FN,
            weight=FLOAT8E4M3FN,
            ranges=MSE(),
        )


def test_bfloat16_as_casts_leaves_no_scale_that_nothing_reads(cnn):
    result = quantize_to(
        BFLOAT16, *cnn, format="extended", emulate=Emulation(bfloat16_casts=True), bias="weight"
    )
    graph = as_proto(result).graph
    read = {name for item in graph.node for name in item.input}
    assert {tensor.name for tensor in graph.initializer} <= read
    assert "Cast" in {item.op_type for item in graph.node}
    assert not vendor_ops(result)
