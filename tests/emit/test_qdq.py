"""Every operator with a rule, in every mix of types: valid, in order, loaded, run, and close."""

from __future__ import annotations

import json
from functools import lru_cache

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from support.models import (
    as_proto,
    build,
    constants_of,
    dequantizer_before,
    element_types,
    make_cnn,
    make_mlp,
    make_samples,
    make_transformer,
    node,
    nodes_by_name,
    normal,
    ops,
    parameters_of,
    quality,
    run,
    weight,
)
from support.op_models import OP_MODELS, op_samples
from support.quantizing import quantize

import bitwright
from bitwright.decide.ops import RULES
from bitwright.numerics.types import INT4, INT8, INT16, UINT4, UINT8, UINT16
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

ALL = Selection(op_types=tuple(RULES))


@lru_cache
def op_case(op_type):
    model = OP_MODELS[op_type]()
    return model, op_samples(model)


def quantize_op(op_type, **fields):
    model, samples = op_case(op_type)
    recipe = Recipe(name="test", select=ALL, **fields)
    result = bitwright.quantize(model, data=samples, recipe=recipe, holdout=False)
    return model, samples, result


def assert_valid(result, *, full=True):
    proto = result.to_proto()
    onnx.checker.check_model(proto, full_check=full)
    ready = {v.name for v in proto.graph.input} | {t.name for t in proto.graph.initializer} | {""}
    for item in proto.graph.node:
        assert set(item.input) <= ready, f"{item.name} reads what is not made yet"
        ready |= set(item.output)


def test_every_operator_with_a_rule_has_a_model_here():
    assert set(OP_MODELS) == set(RULES)


TYPES = {
    "uint8/int8": (UINT8, INT8, 25),
    "int8/int8": (INT8, INT8, 25),
    "uint16/int8": (UINT16, INT8, 30),
    "uint8/int4": (UINT8, INT4, 6),
}

# A value that changes places with its neighbour is a large error, however close both are.
SORTS = {"TopK": 12, "ArgMax": 12}


@pytest.mark.parametrize("per_channel", [False, True], ids=["per-tensor", "per-channel"])
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("op_type", sorted(RULES))
@pytest.mark.sampled(120)
def test_each_operator_runs_quantized_and_close_to_float(op_type, types, per_channel):
    activation, weight_type, bound = TYPES[types]
    model, samples, result = quantize_op(
        op_type, activation=activation, weight=weight_type, per_channel=per_channel
    )
    assert result.plan.nodes["op"].quantized, result.plan.nodes["op"].reason
    assert_valid(result, full=op_type != "EmbedLayerNormalization")
    assert quality(model, result, samples) > bound - SORTS.get(op_type, 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"emulate": Emulation(weight_pairs=True)},
        {"emulate": Emulation(dedicated_pairs=True)},
        {
            "place": Placement(isolated=True, force_shared=True),
            "emulate": Emulation(keep_activations=True),
        },
    ],
    ids=["weight-pairs", "dedicated-pairs", "everything-forced"],
)
@pytest.mark.parametrize("op_type", sorted(RULES))
@pytest.mark.sampled(40)
def test_each_operator_runs_in_every_placement(op_type, fields):
    model, samples, result = quantize_op(op_type, **fields)
    assert_valid(result, full=op_type != "EmbedLayerNormalization")
    assert quality(model, result, samples) > 25 - SORTS.get(op_type, 0)


# Where pairs stand and what they are called --------------------------------------------------


def test_weights_are_stored_as_integers_and_biases_as_int32():
    result = quantize(make_cnn(), per_channel=True)
    types = element_types(result)
    assert types["w1_quantized"] == TensorProto.INT8
    assert types["b1_quantized"] == TensorProto.INT32
    constants = constants_of(result)
    assert not {"w1", "b1"} & set(constants)
    np.testing.assert_array_equal(
        constants["b1_quantized_scale"], constants["x_scale"] * constants["w1_scale"]
    )


def test_a_dequantized_bias_keeps_the_name_of_the_bias():
    assert nodes_by_name(quantize(make_cnn()))["conv1"].input[2] == "b1"


