"""Every key of the Vitis AI quantizer's `extra_options`: what it changes in the model written."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

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
    weight,
)
from support.vai_q_onnx import quantize_vai

from bitwright.compat import vai_q_onnx
from bitwright.compat.vai_q_onnx import QuantType, VitisQuantFormat, VitisQuantType
from bitwright.compat.vai_q_onnx.options import OLD_NAMES, OPTIONS, REFUSED, read_options
from bitwright.errors import RecipeError

TESTED = set()


def option(*keys):
    """Mark what a test shows, so that no key is left out."""
    TESTED.update(keys)
    return lambda function: function


def on_npu(model, options=None, **arguments):
    return quantize_vai(model, options, enable_npu_cnn=True, calibrate_method="MinMSE", **arguments)


def scale(model, tensor):
    return constants_of(model)[f"{tensor}_scale"]


def zero_point(model, tensor):
    return constants_of(model)[f"{tensor}_zero_point"]


def position(model, tensor):
    """Return p of the scale 2^-p."""
    return int(-np.log2(scale(model, tensor)))


def recipe_of(model):
    return json.loads({p.key: p.value for p in model.metadata_props}["bitwright.recipe"])


def conv(inputs, output, name, **attributes):
    return node("Conv", inputs, [output], name=name, **attributes)


# Types and scales ---------------------------------------------------------------------------


@option("ActivationSymmetric")
def test_symmetric_activations():
    assert zero_point(quantize_vai(make_cnn()), "r2") == 0
    assert zero_point(quantize_vai(make_cnn(), {"ActivationSymmetric": True}), "r2") == 128


@option("WeightSymmetric")
def test_asymmetric_weights():
    assert zero_point(quantize_vai(make_mlp()), "w1") == 0
    assert zero_point(quantize_vai(make_mlp(), {"WeightSymmetric": False}), "w1") != 0


@option("UseUnsignedReLU")
def test_what_is_never_negative_uses_the_whole_unsigned_type():
    options = {"ActivationSymmetric": True}
    plain = quantize_vai(make_cnn(), options)
    made = quantize_vai(make_cnn(), {**options, "UseUnsignedReLU": True})
    assert zero_point(plain, "r2") == 128 and zero_point(made, "r2") == 0
    assert scale(made, "r2") < 0.6 * scale(plain, "r2")
    assert zero_point(made, "x") == 128


@option("QuantizeBias")
def test_a_bias_stays_float():
    assert element_types(quantize_vai(make_cnn()))["b1_quantized"] == TensorProto.INT32
    made = quantize_vai(make_cnn(), {"QuantizeBias": False})
    assert element_types(made)["b1"] == TensorProto.FLOAT


@option("Int32Bias", "Int16Bias")
def test_the_type_of_a_bias_on_the_npu():
    model = make_cnn()
    assert element_types(on_npu(model))["b1_quantized"] == TensorProto.INT8
    for key, kind in (("Int32Bias", TensorProto.INT32), ("Int16Bias", TensorProto.INT16)):
        made = on_npu(model, {key: True})
        assert element_types(made)["b1_quantized"] == kind
        assert quality(model, made, make_samples(model)) > 20


@option("Int16Scale")
@pytest.mark.parametrize("method", ["MinMax", "MinMSE", "NonOverflow"])
def test_scales_are_a_16_bit_number_over_a_power_of_two(method):
    model = make_cnn()
    made = quantize_vai(model, {"Int16Scale": True}, calibrate_method=method)
    found = [v for name, v in constants_of(made).items() if name.endswith("_scale")]
    biases = {"b1_quantized_scale", "b2_quantized_scale", "b3_quantized_scale"}
    own = [
        v
        for name, v in constants_of(made).items()
        if name.endswith("_scale") and name not in biases
    ]
    assert found and any(np.frexp(value)[0] != 0.5 for value in own)
    for value in own:
        fractions = float(value) * 2.0 ** np.arange(0, 31)
        assert np.any((fractions % 1 == 0) & (np.abs(fractions) < 2**15)), value
    assert quality(model, made, make_samples(model)) > 25


@option("TensorQuantOverrides")
def test_single_tensors_get_what_overrides_say():
    entry = {"quant_type": VitisQuantType.QUInt16, "symmetric": True}
    made = quantize_vai(make_cnn(), {"TensorQuantOverrides": {"x": [entry]}})
    assert zero_point(made, "x") == 32768


@option("AdjustWeightScaleForInt32Bias")
def test_weight_scales_are_widened_for_a_huge_bias():
    constants = {"w": weight(4, 4, 1, 1, seed=1) * np.float32(1e-6), "b": normal(4, size=1e6)}
    shape = [1, 4, 6, 6]
    model = build([conv(["x", "w", "b"], "y", "conv")], {"x": shape}, {"y": shape}, constants)
    key = "AdjustWeightScaleForInt32Bias"
    assert scale(quantize_vai(model), "w") > 2 * scale(quantize_vai(model, {key: False}), "w")


@option("AdjustBiasScale")
def test_a_bias_has_the_scale_of_its_product():
    made = quantize_vai(make_cnn(), {"AdjustBiasScale": True})
    product = scale(made, "x") * scale(made, "w1")
    assert constants_of(made)["b1_quantized_scale"] == pytest.approx(product)
    with pytest.raises(RecipeError, match="must be True"):
        quantize_vai(make_cnn(), {"AdjustBiasScale": False})


# Calibration --------------------------------------------------------------------------------


@option("CalibTensorRangeSymmetric")
def test_symmetric_ranges():
    made = quantize_vai(make_cnn(), {"CalibTensorRangeSymmetric": True})
    assert zero_point(made, "r2") in (127, 128)
    # Powers of two are symmetric unless told otherwise.
    plain = quantize_vai(make_cnn(), calibrate_method="NonOverflow")
    made = quantize_vai(
        make_cnn(), {"CalibTensorRangeSymmetric": False}, calibrate_method="NonOverflow"
    )
    assert zero_point(plain, "r2") == 128 and zero_point(made, "r2") == 0


def growing_samples():
    return [{"x": np.full((1, 16), size, np.float32)} for size in (1.0, 1.0, 1.0, 10.0)]


@option("CalibMovingAverage", "CalibMovingAverageConstant")
def test_extremes_are_averaged_with_the_constant():
    samples = growing_samples()
    whole = quantize_vai(make_mlp(), samples=samples)
    assert scale(whole, "x") == pytest.approx(10 / 255)
    options = {"CalibMovingAverage": True, "CalibMovingAverageConstant": 0.5}
    made = quantize_vai(make_mlp(), options, samples=samples)
    assert scale(made, "x") == pytest.approx(5.5 / 255)
    made = quantize_vai(make_mlp(), {"CalibMovingAverage": True}, samples=samples)
    assert scale(made, "x") == pytest.approx(1.09 / 255)


@option("MinMSEMode", "MinMSEModePof2Scale")
@pytest.mark.filterwarnings("ignore:option 'MinMSEMode':DeprecationWarning")
@pytest.mark.parametrize("key", ["MinMSEMode", "MinMSEModePof2Scale"])
def test_the_scale_that_is_best_for_most_batches(key):
    rng = np.random.default_rng(0)
    sizes = (1, 1, 1, 30)
    samples = [{"x": (rng.standard_normal((64, 16)) * s).astype(np.float32)} for s in sizes]
    every = quantize_vai(make_mlp(), {key: "All"}, samples=samples, calibrate_method="MinMSE")
    most = quantize_vai(make_mlp(), {key: "MostCommon"}, samples=samples, calibrate_method="MinMSE")
    assert scale(every, "x") >= 8 * scale(most, "x")


@option("WeightCalibrateMethod")
def test_weights_are_searched_for_the_least_error():
    constants = {"w": np.append(normal(255, size=0.1), np.float32(1)).reshape(16, 16)}
    model = build(
        [node("MatMul", ["x", "w"], ["y"], name="m")], {"x": [4, 16]}, {"y": [4, 16]}, constants
    )
    plain = quantize_vai(model)
    assert scale(plain, "w") == pytest.approx(1 / 127)
    assert scale(quantize_vai(model, {"WeightCalibrateMethod": "MinMSE"}), "w") <= scale(plain, "w")


@option("Percentile")
def test_the_percentile():
    made = [
        quantize_vai(make_cnn(), {"Percentile": share}, calibrate_method="Percentile")
        for share in (90.0, 99.999)
    ]
    assert scale(made[0], "x") < 0.7 * scale(made[1], "x")


@option("LWPMetric", "PercentileCandidates")
def test_the_best_of_a_few_percentiles():
    method = vai_q_onnx.LayerWiseMethod.LayerWisePercentile
    made = [
        quantize_vai(
            make_cnn(),
            {"PercentileCandidates": [share], "LWPMetric": "mse"},
            calibrate_method=method,
        )
        for share in (90.0, 99.999)
    ]
    assert scale(made[0], "x") < 0.7 * scale(made[1], "x")
    assert recipe_of(made[0])["ranges"]["metric"] == "mse"
    with pytest.raises(RecipeError, match="'mae' or 'mse'"):
        read_options({"LWPMetric": "max"})
    with pytest.raises(RecipeError, match="LayerWisePercentile only"):
        quantize_vai(make_cnn(), {"LWPMetric": "mae"})


@option("NumBins", "NumQuantizedBins")
def test_bins_of_the_entropy_search():
    made = quantize_vai(
        make_cnn(), {"NumBins": 512, "NumQuantizedBins": 64}, calibrate_method="Entropy"
    )
    assert recipe_of(made)["ranges"]["bins"] == 512
    assert recipe_of(made)["ranges"]["levels"] == 64


@option("CalibDataSize")
def test_only_so_many_samples_are_used():
    made = quantize_vai(make_mlp(), {"CalibDataSize": 3}, samples=growing_samples())
    assert scale(made, "x") == pytest.approx(1 / 255)


@option("CalibOptimizeMem", "CalibWorkerNum")
def test_bounds_of_memory_and_threads_change_nothing():
    made = quantize_vai(make_cnn(), {"CalibOptimizeMem": False, "CalibWorkerNum": 4})
    assert made.graph == quantize_vai(make_cnn()).graph
    with pytest.raises(RecipeError, match="True or False"):
        quantize_vai(make_cnn(), {"CalibOptimizeMem": "yes"})


@option("SaveAndRestore", "TensorsRangeFile")
@pytest.mark.parametrize("key", ["SaveAndRestore", "TensorsRangeFile"])
@pytest.mark.filterwarnings("ignore:option 'TensorsRangeFile':DeprecationWarning")
def test_what_was_observed_is_kept_in_a_file(key, tmp_path):
    kept = tmp_path / "ranges"
    model = make_cnn()
    first = quantize_vai(model, {key: str(kept)})
    assert kept.exists()
    again = vai_q_onnx.quantize_static(
        model,
        calibrate_method="MinMax",
        activation_type=QuantType.QUInt8,
        extra_options={key: kept},
    )
    assert again.graph == first.graph


@option("UseRandomData", "RandomDataReaderInputDataRange", "RandomDataReaderInputShape")
def test_random_data_has_the_range_and_the_shape_that_was_asked_for():
    options = {
        "UseRandomData": True,
        "RandomDataReaderInputDataRange": {"x": [-4.0, 4.0]},
        "RandomDataReaderInputShape": {"x": [32, 16]},
    }
    with pytest.warns(UserWarning, match="random numbers"):
        made = vai_q_onnx.quantize_static(
            make_mlp(), calibrate_method="MinMax", extra_options=options
        )
    assert scale(made, "x") == pytest.approx(8 / 255, rel=0.02)
    with pytest.raises(RecipeError, match="of 'x' is a pair of numbers"):
        read_options({"RandomDataReaderInputDataRange": {"x": 4}})


# Which nodes, and where pairs go ------------------------------------------------------------


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
    # On the NPU, where a bias is like a weight, that goes for it too.
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
    assert recipe_of(made)["place"]["unquantized_nodes"] == ["residual"]
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


def activation_model(op_type):
    extra = {"Clip": ["low", "high"], "PRelu": ["slope"]}.get(op_type, [])
    constants = {
        "w": weight(4, 3, 1, 1),
        "low": np.float32(0),
        "high": np.float32(6),
        "slope": np.full((4, 1, 1), 0.25, np.float32),
    }
    used = {name: value for name, value in constants.items() if name in ("w", *extra)}
    nodes = [conv(["x", "w"], "c", "conv"), node(op_type, ["c", *extra], ["y"], name="act")]
    return build(nodes, {"x": [1, 3, 6, 6]}, {"y": [1, 4, 6, 6]}, used)


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


@option("UseQDQVitisCustomOps")
def test_pairs_of_the_vendor_or_of_the_standard():
    arguments = {"quant_format": VitisQuantFormat.QDQ, "weight_type": VitisQuantType.QInt8}
    made = quantize_vai(make_cnn(), **arguments)
    assert ops(made)["VitisQuantizeLinear"] and not ops(made)["QuantizeLinear"]
    made = quantize_vai(make_cnn(), {"UseQDQVitisCustomOps": False}, **arguments)
    assert ops(made)["QuantizeLinear"] and not ops(made)["VitisQuantizeLinear"]


# Rewrites -----------------------------------------------------------------------------------


@option("RemoveInputInit")
def test_initializers_among_the_inputs_become_constants_or_stay():
    model = make_cnn()
    model.graph.input.append(info("w1", [8, 3, 3, 3]))
    made = quantize_vai(model, {"RemoveInputInit": True})
    assert [value.name for value in made.graph.input] == ["x"]
    kept = quantize_vai(model, {"RemoveInputInit": False})
    assert [value.name for value in kept.graph.input] == ["x", "w1"]
    assert dequantizer_before(kept, "conv1", 1) is None
    assert dequantizer_before(kept, "conv2", 1) is not None


@option("FoldBatchNorm", "SimplifyModel", "FillAllValueInfo", "CopyBiasInit", "TmpDir")
@option("QuantizeFP16", "UseFP32Scale", "RefineBlockAxis", "AlignEltwiseQuantType", "BF16WithClip")
@option("AlignTranspose", "AlignReshape", "LWPUseHistogram", "CLEBalanceMethod")
def test_what_happens_anyway_may_be_asked_for(tmp_path):
    switches = (
        "FoldBatchNorm SimplifyModel FillAllValueInfo QuantizeFP16 UseFP32Scale RefineBlockAxis "
        "AlignEltwiseQuantType AlignTranspose AlignReshape LWPUseHistogram BF16WithClip"
    ).split()
    asked = {**dict.fromkeys(switches, True), "CLEBalanceMethod": "max", "TmpDir": tmp_path}
    model = make_cnn()
    assert quantize_vai(model, {**asked, "CopyBiasInit": ["Conv"]}) == quantize_vai(model)
    for key in switches:
        with pytest.raises(RecipeError, match=f"{key}' must be True, not False: .+"):
            read_options({key: False})


def image_model(*nodes, constants=None, shape=(1, 3, 6, 6), out=None):
    return build(list(nodes), {"x": list(shape)}, {"y": out}, constants or {})


NORM = {name: np.abs(normal(3, seed=i)) + np.float32(0.5) for i, name in enumerate("gbmv")}
REWRITES = {
    "ConvertBNToConv": (
        image_model(
            node("BatchNormalization", ["x", "g", "b", "m", "v"], ["n"], name="norm"),
            node("Relu", ["n"], ["r"], name="relu"),
            conv(["r", "w"], "y", "conv"),
            constants={**NORM, "w": weight(4, 3, 1, 1)},
        ),
        "BatchNormalization",
    ),
    "ConvertReduceMeanToGlobalAvgPool": (
        image_model(
            conv(["x", "w"], "c", "conv"),
            node("ReduceMean", ["c"], ["y"], name="mean", axes=[2, 3]),
            constants={"w": weight(4, 3, 1, 1)},
        ),
        "ReduceMean",
    ),
    "ConvertSplitToSlice": (
        image_model(
            conv(["x", "w"], "c", "conv"),
            node("Split", ["c"], ["s", "t"], name="split", axis=1),
            node("Add", ["s", "t"], ["y"], name="sum"),
            constants={"w": weight(4, 3, 1, 1)},
        ),
        "Split",
    ),
}


@option(*REWRITES)
@pytest.mark.parametrize("key", REWRITES)
def test_ops_are_rewritten_for_the_npu(key):
    model, op_type = REWRITES[key]
    assert ops(on_npu(model))[op_type] == 0
    assert ops(on_npu(model, {key: False}))[op_type] == 1
    assert ops(quantize_vai(model))[op_type] == 1
    assert ops(quantize_vai(model, {key: True}))[op_type] == 0


@option("SplitLargeKernelPool")
def test_large_pools_are_split():
    model = image_model(
        conv(["x", "w"], "c", "conv"),
        node("GlobalAveragePool", ["c"], ["y"], name="pool"),
        constants={"w": weight(4, 3, 1, 1)},
        shape=(1, 3, 32, 32),
    )
    assert ops(on_npu(model))["AveragePool"] == 1
    assert ops(on_npu(model, {"SplitLargeKernelPool": False}))["AveragePool"] == 0


def instance_norm_model():
    ones = np.ones((1, 4, 1, 1), np.float32)
    constants = {
        "w": weight(4, 3, 1, 1),
        "e": np.float32(1e-5).reshape(1),
        "g": 2 * ones,
        "b": 0.5 * ones,
    }
    return image_model(
        conv(["x", "w"], "c", "conv"),
        node("GlobalAveragePool", ["c"], ["mean"], name="n1"),
        node("Sub", ["c", "mean"], ["d"], name="n2"),
        node("Mul", ["d", "d"], ["sq"], name="n3"),
        node("GlobalAveragePool", ["sq"], ["var"], name="n4"),
        node("Add", ["var", "e"], ["ve"], name="n5"),
        node("Sqrt", ["ve"], ["sd"], name="n6"),
        node("Reciprocal", ["sd"], ["r"], name="n7"),
        node("Mul", ["r", "g"], ["rg"], name="n8"),
        node("Mul", ["c", "rg"], ["left"], name="n9"),
        node("Mul", ["mean", "rg"], ["mrg"], name="n10"),
        node("Sub", ["b", "mrg"], ["right"], name="n11"),
        node("Add", ["left", "right"], ["y"], name="n12"),
        constants=constants,
    )


def l2_norm_model():
    return build(
        [
            node("MatMul", ["x", "w"], ["m"], name="mm"),
            node("Mul", ["m", "m"], ["sq"], name="n1"),
            node("ReduceSum", ["sq", "axes"], ["s"], name="n2", keepdims=1),
            node("Max", ["s", "e"], ["t"], name="n3"),
            node("Sqrt", ["t"], ["q"], name="n4"),
            node("Reciprocal", ["q"], ["r"], name="n5"),
            node("Mul", ["m", "r"], ["y"], name="n6"),
        ],
        {"x": [4, 8]},
        {"y": [4, 8]},
        {"w": weight(8, 8), "axes": np.array([-1]), "e": np.float32(1e-12).reshape(1)},
    )


@option("FuseInstanceNorm", "FuseL2Norm")
@pytest.mark.parametrize(
    ("key", "make", "op_type"),
    [
        ("FuseInstanceNorm", instance_norm_model, "InstanceNormalization"),
        ("FuseL2Norm", l2_norm_model, "LpNormalization"),
    ],
)
def test_pieces_of_a_norm_become_one(key, make, op_type):
    model = make()
    assert ops(on_npu(model))[op_type] == 0
    made = on_npu(model, {key: True})
    assert ops(made)[op_type] == 1
    assert quality(model, made, make_samples(model)) > 20


@option("ConvertClipToRelu", "ReplaceClip6Relu")
@pytest.mark.parametrize("key", ["ConvertClipToRelu", "ReplaceClip6Relu"])
def test_clips_from_zero_become_relus(key):
    model = activation_model("Clip")
    assert ops(on_npu(model))["Clip"] == 1
    made = on_npu(model, {key: True})
    assert ops(made)["Clip"] == 0 and ops(made)["Relu"] == 1


# Stand-ins ----------------------------------------------------------------------------------


def behind_conv(*nodes, constants=None, shape=(1, 3, 6, 6)):
    return image_model(
        conv(["x", "w"], "c", "conv"),
        *nodes,
        constants={"w": weight(4, 3, 1, 1), **(constants or {})},
        shape=shape,
    )


def attributes_of(model, op_type):
    found = next(n for n in model.graph.node if n.op_type == op_type)
    return {a.name: helper.get_attribute_value(a) for a in found.attribute}


@option("SimulateDPU", "ConvertLeakyReluToDPUVersion")
def test_leaky_relus_have_slopes_in_256ths():
    model = behind_conv(node("LeakyRelu", ["c"], ["y"], name="act", alpha=0.1))
    assert attributes_of(on_npu(model), "LeakyRelu")["alpha"] == 26 / 256
    for options in ({"SimulateDPU": False}, {"ConvertLeakyReluToDPUVersion": False}):
        assert attributes_of(on_npu(model, options), "LeakyRelu")["alpha"] == pytest.approx(0.1)
    # Without the NPU nothing stands in for anything, unless asked for.
    assert attributes_of(quantize_vai(model), "LeakyRelu")["alpha"] == pytest.approx(0.1)
    made = quantize_vai(model, {"SimulateDPU": True})
    assert attributes_of(made, "LeakyRelu")["alpha"] == 26 / 256


@option("ConvertSigmoidToHardSigmoid", "ConvertHardSigmoidToDPUVersion")
def test_sigmoids_become_hard_and_hard_ones_are_scaled():
    model = behind_conv(node("Sigmoid", ["c"], ["y"], name="act"))
    made = on_npu(model)
    assert ops(made)["HardSigmoid"] == 1 and ops(made)["Mul"] == 1
    assert ops(on_npu(model, {"ConvertSigmoidToHardSigmoid": False}))["Sigmoid"] == 1
    made = on_npu(model, {"ConvertHardSigmoidToDPUVersion": False})
    assert ops(made)["HardSigmoid"] == 1 and ops(made)["Mul"] == 0


@option("ConvertAvgPoolToDPUVersion")
def test_average_pools_are_scaled():
    pool = node("AveragePool", ["c"], ["y"], name="pool", kernel_shape=[3, 3])
    model = behind_conv(pool)
    assert ops(on_npu(model))["Mul"] == 1
    assert ops(on_npu(model, {"ConvertAvgPoolToDPUVersion": False}))["Mul"] == 0


@option("ConvertReduceMeanToDPUVersion")
def test_means_are_scaled():
    model = behind_conv(node("ReduceMean", ["c"], ["y"], name="mean", axes=[2, 3]))
    options = {"ConvertReduceMeanToGlobalAvgPool": False}
    assert ops(on_npu(model, options))["Mul"] == 1
    options["ConvertReduceMeanToDPUVersion"] = False
    assert ops(on_npu(model, options))["Mul"] == 0


@option("ConvertSoftmaxToDPUVersion", "ConvertInstanceNormToDPUVersion")
@pytest.mark.parametrize(
    ("key", "nodes", "constants"),
    [
        ("ConvertSoftmaxToDPUVersion", node("Softmax", ["c"], ["y"], name="op", axis=1), {}),
        (
            "ConvertInstanceNormToDPUVersion",
            node("InstanceNormalization", ["c", "g", "b"], ["y"], name="op"),
            {"g": np.ones(4, np.float32), "b": np.zeros(4, np.float32)},
        ),
    ],
)
def test_softmax_and_instance_norm_in_bfloat16_steps(key, nodes, constants):
    model = behind_conv(nodes, constants=constants)
    plain, made = on_npu(model), on_npu(model, {key: True})
    assert ops(plain)[nodes.op_type] == 1 and ops(made)[nodes.op_type] == 0
    assert quality(model, made, make_samples(model)) > 15


@option("ConvertClipToDPUVersion")
def test_bounds_of_a_clip_become_integers():
    constants = {"low": np.float32(-1.4), "high": np.float32(2.6)}
    model = behind_conv(node("Clip", ["c", "low", "high"], ["y"], name="clip"), constants=constants)

    def bounds(made):
        return [constants_of(made)[n].item() for n in nodes_by_name(made)["clip"].input[1:]]

    assert bounds(on_npu(model)) == pytest.approx([-1.4, 2.6])
    assert bounds(on_npu(model, {"ConvertClipToDPUVersion": True})) == [-1, 3]


# Limits -------------------------------------------------------------------------------------


def two_branches(op_type, small, **attributes):
    constants = {
        "w1": weight(4, 3, 1, 1, seed=1),
        "w2": weight(4, 3, 1, 1, seed=2) * np.float32(small),
    }
    nodes = [
        conv(["x", "w1"], "a", "left"),
        conv(["x", "w2"], "b", "right"),
        node(op_type, ["a", "b"], ["y"], name="join", **attributes),
    ]
    return image_model(*nodes, constants=constants)


def cancelling_sum():
    kernel = weight(4, 3, 1, 1, seed=1)
    nodes = [
        conv(["x", "w1"], "a", "left"),
        conv(["x", "w2"], "b", "right"),
        node("Add", ["a", "b"], ["y"], name="join"),
    ]
    return image_model(*nodes, constants={"w1": kernel, "w2": kernel * np.float32(-0.9999)})


def lone_conv(size, bias):
    constants = {"w": weight(4, 3, 1, 1) * np.float32(size), "b": normal(4, seed=3, size=bias)}
    return image_model(conv(["x", "w", "b"], "y", "conv"), constants=constants)


def hard_sigmoid(size):
    return image_model(
        conv(["x", "w"], "c", "conv"),
        node("HardSigmoid", ["c"], ["y"], name="hard", alpha=1 / 6, beta=0.5),
        constants={"w": weight(4, 3, 1, 1) * np.float32(size)},
    )


def swish_of_next_to_nothing():
    """Large and negative, or -2.999: of all that the swish leaves next to nothing."""
    kernel = -300 * np.abs(weight(4, 3, 1, 1))
    return image_model(
        node("Relu", ["x"], ["r"], name="relu"),
        conv(["r", "w", "bias"], "c", "conv"),
        node("HardSigmoid", ["c"], ["h"], name="hard", alpha=1 / 6, beta=0.5),
        node("Mul", ["c", "h"], ["y"], name="swish"),
        constants={"w": kernel.astype(np.float32), "bias": np.full(4, -2.999, np.float32)},
    )


def violates_concat(made):
    return len({position(made, name) for name in "aby"}) > 1


def violates_pool(made):
    return position(made, "c") != position(made, "y")


def violates_read(made):
    return abs(position(made, "a") - position(made, "b")) > 7


def violates_write(made):
    return not -7 <= min(position(made, "a"), position(made, "b")) - position(made, "y") <= 25


def cut(made):
    return position(made, "w") + position(made, "x") - position(made, "y")


def violates_cut(made):
    return not 0 <= cut(made) <= 16


def violates_bias(made):
    shift = position(made, "w") + position(made, "x") - position(made, "b")
    return not min(0, -(24 - (8 + cut(made)))) <= shift <= 15


def violates_hard_sigmoid(made):
    return not 0 <= position(made, "c") <= 15


def violates_swish(made):
    shift = position(made, "c") + position(made, "h") - position(made, "y")
    return not 0 <= shift <= 15


POOL = node("AveragePool", ["c"], ["y"], name="pool", kernel_shape=[6, 6])
PAD = node("Pad", ["c", "pads", "value"], ["y"], name="pad")
PADDING = {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "value": np.float32(50)}
LIMITS = {
    "AlignConcat": (lambda: two_branches("Concat", 0.05, axis=1), violates_concat),
    "AlignPool": (lambda: behind_conv(POOL), violates_pool),
    "AlignPad": (lambda: behind_conv(PAD, constants=PADDING), violates_pool),
    "AdjustShiftRead": (lambda: two_branches("Add", 1e-4), violates_read),
    "AdjustShiftWrite": (cancelling_sum, violates_write),
    "AdjustShiftCut": (lambda: lone_conv(1e-4, 100), violates_cut),
    "AdjustShiftBias": (lambda: lone_conv(1, 1e-6), violates_bias),
    "AdjustHardSigmoid": (lambda: hard_sigmoid(300), violates_hard_sigmoid),
    "AdjustShiftSwish": (swish_of_next_to_nothing, violates_swish),
}


@option(*LIMITS, "NPULimitationCheck", "IPULimitationCheck")
@pytest.mark.filterwarnings("ignore:option 'IPULimitationCheck':DeprecationWarning")
@pytest.mark.parametrize("key", LIMITS)
def test_a_limit_is_kept_on_its_switch(key):
    make, violates = LIMITS[key]
    # Without the NPU's own factor behind pools and sigmoids, whose outputs have other names.
    plain = {"SimulateDPU": False}
    # A bias may be brought within its limit by way of the weight, and a swish is a product.
    overlapping = {"AdjustShiftCut": "AdjustShiftBias", "AdjustShiftSwish": "AdjustShiftWrite"}
    if key in overlapping:
        plain[overlapping[key]] = False
    assert not violates(on_npu(make(), plain))
    assert violates(on_npu(make(), {**plain, key: False}))
    for switch in ("NPULimitationCheck", "IPULimitationCheck"):
        assert violates(on_npu(make(), {**plain, switch: False}))


@option("AlignSlice")
def test_a_slice_has_the_scale_of_what_it_reads():
    constants = {"s": np.array([0]), "e": np.array([2]), "a": np.array([1])}
    model = behind_conv(node("Slice", ["c", "s", "e", "a"], ["y"], name="cut"), constants=constants)
    for options in ({}, {"AlignSlice": True}, {"AlignSlice": False}):
        assert producer_of(on_npu(model, options), "y").input[1] == "c_scale"


@option("MaxLoopNum")
def test_rounds_over_the_limits():
    assert recipe_of(on_npu(make_cnn(), {"MaxLoopNum": 2}))["limits"]["max_rounds"] == 2


# Equalization -------------------------------------------------------------------------------


def uneven_chain():
    sizes = np.float32([100, 1, 0.01, 10]).reshape(4, 1, 1, 1)
    constants = {
        "w1": weight(4, 3, 1, 1, seed=1) * sizes,
        "b1": normal(4, seed=2, size=500),
        "w2": weight(4, 4, 1, 1, seed=3),
        "w3": weight(4, 4, 1, 1, seed=4) * sizes,
    }
    return image_model(
        conv(["x", "w1", "b1"], "c1", "one"),
        node("Relu", ["c1"], ["r1"], name="relu1"),
        conv(["r1", "w2"], "c2", "two"),
        node("Relu", ["c2"], ["r2"], name="relu2"),
        conv(["r2", "w3"], "y", "three"),
        constants=constants,
    )


def equalized(**options):
    made = quantize_vai(uneven_chain(), options, include_cle=True)
    return [float(scale(made, name)) for name in ("w1", "w2", "w3")]


@option("CLESteps", "CLETotalLayerDiffThreshold")
def test_sweeps_of_equalization():
    once = equalized()
    assert once == equalized(CLESteps=1)
    thrice = equalized(CLESteps=3)
    until_still = equalized(CLESteps=-1)
    assert once != thrice != until_still
    assert equalized(CLESteps=-1, CLETotalLayerDiffThreshold=1e9) == once
    plain = quantize_vai(uneven_chain())
    assert scale(plain, "w1") > 2 * once[0]


@option("CLEScaleAppendBias")
def test_the_bias_counts_as_a_weight():
    assert equalized(CLEScaleAppendBias=False) != equalized(CLEScaleAppendBias=True)


@option("CLEWeightThreshold", "CLEScaleUseThreshold")
def test_small_channels_are_left_alone():
    plain = quantize_vai(uneven_chain())
    unmoved = [float(scale(plain, name)) for name in ("w1", "w2", "w3")]
    assert equalized(CLEWeightThreshold=1e9) == unmoved
    free = equalized(CLEScaleUseThreshold=False)
    assert free != unmoved
    assert free == equalized(CLEScaleUseThreshold=False, CLEWeightThreshold=1e9)


@option("SmoothAlpha")
def test_how_much_of_the_outliers_moves():
    samples = make_samples(make_mlp())
    for sample in samples:
        sample["x"][:, 3] *= 100
    made = [
        quantize_vai(make_mlp(), {"SmoothAlpha": alpha}, samples=samples, include_sq=True)
        for alpha in (0.2, 0.8)
    ]
    assert scale(made[0], "w1") < scale(made[1], "w1")


def n_bits(model, extra=None, **settings):
    options = {"UseMatMulNBits": True, "MatMulNBitsParams": settings, **(extra or {})}
    return vai_q_onnx.quantize_static(model, None, make_samples(model, 4), extra_options=options)


@option("UseMatMulNBits", "MatMulNBitsParams", "GPTQParams")
def test_weights_alone_in_few_bits():
    model = make_mlp()
    made = n_bits(model, GroupSize=16, Bits=8, Symmetric=False, AccuracyLevel=4)
    products = [n for n in made.graph.node if n.op_type == "MatMulNBits"]
    found = {a.name: helper.get_attribute_value(a) for a in products[0].attribute}
    assert (found["bits"], found["block_size"], found["accuracy_level"]) == (8, 16, 4)
    assert len(products[0].input) == 4  # a zero point
    assert quality(model, made, make_samples(model)) > 35
    errors = [
        quality(model, n_bits(model, extra, Algorithm=name, GroupSize=32), make_samples(model))
        for name, extra in (("DEFAULT", {}), ("HQQ", {}), ("GPTQ", {"GPTQParams": {"MSE": True}}))
    ]
    assert len({round(float(error), 3) for error in errors}) == 3
    assert min(errors) > 10
    no_data = vai_q_onnx.quantize_static(model, extra_options={"UseMatMulNBits": True})
    assert ops(no_data)["MatMulNBits"] == len(products)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"MatMulNBitsParams": {"Bits": 4}}, "goes with UseMatMulNBits=True"),
        ({"GPTQParams": {"MSE": True}}, "goes with UseMatMulNBits=True"),
        ({"UseMatMulNBits": True, "CLESteps": 2}, "'CLESteps' has no effect with UseMatMulNBits"),
        ({"UseMatMulNBits": True, "MatMulNBitsParams": {"Bit": 4}}, "Did you mean 'Bits'?"),
        ({"UseMatMulNBits": True, "MatMulNBitsParams": {"Bits": True}}, "of the type int"),
        ({"UseMatMulNBits": True, "MatMulNBitsParams": 4}, "is a dict of settings, not 4"),
        (
            {"UseMatMulNBits": True, "MatMulNBitsParams": {"Algorithm": "GPTK"}},
            "Did you mean 'GPTQ'?",
        ),
    ],
)
def test_mistakes_about_weights_alone(options, said):
    model = make_mlp()
    with pytest.raises(RecipeError) as caught:
        vai_q_onnx.quantize_static(model, None, make_samples(model), extra_options=options)
    assert said in str(caught.value)


# The list itself ----------------------------------------------------------------------------


@option("FastFinetune")
def test_fine_tuning_reaches_the_recipe():
    # Its keys, and what each of them changes, have a file of tests of their own.
    asked = read_options({"FastFinetune": {"NumIterations": 7}}).fine_tune
    assert asked["asked"].method.iterations == 7


@option("BiasCorrection")
def test_bias_correction_reaches_the_recipe():
    # What it does has a file of tests of its own.
    assert read_options({"BiasCorrection": True}).recipe["bias_correction"] == "sequential"


def test_every_key_has_its_test():
    assert {*OPTIONS, *OLD_NAMES} == TESTED


@pytest.mark.parametrize("key", REFUSED)
def test_keys_without_a_counterpart_are_refused_with_a_reason(key):
    with pytest.raises(RecipeError, match=f"'{key}' is not supported: .+"):
        read_options({key: {"any": 1}})
    read_options(
        {
            key: None,
        }
    )


def test_the_guide_names_every_key():
    guide = (Path(__file__).parents[3] / "docs" / "from-vitis-ai.md").read_text()
    missing = [key for key in (*OPTIONS, *OLD_NAMES, *REFUSED) if f"`{key}`" not in guide]
    assert not missing


def test_the_keys_of_the_documentation_are_all_here():
    documented = """
    ActivationSymmetric WeightSymmetric UseUnsignedReLU QuantizeBias RemoveInputInit EnableSubgraph
    ForceQuantizeNoInputCheck MatMulConstBOnly AddQDQPairToWeight DedicatedQDQPair MinMSEMode
    OpTypesToExcludeOutputQuantization QDQOpTypePerChannelSupportToAxis UseQDQVitisCustomOps
    CalibTensorRangeSymmetric CalibMovingAverage CalibMovingAverageConstant Int16Scale
    RandomDataReaderInputDataRange ConvertBNToConv ConvertReduceMeanToGlobalAvgPool
    SplitLargeKernelPool ConvertSplitToSlice FuseInstanceNorm FuseL2Norm ConvertClipToRelu
    SimulateDPU ConvertLeakyReluToDPUVersion ConvertSigmoidToHardSigmoid
    ConvertHardSigmoidToDPUVersion ConvertAvgPoolToDPUVersion ConvertReduceMeanToDPUVersion
    ConvertSoftmaxToDPUVersion IPULimitationCheck AdjustShiftCut AdjustShiftBias AdjustShiftRead
    AdjustShiftWrite AdjustHardSigmoid AdjustShiftSwish AlignConcat AlignPool ReplaceClip6Relu
    CLESteps CLETotalLayerDiffThreshold CLEScaleAppendBias RemoveQDQConvLeakyRelu
    RemoveQDQConvPRelu
    """.split()
    assert set(documented) <= {*OPTIONS, *OLD_NAMES}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("MinMSEMode", ["All"]),
        ("RemoveQDQBetweenOps", 1),
        ("Int32Bias", "yes"),
        ("AlignTranspose", 1.5),
        ("CLESteps", 1.5),
        ("CalibDataSize", float("inf")),
    ],
)
def test_a_value_of_the_wrong_kind_is_one_sentence(key, value):
    with pytest.raises(RecipeError, match=key):
        read_options({key: value})


@pytest.mark.parametrize(
    "key",
    ["OpTypesToExcludeOutputQuantization", "QDQOpTypePerChannelSupportToAxis", "UseMatMulNBits"],
)
def test_none_leaves_an_option_where_it_is(key):
    assert read_options({key: None}).place == {}


def test_extra_options_are_a_dict_of_names():
    for wrong in (["AlignConcat"], "AlignConcat", {1: True}):
        with pytest.raises(RecipeError, match="extra_options is a dict of option names"):
            read_options(wrong)


@pytest.mark.parametrize(
    "arguments",
    [
        {"nodes_to_exclude": "conv"},
        {"input_nodes": [None]},
        {"op_types_to_quantize": 1},
        {"per_channel": "no"},
        {"enable_dpu": "IPU"},
        {"quant_format": ["QDQ"]},
        {"weight_type": {}},
    ],
)
def test_an_argument_of_the_wrong_kind_is_one_sentence(arguments):
    with pytest.raises(RecipeError):
        vai_q_onnx.quantize_static(make_mlp(), None, make_samples(make_mlp()), **arguments)


@pytest.mark.parametrize(("value", "mode"), [(True, "sequential"), (False, None), (None, None)])
def test_the_option_asks_for_the_correction_that_compares_outputs(value, mode):
    assert read_options({"BiasCorrection": value}).recipe.get("bias_correction") == mode


def test_a_bias_correction_is_on_or_off():
    with pytest.raises(RecipeError, match="'BiasCorrection' is True or False, not 'fast'"):
        read_options({"BiasCorrection": "fast"})
