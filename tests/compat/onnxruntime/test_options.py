"""Every key of `extra_options`: what it changes in the model that is written."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnxruntime.quantization as peer
import pytest
from onnx import TensorProto, helper
from support.models import (
    BOOL,
    Reader,
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
    parameters_of,
    producer_of,
    quality,
    quantize_static_in,
    run,
    run_plain,
    sqnr,
    weight,
)

import bitwright.compat.onnxruntime as ours
from bitwright.compat.onnxruntime import CalibrationDataReader, CalibrationMethod, QuantType
from bitwright.compat.onnxruntime.options import OPTIONS
from bitwright.errors import RecipeError

TESTED = set()


def option(*keys):
    """Mark what a test shows, so that no key is left out."""
    TESTED.update(keys)
    return lambda function: function


def quantize_unsigned(folder, model, samples=None, *, options=None, **arguments):
    arguments.setdefault("activation_type", QuantType.QUInt8)
    return quantize_static_in(
        folder,
        model,
        make_samples(model) if samples is None else samples,
        extra_options=options or {},
        **arguments,
    )


def scale_of(model, tensor):
    scale, zero_point = (constants_of(model)[f"{tensor}_{end}"] for end in ("scale", "zero_point"))
    return scale, zero_point


def is_zero(array):
    return not np.any(array)


@option("ActivationSymmetric")
def test_symmetric_activations_have_zero_in_the_middle(tmp_path):
    model = make_cnn()
    assert scale_of(quantize_unsigned(tmp_path, model), "r2")[1] == 0
    made = quantize_unsigned(tmp_path, model, options={"ActivationSymmetric": True})
    assert scale_of(made, "r2")[1] == 128
    made = quantize_unsigned(
        tmp_path,
        model,
        options={"ActivationSymmetric": True},
        activation_type=QuantType.QInt8,
    )
    assert scale_of(made, "x")[1] == 0


@option("ActivationRestrictedAsymmetric")
def test_restricted_zero_points_are_0_or_128(tmp_path):
    model = make_cnn()
    made = quantize_unsigned(tmp_path, model, options={"ActivationRestrictedAsymmetric": True})
    points = {int(scale_of(made, tensor)[1]) for tensor in ("x", "r1", "c2", "r2", "y")}
    assert points == {0, 128}
    assert scale_of(made, "r2")[1] == 0 and scale_of(made, "x")[1] == 128


@option("WeightSymmetric")
def test_weights_may_be_asymmetric(tmp_path):
    model = make_mlp()
    assert is_zero(scale_of(quantize_unsigned(tmp_path, model), "w1")[1])
    made = quantize_unsigned(tmp_path, model, options={"WeightSymmetric": False})
    assert not is_zero(scale_of(made, "w1")[1])
    made = quantize_unsigned(
        tmp_path, model, options={"WeightSymmetric": True}, weight_type=QuantType.QUInt8
    )
    assert scale_of(made, "w1")[1] == 128


@option("MinimumRealRange")
def test_narrow_ranges_are_widened(tmp_path):
    model = make_mlp()
    samples = [{"x": np.full((1, 16), 1e-7, np.float32)}]
    made = quantize_unsigned(tmp_path, model, samples, options={"MinimumRealRange": 0.01})
    assert scale_of(made, "x")[0] == pytest.approx(0.01 / 255, rel=1e-5)


@option("EnableSubgraph")
def test_bodies_are_quantized_when_asked(tmp_path):
    def body(name, seed):
        inner = [node("MatMul", ["x", f"w_{name}"], [f"y_{name}"], name=f"in_{name}")]
        constant = onnx.numpy_helper.from_array(weight(8, 8, seed=seed), f"w_{name}")
        return helper.make_graph(inner, name, [], [info(f"y_{name}", [4, 8])], [constant])

    nodes = [
        node("If", ["c"], ["b"], name="if", then_branch=body("a", 1), else_branch=body("b", 2)),
        node("MatMul", ["b", "w"], ["y"], name="after"),
    ]
    model = build(
        nodes,
        [info("x", [4, 8]), info("c", [], BOOL)],
        [info("y", [4, 8])],
        {"w": weight(8, 8)},
    )
    samples = [{"x": normal(4, 8, seed=i), "c": np.array(i % 2 == 0)} for i in range(4)]

    def quantizers_inside(made):
        owner = nodes_by_name(made)["if"]
        return sum(n.op_type == "DequantizeLinear" for a in owner.attribute for n in a.g.node)

    assert quantizers_inside(quantize_unsigned(tmp_path, model, samples)) == 0
    made = quantize_unsigned(tmp_path, model, samples, options={"EnableSubgraph": True})
    assert quantizers_inside(made) > 0
    assert quality(model, made, samples) > 30


@option("ForceQuantizeNoInputCheck")
def test_data_movement_is_quantized_also_behind_float(tmp_path):
    nodes = [
        node("Erf", ["x"], ["e"], name="erf"),
        node("Transpose", ["e"], ["t"], name="turn", perm=[1, 0]),
        node("Erf", ["t"], ["f"], name="erf2"),
        node("MatMul", ["f", "w"], ["y"], name="mm"),
    ]
    model = build(nodes, {"x": [8, 4]}, {"y": [4, 8]}, {"w": weight(8, 8)})
    assert dequantizer_before(quantize_unsigned(tmp_path, model), "turn", 0) is None
    made = quantize_unsigned(tmp_path, model, options={"ForceQuantizeNoInputCheck": True})
    assert dequantizer_before(made, "turn", 0) is not None


@option("MatMulConstBOnly")
def test_products_of_two_activations_stay_float_in_qoperator_only(tmp_path):
    model = make_transformer()
    chosen = {"options": {"MatMulConstBOnly": True}, "op_types_to_quantize": ["MatMul"]}
    with pytest.warns(UserWarning, match="MatMulConstBOnly.*only QOperator and dynamic"):
        made = quantize_unsigned(tmp_path, model, **chosen)
    assert dequantizer_before(made, "scores", 1) is not None
    made = quantize_unsigned(tmp_path, model, **chosen, quant_format="QOperator")
    assert nodes_by_name(made)["scores"].op_type == "MatMul"
    assert nodes_by_name(made)["q_matmul_quant"].op_type == "QLinearMatMul"


@option("AddQDQPairToWeight")
def test_float_weights_with_pairs(tmp_path):
    made = quantize_unsigned(tmp_path, make_mlp(), options={"AddQDQPairToWeight": True})
    assert element_types(made)["w1"] == TensorProto.FLOAT
    assert producer_of(made, dequantizer_before(made, "first", 1).input[0]).input[0] == "w1"


@option("DedicatedQDQPair")
def test_a_pair_for_each_reader(tmp_path):
    model = make_cnn()
    shared = quantize_unsigned(tmp_path, model)
    made = quantize_unsigned(tmp_path, model, options={"DedicatedQDQPair": True})
    readers = [("conv2", 0), ("residual", 1)]
    assert len({dequantizer_before(shared, *reader).name for reader in readers}) == 1
    assert len({dequantizer_before(made, *reader).name for reader in readers}) == 2


@option("QDQKeepRemovableActivations")
def test_relus_are_kept_when_asked(tmp_path):
    model = make_cnn()
    assert ops(quantize_unsigned(tmp_path, model))["Relu"] == 0
    made = quantize_unsigned(tmp_path, model, options={"QDQKeepRemovableActivations": True})
    assert ops(made)["Relu"] == 2


@option("QDQDisableWeightAdjustForInt32Bias")
def test_weight_scales_are_widened_for_a_huge_bias_unless_told_not_to(tmp_path):
    constants = {"w": weight(4, 4, 1, 1, seed=1) * np.float32(1e-6), "b": normal(4, size=1e6)}
    model = build(
        [node("Conv", ["x", "w", "b"], ["y"], name="conv")],
        {"x": [1, 4, 6, 6]},
        {"y": [1, 4, 6, 6]},
        constants,
    )
    adjusted = quantize_unsigned(tmp_path, model)
    key = "QDQDisableWeightAdjustForInt32Bias"
    plain = quantize_unsigned(tmp_path, model, options={key: True})
    assert scale_of(adjusted, "w")[0] > 2 * scale_of(plain, "w")[0]
    samples = make_samples(model)
    assert quality(model, adjusted, samples) > quality(model, plain, samples) + 20


@option("UseQDQContribOps")
def test_contrib_operators(tmp_path):
    made = quantize_unsigned(tmp_path, make_mlp(), options={"UseQDQContribOps": True})
    domains = {n.domain for n in made.graph.node if n.op_type.endswith("quantizeLinear")}
    assert domains == {"com.microsoft"}


@option("QuantizeBias")
def test_a_bias_stays_float_when_asked(tmp_path):
    assert (
        element_types(quantize_unsigned(tmp_path, make_cnn()))["b1_quantized"] == TensorProto.INT32
    )
    made = quantize_unsigned(tmp_path, make_cnn(), options={"QuantizeBias": False})
    assert element_types(made)["b1"] == TensorProto.FLOAT


@option("OpTypesToExcludeOutputQuantization")
def test_outputs_of_these_types_have_no_pair(tmp_path):
    made = quantize_unsigned(
        tmp_path, make_cnn(), options={"OpTypesToExcludeOutputQuantization": ["Gemm"]}
    )
    assert producer_of(made, "y").op_type == "Gemm"
    assert producer_of(quantize_unsigned(tmp_path, make_cnn()), "y").op_type == "DequantizeLinear"


@option("QDQOpTypePerChannelSupportToAxis")
def test_the_axis_of_channels(tmp_path):
    options = {"QDQOpTypePerChannelSupportToAxis": {"MatMul": {"axis": -1}}}
    made = quantize_unsigned(tmp_path, make_mlp(), options=options, per_channel=True)
    assert scale_of(made, "w2")[0].shape == (4,)
    # Of 16-bit weights the runtime takes any axis.
    options = {"QDQOpTypePerChannelSupportToAxis": {"MatMul": 0}}
    made = quantize_unsigned(
        tmp_path,
        make_mlp(),
        options=options,
        per_channel=True,
        weight_type=QuantType.QInt16,
        activation_type=QuantType.QUInt16,
    )
    assert scale_of(made, "w2")[0].shape == (16,)


@option("BlockSize")
def test_weights_in_blocks(tmp_path):
    # Of 8-bit weights in blocks the runtime makes a QLinearMatMul that it does not have.
    made = quantize_unsigned(
        tmp_path, make_mlp(), options={"BlockSize": 4}, weight_type=QuantType.QInt4
    )
    assert scale_of(made, "w1")[0].shape == (4, 16)
    dequantizer = dequantizer_before(made, "first", 1)
    assert {a.name: a.i for a in dequantizer.attribute} == {"axis": 0, "block_size": 4}


# TensorQuantOverrides -------------------------------------------------------------------------


def overridden(folder, tensor, *entries, model=None, **arguments):
    options = {"TensorQuantOverrides": {tensor: list(entries)}}
    return quantize_unsigned(folder, model or make_cnn(), options=options, **arguments)


@option("TensorQuantOverrides")
def test_an_override_of_type_and_symmetry(tmp_path):
    made = overridden(tmp_path, "x", {"quant_type": QuantType.QUInt16, "symmetric": True})
    assert element_types(made)["x_zero_point"] == TensorProto.UINT16
    assert scale_of(made, "x")[1] == 32768


def test_an_override_of_the_range_and_of_the_parameters(tmp_path):
    made = overridden(tmp_path, "x", {"rmin": -2.0, "rmax": np.float32(3.1)})
    assert scale_of(made, "x")[0] == pytest.approx(5.1 / 255)
    given = {"scale": np.array(0.5, np.float32), "zero_point": np.array(7, np.uint8)}
    made = overridden(tmp_path, "x", given)
    assert scale_of(made, "x") == (0.5, 7)


def test_an_override_reduces_one_weights_range(tmp_path):
    made = overridden(tmp_path, "w1", {"reduce_range": True})
    stored = constants_of(made)
    assert np.abs(stored["w1_quantized"].astype(int)).max() == 64
    assert np.abs(stored["w2_quantized"].astype(int)).max() == 127


def test_one_weight_per_channel_all_alike_or_each_its_own(tmp_path):
    made = overridden(tmp_path, "w1", {"axis": 0, "quant_type": QuantType.QInt8})
    assert scale_of(made, "w1")[0].shape == (8,)
    assert scale_of(made, "w2")[0].shape == ()
    entries = [{"axis": 0, "rmin": -i, "rmax": i} for i in range(1, 9)]
    made = overridden(tmp_path, "w1", *entries)
    np.testing.assert_allclose(scale_of(made, "w1")[0], np.arange(1, 9) / 127, rtol=1e-6)
    entries = [{"axis": 0, "scale": 0.01 * i, "zero_point": 0} for i in range(1, 9)]
    made = overridden(tmp_path, "w1", *entries)
    np.testing.assert_allclose(scale_of(made, "w1")[0], 0.01 * np.arange(1, 9), rtol=1e-6)


def test_one_weight_in_blocks(tmp_path):
    entry = {"axis": 0, "block_size": 8, "quant_type": QuantType.QInt4}
    made = overridden(tmp_path, "w1", entry, model=make_mlp())
    assert scale_of(made, "w1")[0].shape == (2, 16)
    assert scale_of(made, "w2")[0].shape == ()


def wiring(model):
    """The pairs of a model by name: node -> (type, inputs, outputs)."""
    return {
        n.name: (n.op_type, tuple(n.input), tuple(n.output))
        for n in model.graph.node
        if n.op_type.endswith("quantizeLinear") or n.op_type == "QuantizeLinear"
    }


CONVERTED = [
    # (tensor, recv_nodes): of an input, in the middle for all or some, a result with no reader
    ("x", None),
    ("p1", None),
    ("p1", {"conv2"}),
    ("p1", {"conv2", "residual"}),
    ("y", None),
]


@pytest.mark.parametrize(("tensor", "receivers"), CONVERTED)
def test_convert_is_wired_as_the_peers(tmp_path, tensor, receivers):
    model = make_cnn(opset=21, ir_version=10)
    samples = make_samples(model)
    convert = {"quant_type": QuantType.QUInt16}
    if receivers is not None:
        convert["recv_nodes"] = receivers
    made = overridden(tmp_path, tensor, {"convert": convert}, model=model)
    onnx.save(model, tmp_path / "float.onnx")
    entry = {"quant_type": peer.QuantType.QUInt8, "convert": {**convert}}
    entry["convert"]["quant_type"] = peer.QuantType.QUInt16
    peer.quantize_static(
        tmp_path / "float.onnx",
        tmp_path / "peer.onnx",
        Reader(samples),
        activation_type=peer.QuantType.QUInt8,
        extra_options={"TensorQuantOverrides": {tensor: [entry]}},
    )
    theirs = wiring(onnx.load(tmp_path / "peer.onnx"))
    mine = {name: wires for name, wires in wiring(made).items() if name.startswith(f"{tensor}_")}
    assert mine == {n: wires for n, wires in theirs.items() if n.startswith(f"{tensor}_")}
    assert quality(model, made, samples) > 30


def test_the_second_type_is_what_its_readers_get(tmp_path):
    model = make_cnn()
    convert = {"quant_type": QuantType.QUInt16, "recv_nodes": {"conv2"}}
    made = overridden(tmp_path, "p1", {"convert": convert})
    assert parameters_of(made, dequantizer_before(made, "conv2", 0))[1].dtype == np.uint16
    assert parameters_of(made, dequantizer_before(made, "residual", 1))[1].dtype == np.uint8
    # The bias of a node goes with the scale that the node really reads.
    scales = [parameters_of(made, dequantizer_before(made, "conv2", i))[0] for i in range(3)]
    assert scales[2] == pytest.approx(scales[0] * scales[1], rel=1e-6)
    assert quality(model, made, make_samples(model)) > 30


def test_convert_with_a_range_or_parameters_of_its_own(tmp_path):
    convert = {"quant_type": QuantType.QUInt16, "rmin": -10.0, "rmax": 10.0}
    made = overridden(tmp_path, "x", {"convert": convert})
    assert constants_of(made)["x_scale_convert"] == pytest.approx(20 / 65535)
    convert = {"quant_type": QuantType.QInt16, "scale": 0.25, "zero_point": 5}
    made = overridden(tmp_path, "x", {"convert": convert})
    assert constants_of(made)["x_scale_convert"] == 0.25
    assert constants_of(made)["x_zero_point_convert"] == 5


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([{"convert": {"quant_type": "QUInt8"}}], "already is of the type uint8"),
        ([{"convert": {"quant_type": "QUInt16", "recv_nodes": "conv2"}}], "list of names"),
        ([{"convert": 3}], "is a dict"),
        ([{"quant_type": "QInt9"}], "unknown quant_type"),
        ([{"scale": 1.0}], "both scale and zero_point"),
        ([{"scale": 1.0, "zero_point": 0, "symmetric": True}], "leaves nothing for symmetric"),
        ([{}, {}], "needs 'axis'"),
        ([{"reduce_range": True}], "'reduce_range' is only supported for initializers"),
        ([{"axis": 0}], "has per-channel overrides, but is not an initializer"),
    ],
)
def test_wrong_overrides_are_refused_in_a_sentence(tmp_path, entries, said):
    with pytest.raises(RecipeError, match=said) as error:
        overridden(tmp_path, "p1", *entries)
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"symetric": True}, "Did you mean 'symmetric'"),
        ({"convert": {"quant_type": "QUInt16", "axis": 0}}, "option 'axis' in .* is unknown"),
        ({"convert": {"quant_type": "QUInt16", "recv_nodes": {"cnv2"}}}, "no node 'cnv2'"),
    ],
)
def test_what_an_override_says_in_vain_is_a_warning(tmp_path, entry, said):
    with pytest.warns(UserWarning, match=said):
        overridden(tmp_path, "p1", entry)


def test_one_end_of_a_range_may_be_given(tmp_path):
    model = make_cnn()
    highest = max(float(sample["x"].max()) for sample in make_samples(model))
    made = overridden(tmp_path, "x", {"rmin": -100.0})
    np.testing.assert_allclose(scale_of(made, "x")[0], (highest + 100) / 255, rtol=1e-6)


def test_a_weight_without_an_axis_is_per_tensor_and_a_bias_is_like_a_weight(tmp_path):
    options = {"TensorQuantOverrides": {"w1": [{}], "b2": [{"axis": 0}]}}
    made = quantize_unsigned(tmp_path, make_cnn(), options=options, per_channel=True)
    stored = constants_of(made)
    assert stored["w1_scale"].shape == () and stored["w2_scale"].shape == (8,)
    assert stored["b2_scale"].shape == (8,) and stored["b2_quantized"].dtype == np.int8


def test_convert_is_for_activations_in_shared_pairs(tmp_path):
    convert = {"convert": {"quant_type": QuantType.QUInt16}}
    with pytest.raises(RecipeError, match="Cannot use 'convert' override for initializers"):
        overridden(tmp_path, "w1", convert)
    options = {"TensorQuantOverrides": {"p1": [convert]}, "DedicatedQDQPair": True}
    with pytest.raises(RecipeError, match="dedicated_pairs"):
        quantize_unsigned(tmp_path, make_cnn(), options=options)


# Calibration ----------------------------------------------------------------------------------


@option("CalibTensorRangeSymmetric")
def test_ranges_are_widened_to_both_sides(tmp_path):
    model = make_cnn()
    made = quantize_unsigned(tmp_path, model, options={"CalibTensorRangeSymmetric": True})
    assert scale_of(made, "r2")[1] == 128
    # The Relu cannot be left to a quantizer that covers negative numbers.
    assert ops(made)["Relu"] == 2
    assert quality(model, made, make_samples(model)) > 30


def growing(count=6):
    return [{"x": np.full((1, 16), float(i + 1), np.float32)} for i in range(count)]


@option("CalibMovingAverage", "CalibMovingAverageConstant")
def test_a_moving_average_is_the_mean_of_batches(tmp_path):
    def highest(**options):
        return (
            float(
                scale_of(quantize_unsigned(tmp_path, make_mlp(), growing(), options=options), "x")[
                    0
                ]
            )
            * 255
        )

    assert highest() == pytest.approx(6.0)
    for constant in (0.01, 0.5):  # it has an effect between several collections only
        found = highest(CalibMovingAverage=True, CalibMovingAverageConstant=constant)
        assert found == pytest.approx(3.5, rel=1e-5)


@option("CalibPercentile")
def test_the_percentile(tmp_path):
    samples = [{"x": normal(64, 16, seed=i)} for i in range(4)]
    scales = [
        float(
            scale_of(
                quantize_unsigned(
                    tmp_path,
                    make_mlp(),
                    samples,
                    options={"CalibPercentile": percentile},
                    calibrate_method=CalibrationMethod.Percentile,
                ),
                "x",
            )[0]
        )
        for percentile in (90.0, 99.0, 100.0)
    ]
    assert scales == sorted(set(scales))
    assert scales[0] * 255 == pytest.approx(2 * 1.645, rel=0.1)  # of the normal distribution


@option("CalibMaxIntermediateOutputs")
@pytest.mark.parametrize("bound", [1, 4, 5])
def test_a_bound_on_memory_loses_no_sample(tmp_path, bound):
    made = quantize_unsigned(
        tmp_path, make_mlp(), growing(), options={"CalibMaxIntermediateOutputs": bound}
    )
    assert float(scale_of(made, "x")[0]) * 255 == pytest.approx(6.0)


class RangedReader(CalibrationDataReader):
    """Gives nothing before its range is set, as readers for strided calibration do."""

    def __init__(self, samples):
        self.samples = samples
        self.left = iter(())
        self.ranges = []

    def get_next(self):
        return next(self.left, None)

    def __len__(self):
        return len(self.samples)

    def set_range(self, start_index, end_index):
        self.ranges.append((start_index, end_index))
        self.left = iter(self.samples[start_index:end_index])


@option("CalibStridedMinMax")
def test_a_reader_is_asked_part_by_part(tmp_path):
    model = make_mlp()
    reader = RangedReader(growing())
    from bitwright.compat.onnxruntime import quantize_static

    quantize_static(
        model,
        tmp_path / "q.onnx",
        reader,
        activation_type=QuantType.QUInt8,
        extra_options={"CalibStridedMinMax": 4},
    )
    assert reader.ranges == [(0, 4), (4, 6)]
    made = onnx.load(tmp_path / "q.onnx")
    assert float(scale_of(made, "x")[0]) * 255 == pytest.approx(6.0)
    # What has no ranges is read as it is.
    made = quantize_unsigned(tmp_path, model, growing(), options={"CalibStridedMinMax": 4})
    assert float(scale_of(made, "x")[0]) * 255 == pytest.approx(6.0)


# Smoothing, types, ranges by definition ---------------------------------------------------------


def make_with_outliers():
    scale = np.ones(16, np.float32)
    scale[[2, 9]] = 50
    constants = {"s": scale, "w": (weight(16, 16, seed=1).T / scale).T}
    nodes = [
        node("LayerNormalization", ["x", "s"], ["n"], name="norm"),
        node("MatMul", ["n", "w"], ["y"], name="product"),
    ]
    return build(nodes, {"x": [4, 16]}, {"y": [4, 16]}, constants)


@option("SmoothQuant", "SmoothQuantAlpha", "SmoothQuantFolding")
def test_smoothing_moves_outliers_into_the_weight(tmp_path):
    model = make_with_outliers()
    samples = make_samples(model, 16)

    def made(**options):
        return quantize_unsigned(
            tmp_path, model, samples, options=options, op_types_to_quantize=["MatMul"]
        )

    plain, smooth = made(), made(SmoothQuant=True)
    assert quality(model, smooth, samples) > quality(model, plain, samples) + 6
    assert ops(smooth)["Mul"] == 0
    assert ops(made(SmoothQuant=True, SmoothQuantFolding=False))["Mul"] == 1
    # At 0 the activations keep their outliers, and the weights take none.
    none = made(SmoothQuant=True, SmoothQuantAlpha=0.0)
    half = made(SmoothQuant=True, SmoothQuantAlpha=0.5)
    assert quality(model, half, samples) > quality(model, none, samples)
    assert made(SmoothQuant=False) == plain


def test_settings_of_smoothing_alone_are_ignored(tmp_path):
    with pytest.warns(UserWarning, match="SmoothQuantAlpha.*SmoothQuant=True"):
        quantize_unsigned(tmp_path, make_mlp(), options={"SmoothQuantAlpha": 0.4})


@option("DefaultTensorType")
def test_tensors_of_unknown_type_are_taken_for_floats(tmp_path):
    nodes = [
        node("Inverse", ["x"], ["i"], name="inverse", domain="com.microsoft"),
        node("MatMul", ["i", "w"], ["y"], name="product"),
    ]
    model = build(
        nodes,
        {"x": [4, 4]},
        {"y": [4, 4]},
        {"w": weight(4, 4)},
        domains=("com.microsoft",),
    )
    samples = [{"x": np.eye(4, dtype=np.float32) * (i + 1)} for i in range(4)]
    with pytest.warns(UserWarning, match="type of its input 'i' is not known"):
        quantize_unsigned(tmp_path, model, samples)
    made = quantize_unsigned(
        tmp_path, model, samples, options={"DefaultTensorType": TensorProto.FLOAT}
    )
    assert dequantizer_before(made, "product", 0) is not None
    with pytest.raises(RecipeError, match="DefaultTensorType"):
        quantize_unsigned(
            tmp_path, model, samples, options={"DefaultTensorType": TensorProto.INT64}
        )


@option("extra.Sigmoid.nnapi")
@pytest.mark.parametrize("kind", ["QUInt8", "QInt8"])
def test_a_sigmoid_of_nnapi_has_steps_of_1_in_256(tmp_path, kind):
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="product"),
        node("Sigmoid", ["h"], ["s"], name="sigmoid"),
        node("MatMul", ["s", "w"], ["y"], name="second"),
    ]
    model = build(nodes, {"x": [4, 8]}, {"y": [4, 8]}, {"w": weight(8, 8)})
    lowest = {"QUInt8": 0, "QInt8": -128}[kind]
    arguments = {"activation_type": QuantType[kind]}
    assert scale_of(quantize_unsigned(tmp_path, model, **arguments), "s")[0] != 1 / 256
    made = quantize_unsigned(tmp_path, model, options={"extra.Sigmoid.nnapi": True}, **arguments)
    assert scale_of(made, "s") == (1 / 256, lowest)
    assert quality(model, made, make_samples(model)) > 30


# The rest -------------------------------------------------------------------------------------


def test_every_key_has_a_test():
    assert set(OPTIONS) == TESTED


def test_every_key_that_the_peer_reads_is_known():
    import re
    from pathlib import Path

    source = "".join(path.read_text() for path in Path(peer.__file__).parent.glob("*.py"))
    read = set(re.findall(r"extra_options\.get\(\s*\"([A-Z][\w.]+)\"", source))
    read |= set(re.findall(r"\"([A-Z]\w+)\" (?:not )?in (?:self\.)?extra_options", source))
    assert len(read) > 15
    assert read <= set(OPTIONS)


def test_the_cache_is_read_in_place_of_the_data(tmp_path):
    model, cache = make_mlp(), tmp_path / "cache"
    samples = make_samples(model)
    first = quantize_unsigned(tmp_path, model, samples, calibration_cache_path=cache)
    # The second run takes its ranges from the file: other data makes no difference.
    again = quantize_unsigned(tmp_path, model, growing(), calibration_cache_path=cache)
    assert scale_of(first, "h") == scale_of(again, "h")


def test_none_leaves_an_option_at_its_default(tmp_path):
    model = make_mlp()
    plain = quantize_unsigned(tmp_path, model)
    options = dict.fromkeys(["WeightSymmetric", "MinimumRealRange", "SmoothQuant", "QuantizeBias"])
    assert quantize_unsigned(tmp_path, model, options=options) == plain


def test_the_numbers_of_the_models_are_finite(tmp_path):
    made = quantize_unsigned(tmp_path, make_cnn(), options={"CalibTensorRangeSymmetric": True})
    (output,) = run(made, make_samples(make_cnn(), 1)[0])
    assert math.isfinite(float(np.abs(output).max()))


def make_shared_pool():
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv"),
        node("MaxPool", ["c"], ["t"], name="pool", kernel_shape=[1, 1]),
        node("Conv", ["t", "v"], ["y"], name="conv2"),
        node("Conv", ["t", "v"], ["z"], name="conv3"),
    ]
    outputs = [info(name, [1, 4, 6, 6]) for name in "yzt"]
    constants = {"w": weight(4, 3, 3, 3), "v": weight(4, 4, 1, 1)}
    return build(nodes, {"x": [1, 3, 8, 8]}, outputs, constants)


@pytest.mark.parametrize("own", [{}, {"quant_type": "QUInt8"}])
@pytest.mark.parametrize("receivers", [{"conv2"}, {"conv2", "conv3"}, None])
def test_names_around_a_converted_output_that_shares_its_scale_are_the_peers(
    tmp_path, receivers, own
):
    model = make_shared_pool()
    samples = make_samples(model)
    found = []
    for module in (ours, peer):
        kinds = {name: module.QuantType[kind] for name, kind in own.items()}
        convert = {"quant_type": module.QuantType.QUInt16}
        if receivers is not None:
            convert["recv_nodes"] = receivers
        path = tmp_path / f"{module.__name__}.onnx"
        module.quantize_static(
            onnx.ModelProto.FromString(model.SerializeToString()),
            path,
            Reader(samples),
            activation_type=module.QuantType.QUInt8,
            extra_options={"TensorQuantOverrides": {"t": [{**kinds, "convert": convert}]}},
        )
        graph = onnx.load(path).graph
        nodes = {n.name: (n.op_type, list(n.input), list(n.output)) for n in graph.node}
        found.append((nodes, {tensor.name for tensor in graph.initializer}))
    assert found[0] == found[1]


@pytest.mark.parametrize("per_channel", [False, True])
def test_weights_in_blocks_are_written_for_runtimes_that_take_them(tmp_path, per_channel):
    model = make_mlp(width=64)
    samples = make_samples(model)
    with pytest.warns(UserWarning, match="default optimization level"):
        made = quantize_unsigned(
            tmp_path, model, samples, options={"BlockSize": 16}, per_channel=per_channel
        )
    shape = (64, 4) if per_channel else (4, 64)
    assert constants_of(made)["w1_scale"].shape == shape
    (found,), (wanted,) = run_plain(made, samples[0]), run(model, samples[0])
    assert sqnr(wanted, found) > 25


def test_activations_of_four_bits(tmp_path):
    model = make_mlp(opset=21)
    samples = make_samples(model)
    made = quantize_unsigned(
        tmp_path, model, samples, options={"TensorQuantOverrides": {"h": [{"quant_type": "QInt4"}]}}
    )
    assert element_types(made)["h_zero_point"] == TensorProto.INT4
    assert quality(model, made, samples) > 10


@pytest.mark.filterwarnings("ignore")
def test_float8_biases_are_cast_as_by_the_peer(tmp_path):
    model = make_cnn()
    samples = make_samples(model)
    made = []
    for tool, path in ((ours, tmp_path / "ours.onnx"), (peer, tmp_path / "peer.onnx")):
        kind = tool.QuantType.QFLOAT8E4M3FN
        tool.quantize_static(
            model,
            path,
            Reader(samples),
            activation_type=kind,
            weight_type=kind,
            calibrate_method=tool.CalibrationMethod.Distribution,
        )
        made.append(onnx.load(path))
    casts = [
        [(n.name, *n.input, *n.output) for n in each.graph.node if n.op_type == "Cast"]
        for each in made
    ]
    assert sorted(casts[0]) == sorted(casts[1]) and len(casts[0]) == 3
    stored = constants_of(made[0])["b1_quantized"]
    np.testing.assert_array_equal(stored, constants_of(model)["b1"])
    (found,), (expected,) = run_plain(made[0], samples[0]), run(model, samples[0])
    assert sqnr(expected, found) > 15


def test_float8_is_written_for_runtimes_that_take_it(tmp_path):
    model = make_mlp(width=64)
    samples = make_samples(model)
    kind = QuantType.QFLOAT8E4M3FN
    types = {"activation_type": kind, "weight_type": kind}
    with pytest.raises(ValueError, match="Only Distribution calibration method is supported"):
        quantize_unsigned(tmp_path, model, samples, **types)
    with pytest.warns(UserWarning, match="default optimization level"):
        made = quantize_unsigned(tmp_path, model, samples, calibrate_method="Distribution", **types)
    assert element_types(made)["x_zero_point"] == TensorProto.FLOAT8E4M3FN
    peer.quantize_static(
        model,
        tmp_path / "peer.onnx",
        Reader(samples),
        activation_type=peer.QuantType.QFLOAT8E4M3FN,
        weight_type=peer.QuantType.QFLOAT8E4M3FN,
        calibrate_method=peer.CalibrationMethod.Distribution,
    )
    wanted = constants_of(onnx.load(tmp_path / "peer.onnx"))
    for name in ("x_scale", "w1_scale", "y_scale"):
        np.testing.assert_allclose(constants_of(made)[name], wanted[name], rtol=5e-3)
    (found,), (expected,) = run_plain(made, samples[0]), run(model, samples[0])
    assert sqnr(expected, found) > 15