def test_graph_outputs_keep_their_names_and_shapes():
    model = make_cnn()
    before, after = model.graph, quantize(model).to_proto().graph
    assert [v.name for v in after.output] == [v.name for v in before.output]
    assert [v.name for v in after.input] == [v.name for v in before.input]
    assert after.output[0].type.tensor_type == before.output[0].type.tensor_type


def test_what_only_moves_values_reads_and_writes_one_scale():
    quantized = quantize(make_cnn()).to_proto()
    scales = {item.name: item.input[1] for item in quantized.graph.node if "Quantize" in item.name}
    assert scales["r1_QuantizeLinear"] == scales["p1_QuantizeLinear"] == "r1_scale"


def test_a_graph_output_that_another_node_reads_is_read_through_its_pair():
    model = make_mlp()
    model.graph.output.append(onnx.helper.make_tensor_value_info("h", 1, ["n", 16]))
    samples = make_samples(model)
    result = quantize(model, samples, place=Placement(float_bias_add=False, isolated=True))
    assert [v.name for v in result.to_proto().graph.output] == ["y", "h"]
    assert quality(model, result, samples) > 30


def test_an_input_that_goes_straight_out_stays_what_it_is():
    model = make_mlp()
    model.graph.output.append(model.graph.input[0])
    samples = make_samples(model)
    result = quantize(model, samples)
    np.testing.assert_array_equal(run(result, samples[0], ["x"])[0], samples[0]["x"])


def test_weight_pairs_keep_the_float_weights():
    result = quantize(make_cnn(), emulate=Emulation(weight_pairs=True))
    np.testing.assert_array_equal(constants_of(result)["w1"], constants_of(make_cnn())["w1"])
    quantizer = nodes_by_name(result)["w1_QuantizeLinear"]
    assert quantizer.input[0] == "w1"


def test_dedicated_pairs_give_each_reader_its_own():
    model = make_cnn()
    shared, dedicated = (
        quantize(model, emulate=Emulation(dedicated_pairs=flag)).to_proto()
        for flag in (False, True)
    )

    def pair_of(proto, name, index):
        return dequantizer_before(proto, name, index).input[0]

    assert pair_of(shared, "conv2", 0) == pair_of(shared, "residual", 1)
    assert pair_of(dedicated, "conv2", 0) != pair_of(dedicated, "residual", 1)


# Types --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"activation": UINT16}, {"weight": INT4}], ids=str)
def test_contrib_ops_need_no_new_opset(fields):
    model = make_cnn()
    result = quantize(model, emulate=Emulation(contrib_ops=True), **fields)
    quantizers = [n for n in result.to_proto().graph.node if "QuantizeLinear" in n.op_type]
    assert {item.domain for item in quantizers} == {"com.microsoft"}
    assert result.model.graph.opset_imports[""] == 17
    assert quality(model, result, make_samples(model)) > (12 if fields.get("weight") else 30)


@pytest.mark.parametrize(
    ("fields", "opset"),
    [
        ({}, 17),
        ({"activation": UINT16}, 21),
        ({"weight": INT4}, 21),
        ({"weight": INT16}, 21),
        ({"weight": UINT4, "per_channel": True}, 21),
        ({"block_size": 4}, 21),
    ],
    ids=str,
)
def test_the_opset_is_the_first_that_has_the_types(fields, opset):
    model = make_cnn()
    result = quantize(model, **fields)
    assert result.model.graph.opset_imports[""] == opset
    assert quality(model, result, make_samples(model)) > 12
    assert result.model.ir_version >= (10 if opset == 21 else 8)


def test_int4_weights_are_packed_two_a_byte():
    stored = {t.name: t for t in quantize(make_cnn(), weight=INT4).to_proto().graph.initializer}
    tensor = stored["w2_quantized"]
    assert tensor.data_type == TensorProto.INT4
    assert len(tensor.raw_data) == 8 * 8 * 9 // 2


def test_types_mix_by_overrides():
    model = make_cnn()
    overrides = {
        "x": Override(qtype=UINT16),
        "w2": Override(qtype=INT4, axis=0),
        "r2": Override(symmetric=True),
    }
    result = quantize(model, overrides=overrides)
    types = element_types(result)
    assert types["x_zero_point"] == TensorProto.UINT16
    assert types["w1_quantized"] == TensorProto.INT8
    assert types["w2_quantized"] == TensorProto.INT4
    assert constants_of(result)["w2_scale"].shape == (8,)
    assert constants_of(result)["r2_zero_point"] == 128
    assert quality(model, result, make_samples(model)) > 15


def test_an_override_with_a_scale_is_taken_as_it_is():
    overrides = {
        "x": Override(scale=0.05, zero_point=100),
        "w1": Override(scale=tuple(0.01 * (1 + i) for i in range(8)), zero_point=(0,) * 8, axis=0),
    }
    result = quantize(make_cnn(), overrides=overrides)
    constants = constants_of(result)
    assert constants["x_scale"] == np.float32(0.05)
    assert constants["x_zero_point"] == 100
    np.testing.assert_allclose(constants["w1_scale"], 0.01 * np.arange(1, 9), rtol=1e-6)


def test_an_override_with_a_range_gives_that_range():
    constants = constants_of(quantize(make_cnn(), overrides={"x": Override(rmin=-2.0, rmax=4.0)}))
    scale, zero = float(constants["x_scale"]), int(constants["x_zero_point"])
    assert scale == pytest.approx(6 / 255)
    assert zero == 85


@pytest.mark.parametrize("activation", [UINT16, INT16])
def test_activations_per_channel_have_a_scale_for_each(activation):
    model = make_cnn()
    samples = make_samples(model)
    for sample in samples:
        sample["x"] *= np.array([0.01, 1, 100], np.float32).reshape(3, 1, 1)
    result = quantize(model, samples, activation=activation, ranges=MinMax(per_channel=True))
    quantizer = nodes_by_name(result)["x_QuantizeLinear"]
    scale, _ = parameters_of(result, quantizer)
    assert scale.shape == (3,)
    assert scale[0] < scale[1] < scale[2]
    assert [a.i for a in quantizer.attribute if a.name == "axis"] == [1]
    assert_valid(result)
    assert quality(model, result, samples) > 30


def test_activations_per_channel_run_through_a_transformer():
    model = make_transformer()
    samples = make_samples(model)
    result = quantize(model, samples, activation=UINT16, ranges=MinMax(per_channel=True))
    assert quality(model, result, samples) > 30


@pytest.mark.parametrize("size", [4, 5, 16])
@pytest.mark.parametrize("transposed", [False, True])
def test_blocks_lie_along_the_summed_axis(size, transposed):
    matrix = weight(16, 8, seed=1)
    model = build(
        [node("Gemm", ["x", "w", "c"], ["y"], name="fc", transB=int(transposed))],
        {"x": [4, 16]},
        {"y": [4, 8]},
        {"w": matrix.T.copy() if transposed else matrix, "c": normal(8)},
    )
    samples = make_samples(model)
    result = quantize(model, samples, weight=INT4, block_size=size)
    blocks = -(-16 // size)
    dequantizer = dequantizer_before(result, "fc", 1)
    scale, _ = parameters_of(result, dequantizer)
    assert scale.shape == ((8, blocks) if transposed else (blocks, 8))
    assert {a.name: a.i for a in dequantizer.attribute} == {
        "axis": int(transposed),
        "block_size": size,
    }
    assert_valid(result)
    assert quality(model, result, samples) > 18


def test_blocks_are_closer_to_float_than_one_scale():
    model = make_mlp(width=32)
    samples = make_samples(model)
    found = [
        quality(
            model, quantize(model, samples, activation=UINT16, weight=INT4, block_size=b), samples
        )
        for b in (0, 8)
    ]
    assert found[1] > found[0] + 1


# Scales of a kind ---------------------------------------------------------------------------


def all_scales(result, kind="scale"):
    return {
        name: array
        for name, array in constants_of(result).items()
        if name.endswith(f"_{kind}") and "b" not in name.split("_")[0]
    }


@pytest.mark.parametrize("method", [NonOverflow(), MinMSE()], ids=repr)
@pytest.mark.parametrize("symmetric", [False, True])
def test_power_of_two_scales_are_powers_of_two(method, symmetric):
    model = make_cnn()
    samples = make_samples(model)
    result = quantize(
        model,
        samples,
        activation=INT8,
        activation_symmetric=symmetric,
        per_channel=True,
        ranges=method,
        weight_ranges=method,
        scales="power-of-two",
    )
    for name, scale in all_scales(result).items():
        mantissa, _ = np.frexp(scale)
        assert np.all(mantissa == 0.5), name
    assert quality(model, result, samples) > 25


def test_int16_scales_are_a_16_bit_number_over_a_power_of_two():
    model = make_cnn()
    samples = make_samples(model)
    result = quantize(model, samples, scales="int16")
    for name, scale in all_scales(result).items():
        mantissa, _ = np.frexp(scale.astype(np.float64))
        assert np.all(mantissa * 2**15 == np.rint(mantissa * 2**15)), name
    assert quality(model, result, samples) > 30


def test_symmetric_activations_have_the_middle_as_zero_point():
    for activation, middle in ((INT8, 0), (UINT8, 128), (INT16, 0), (UINT16, 32768)):
        place = Placement(unsigned_activations=False)
        result = quantize(make_cnn(), activation=activation, activation_symmetric=True, place=place)
        assert {int(z) for z in all_scales(result, "zero_point").values()} <= {0, middle}
        assert constants_of(result)["x_zero_point"] == middle


def test_reduced_range_uses_half_of_the_levels():
    integers = constants_of(quantize(make_cnn(), reduce_range=True))["w1_quantized"]
    assert 60 <= np.abs(integers).max() <= 64


def test_a_tensor_of_zeros_gets_a_usable_scale():
    model = make_mlp()
    samples = [{"x": np.zeros((4, 16), np.float32)}] * 4
    result = quantize(model, samples)
    assert all(np.isfinite(s).all() and (s > 0).all() for s in all_scales(result).values())
    assert_valid(result)


def test_a_weight_of_zeros_in_one_channel_gets_a_usable_scale():
    model = make_cnn()
    tensor = next(t for t in model.graph.initializer if t.name == "w1")
    array = constants_of(model)["w1"].copy()
    array[2] = 0
    tensor.CopyFrom(numpy_helper.from_array(array, "w1"))
    samples = make_samples(model)
    result = quantize(model, samples, per_channel=True)
    assert np.all(constants_of(result)["w1_scale"] > 0)
    assert quality(model, result, samples) > 30


# What the file says of itself ---------------------------------------------------------------


def test_the_model_says_which_version_and_recipe_made_it():
    proto = quantize(make_mlp(), per_channel=True).to_proto()
    told = {item.key: item.value for item in proto.metadata_props}
    assert told["bitwright.version"] == bitwright.__version__
    assert (proto.producer_name, proto.producer_version) == ("bitwright", bitwright.__version__)
    assert json.loads(told["bitwright.recipe"])["per_channel"] is True
    assert Recipe.from_json(told["bitwright.recipe"]).per_channel


def test_metadata_of_the_float_model_is_kept():
    model = make_mlp()
    entry = model.metadata_props.add()
    entry.key, entry.value = "classes", "cat,dog"
    told = {item.key: item.value for item in quantize(model).to_proto().metadata_props}
    assert told["classes"] == "cat,dog"


@pytest.mark.parametrize("make", [make_cnn, make_transformer])
def test_the_same_input_gives_the_same_bytes(tmp_path, make):
    model = make()
    files = [tmp_path / name for name in ("a.onnx", "b.onnx")]
    for file in files:
        bitwright.quantize(model, file, data=make_samples(model), recipe="int8-per-channel")
    assert files[0].read_bytes() == files[1].read_bytes()


def test_external_data_is_written_on_request_and_runs(tmp_path):
    model = make_cnn(channels=32)
    out = tmp_path / "q.onnx"
    samples = make_samples(model)
    options = {"purpose": "size", "external_data": True, "holdout": False}
    bitwright.quantize(model, out, data=samples, **options)
    assert (tmp_path / "q.onnx.data").stat().st_size == 32 * 32 * 9
    assert quality(model, onnx.load(out), samples) > 30


def test_ops_are_what_was_there_before_and_pairs():
    model = make_cnn()
    before, after = ops(model), ops(quantize(model))
    assert set(after) - set(before) == {"QuantizeLinear", "DequantizeLinear"}
    assert as_proto(model).graph.name == quantize(model).to_proto().graph.name
