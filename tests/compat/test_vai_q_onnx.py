"""Code written for `vai_q_onnx` runs with another import line: its documentation's examples."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime.quantization
import pytest
from onnx import TensorProto
from support.models import (
    FLOAT16,
    Reader,
    build,
    constants_of,
    info,
    make_cnn,
    make_samples,
    make_transformer,
    node,
    normal,
    ops,
    producer_of,
    quality,
    retype,
    run,
    unchanged,
    weight,
)

import bitwright
import bitwright.compat.vai_q_onnx as vai_q_onnx
from bitwright.compat.vai_q_onnx import QuantType
from bitwright.errors import DataError, RecipeError
from bitwright.recipe import Recipe, named_recipe

ORT = onnxruntime.quantization


@pytest.fixture
def paths(tmp_path):
    """A float model, where its quantized twin goes, and data: what the examples start from."""
    model = make_cnn()
    onnx.save(model, tmp_path / "float.onnx")
    return str(tmp_path / "float.onnx"), str(tmp_path / "quantized.onnx"), make_samples(model)


def check(paths, least=20.0):
    """Return the written model, once it is valid, runs, and computes about the same."""
    model_input, model_output, samples = paths
    model = onnx.load(model_output)
    onnx.checker.check_model(model, full_check=True)
    assert quality(model_input, model, samples) > least
    return model


def scales_of(model):
    return [array for name, array in constants_of(model).items() if name.endswith("_scale")]


def recipe_of(model):
    """Return what the model was made with."""
    found = {prop.key: prop.value for prop in model.metadata_props}
    return Recipe.from_json(found["bitwright.recipe"])


def is_power_of_two(scale):
    return bool(np.all(np.frexp(scale)[0] == 0.5))


# The recommended configurations -------------------------------------------------------------


def test_cnns_on_the_npu(paths):
    model_input, model_output, samples = paths
    calibration_data_reader = Reader(samples)
    returned = vai_q_onnx.quantize_static(
        model_input,
        model_output,
        calibration_data_reader,
        quant_format=vai_q_onnx.QuantFormat.QDQ,
        calibrate_method=vai_q_onnx.PowerOfTwoMethod.MinMSE,
        activation_type=vai_q_onnx.QuantType.QUInt8,
        weight_type=vai_q_onnx.QuantType.QInt8,
        enable_dpu=True,
        extra_options={"ActivationSymmetric": True},
    )
    assert returned is None
    model = check(paths)
    assert all(is_power_of_two(scale) for scale in scales_of(model))
    assert constants_of(model)["x_zero_point"] == 128
    assert recipe_of(model).replace(name="npu-cnn") == named_recipe("npu-cnn")


def test_transformers_on_the_npu(tmp_path):
    model = make_transformer()
    onnx.save(model, tmp_path / "float.onnx")
    paths = str(tmp_path / "float.onnx"), str(tmp_path / "quantized.onnx"), make_samples(model)
    vai_q_onnx.quantize_static(
        paths[0],
        paths[1],
        Reader(paths[2]),
        quant_format=vai_q_onnx.QuantFormat.QDQ,
        calibrate_method=vai_q_onnx.CalibrationMethod.MinMax,
        activation_type=vai_q_onnx.QuantType.QInt8,
        weight_type=vai_q_onnx.QuantType.QInt8,
    )
    model = check(paths)
    assert constants_of(model)["x_zero_point"].dtype == np.int8
    assert recipe_of(model).replace(name="npu-transformer") == named_recipe("npu-transformer")


def test_cnns_on_the_cpu(paths):
    model_input, model_output, samples = paths
    vai_q_onnx.quantize_static(
        model_input,
        model_output,
        Reader(samples),
        quant_format=vai_q_onnx.QuantFormat.QDQ,
        calibrate_method=vai_q_onnx.CalibrationMethod.MinMax,
        activation_type=vai_q_onnx.QuantType.QUInt8,
        weight_type=vai_q_onnx.QuantType.QInt8,
    )
    model = check(paths, least=30)
    assert constants_of(model)["x_zero_point"].dtype == np.uint8
    assert not any(is_power_of_two(scale) for scale in scales_of(model))
    assert recipe_of(model).replace(name="cpu-cnn") == named_recipe("cpu-cnn")
    assert all(scale.ndim == 0 for scale in scales_of(model))


def test_the_page_s_defaults(paths):
    vai_q_onnx.quantize_static(paths[0], paths[1], Reader(paths[2]))
    model = check(paths)
    assert all(is_power_of_two(scale) for scale in scales_of(model))
    assert constants_of(model)["x_zero_point"].dtype == np.int8


def test_every_documented_argument_may_be_given_in_its_place(paths):
    vai_q_onnx.quantize_static(paths[0], paths[1], Reader(paths[2]))
    plain = onnx.load(paths[1])
    vai_q_onnx.quantize_static(
        paths[0],
        paths[1],
        Reader(paths[2]),
        vai_q_onnx.QuantFormat.QDQ,
        vai_q_onnx.PowerOfTwoMethod.MinMSE,
        [],
        [],
        [],
        [],
        False,
        False,
        vai_q_onnx.QuantType.QInt8,
        vai_q_onnx.QuantType.QInt8,
        None,
        None,
        True,
        False,
        ["CPUExecutionProvider"],
        False,
        False,
        False,
        False,
        {},
    )
    assert onnx.load(paths[1]) == plain


# Names --------------------------------------------------------------------------------------


def test_enumerations_have_the_documented_values():
    def values(kind):
        return {member.name: member.value for member in kind}

    assert values(vai_q_onnx.PowerOfTwoMethod) == {"NonOverflow": 0, "MinMSE": 1}
    assert values(vai_q_onnx.VitisQuantFormat) == {
        "QDQ": 2,
        "FixNeuron": 3,
        "BFPFixNeuron": 4,
        "MXFixNeuron": 5,
    }
    names = "QInt8 QUInt8 QInt16 QUInt16 QInt32 QUInt32 QFloat16 QBFloat16 QBFP QMX".split()
    assert values(vai_q_onnx.VitisQuantType) == {name: i for i, name in enumerate(names, 1)}
    assert values(vai_q_onnx.ExtendedQuantFormat) == {"QOperator": 0, "QDQ": 1}
    assert values(vai_q_onnx.Int16Method) == {"MinMax": 0}
    assert values(vai_q_onnx.LayerWiseMethod) == {"LayerWisePercentile": 0}
    assert values(vai_q_onnx.ExtendedCalibrationMethod) == {"MinMSE": 0}


def test_the_top_level_has_the_same_objects():
    for name in (
        "quantize_static",
        "QuantFormat",
        "QuantType",
        "CalibrationMethod",
        "PowerOfTwoMethod",
        "VitisQuantFormat",
        "VitisQuantType",
    ):
        assert getattr(bitwright, name) is getattr(vai_q_onnx, name)


def test_the_runtime_s_own_enumerations_and_plain_names_are_understood(paths):
    vai_q_onnx.quantize_static(
        paths[0],
        paths[1],
        Reader(paths[2]),
        quant_format=ORT.QuantFormat.QDQ,
        calibrate_method=ORT.CalibrationMethod.Percentile,
        activation_type=ORT.QuantType.QUInt8,
        weight_type=ORT.QuantType.QInt8,
    )
    first = check(paths)
    made = vai_q_onnx.quantize_static(
        paths[0],
        None,
        Reader(paths[2]),
        "QDQ",
        "Percentile",
        activation_type="QUInt8",
        weight_type="QInt8",
    )
    assert made.graph == first.graph


def test_preprocessing_is_where_the_page_has_it(tmp_path):
    onnx.save(make_cnn(), tmp_path / "float.onnx")
    vai_q_onnx.shape_inference.quant_pre_process(
        input_model_path=str(tmp_path / "float.onnx"),
        output_model_path=str(tmp_path / "ready.onnx"),
        skip_optimization=False,
        verbose=0,
        all_tensors_to_one_file=False,
    )
    assert quality(tmp_path / "float.onnx", tmp_path / "ready.onnx", make_samples(make_cnn())) > 90


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"enable_dpu": True}, "enable_dpu is called enable_npu_cnn today"),
        ({"enable_ipu_cnn": True}, "enable_ipu_cnn is called enable_npu_cnn today"),
        (
            {"enable_ipu_transformer": True, "calibrate_method": "MinMax"},
            "enable_ipu_transformer is called enable_npu_transformer today",
        ),
        ({"inclue_cle": True}, "inclue_cle is called include_cle today"),
        ({"extra_options": {"MinMSEMode": "All"}}, "called 'MinMSEModePof2Scale' today"),
        (
            {"enable_npu_cnn": True, "extra_options": {"IPULimitationCheck": False}},
            "called 'NPULimitationCheck' today",
        ),
    ],
)
def test_old_names_work_and_say_so_once(paths, monkeypatch, arguments, said):
    monkeypatch.setattr("bitwright.compat.vai_q_onnx.static._told", set())
    with pytest.warns(DeprecationWarning, match=said) as caught:
        first = vai_q_onnx.quantize_static(paths[0], None, Reader(paths[2]), **arguments)
        again = vai_q_onnx.quantize_static(paths[0], None, Reader(paths[2]), **arguments)
    assert [str(w.message) for w in caught].count(str(caught[0].message)) == 1
    assert caught[0].filename == __file__
    assert first.graph == again.graph


# What is refused ----------------------------------------------------------------------------

ON_NPU = {"activation_type": QuantType.QUInt8, "enable_npu_cnn": True}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"per_channel": True}, "per_channel must be False"),
        ({"reduce_range": True}, "reduce_range must be False"),
        ({"weight_type": QuantType.QUInt8}, "weight_type must be QInt8"),
        ({"activation_type": QuantType.QInt16}, "activation_type must be QInt8 or QUInt8"),
        ({"extra_options": {"ActivationSymmetric": False}}, "ActivationSymmetric must be True"),
        ({"extra_options": {"WeightSymmetric": False}}, "WeightSymmetric must be True"),
        ({"extra_options": {"QuantizeBias": False}}, "QuantizeBias must be True"),
        ({"extra_options": {"Int16Scale": True}}, "Int16Scale must be False"),
        ({"calibrate_method": "MinMax"}, "calibrate_method must be a PowerOfTwoMethod"),
        ({"enable_npu_transformer": True}, "are two targets; choose one"),
    ],
)
def test_what_the_npu_cannot_do_is_refused(paths, tmp_path, arguments, said):
    with unchanged(tmp_path), pytest.raises(RecipeError, match=said):
        vai_q_onnx.quantize_static(paths[0], paths[1], Reader(paths[2]), **ON_NPU | arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"extra_options": {"ActivationSymetric": True}}, "Did you mean 'ActivationSymmetric'?"),
        ({"extra_options": {"MinMSEMode": "MostComon"}}, "Did you mean 'MostCommon'?"),
        ({"extra_options": {"FastFinetune": {"NumIteration": 1}}}, "Did you mean 'NumIterations'?"),
        ({"extra_options": {"Int16Bias": True, "Int32Bias": True}}, "contradict each other"),
        (
            {"extra_options": {"MinMSEMode": "All", "MinMSEModePof2Scale": "All"}},
            "are the same; give one",
        ),
        ({"extra_options": {"AlignReshape": False}}, "'AlignReshape' must be True"),
        ({"extra_options": {"CLEBalanceMethod": "mean"}}, "must be 'max', not 'mean'"),
        ({"extra_options": {"RemoveQDQBetweenOps": ["Mul"]}}, "a list of pairs of op types"),
        ({"extra_options": {"NodesToExcludeOutputQuantization": "fc"}}, "a list of node names"),
        (
            {"extra_options": {"NodesToExcludeOutputQuantization": ["residuals"]}},
            "Did you mean 'res",
        ),
        ({"extra_options": {"SaveAndRestore": True}}, "the path of a file"),
        ({"subgraphs_to_exclude": ["conv1"]}, "a list of ([first nodes], [last nodes])"),
        ({"subgraphs_to_exclude": [(["conv1"], ["conv9"])]}, "no node is called 'conv9'"),
        ({"extra_options": {"CLESteps": "many"}}, "'CLESteps' is a number"),
        ({"include_rotation": True}, "include_rotation is not supported"),
        ({"enable_dpuu": True}, "Did you mean 'enable_dpu'?"),
        ({"quant_format": "QDG"}, "unknown quantization format 'QDG'"),
        ({"calibrate_method": "MinMSE2"}, "unknown calibration method 'MinMSE2'"),
        ({"weight_type": "QInt9"}, "unknown weight type 'QInt9'"),
        ({"activation_type": vai_q_onnx.VitisQuantType.QInt32}, "VitisQuantFormat.QDQ with it"),
        ({"extra_options": {"CalibMovingAverage": True}}, "CalibrationMethod.MinMax only"),
        (
            {"calibrate_method": "MinMax", "extra_options": {"NPULimitationCheck": True}},
            "is about power-of-two scales",
        ),
        ({"input_nodes": ["conv9"]}, "no node or tensor is called 'conv9'"),
    ],
)
def test_a_mistake_gets_one_sentence_and_leaves_no_file(paths, tmp_path, arguments, said):
    with unchanged(tmp_path), pytest.raises(RecipeError) as caught:
        vai_q_onnx.quantize_static(paths[0], paths[1], Reader(paths[2]), **arguments)
    assert said in str(caught.value)


def test_settings_without_their_switch_are_told(paths, monkeypatch):
    monkeypatch.setattr("bitwright.compat.vai_q_onnx.static._told", set())
    with pytest.warns(UserWarning, match="no effect without include_cle"):
        vai_q_onnx.quantize_static(
            paths[0], None, Reader(paths[2]), extra_options={"CLESteps": 3, "AlignPool": False}
        )


def test_the_caller_s_options_are_not_written_into(paths):
    options = {"ActivationSymmetric": True}
    vai_q_onnx.quantize_static(
        paths[0], None, Reader(paths[2]), enable_npu_cnn=True, extra_options=options
    )
    assert options == {"ActivationSymmetric": True}


# Arguments ----------------------------------------------------------------------------------


def dequantizes(model, name):
    """Whether the node of this name reads dequantized values."""
    inputs = next(n for n in model.graph.node if n.name == name).input
    found = [producer_of(model, tensor) for tensor in inputs]
    return any(n is not None and n.op_type == "DequantizeLinear" for n in found)


def quantize(paths, **arguments):
    arguments.setdefault("calibrate_method", "MinMax")
    return vai_q_onnx.quantize_static(paths[0], None, Reader(paths[2]), **arguments)


def test_input_and_output_nodes_bound_what_is_quantized(paths):
    made = quantize(paths, input_nodes=["conv2"], output_nodes=["residual"])
    assert dequantizes(made, "conv2") and dequantizes(made, "residual")
    assert not dequantizes(made, "conv1") and not dequantizes(made, "fc")


def test_tensors_stand_for_the_nodes_that_read_or_write_them(paths):
    by_tensor = quantize(paths, input_nodes=["x"], output_nodes=["y"])
    assert by_tensor.graph == quantize(paths).graph


def test_parts_of_the_graph_stay_float(paths):
    made = quantize(paths, subgraphs_to_exclude=[(["conv2"], ["residual"])])
    assert dequantizes(made, "conv1") and dequantizes(made, "fc")
    assert not dequantizes(made, "conv2") and not dequantizes(made, "residual")


def test_nodes_and_op_types_are_chosen(paths):
    made = quantize(paths, op_types_to_quantize=["Conv"], nodes_to_exclude=["^conv2.*"])
    assert dequantizes(made, "conv1") and not dequantizes(made, "conv2")
    assert not dequantizes(made, "fc")
    made = quantize(paths, nodes_to_quantize=["fc"])
    assert dequantizes(made, "fc") and not dequantizes(made, "conv1")


def test_per_channel_and_reduced_ranges(paths):
    made = constants_of(quantize(paths, per_channel=True, reduce_range=True))
    assert made["w1_scale"].shape == (8,)
    assert np.abs(made["w1_quantized"].astype(int)).max() == 64


def test_large_models_have_their_weights_beside_them(paths, tmp_path):
    onnx.save(make_cnn(channels=32), paths[0])
    vai_q_onnx.quantize_static(paths[0], paths[1], Reader(paths[2]), use_external_data_format=True)
    assert {path.name for path in tmp_path.iterdir()} > {"float.onnx", "quantized.onnx"}
    check(paths)


def test_execution_providers_are_checked(paths):
    with pytest.raises(bitwright.TargetError, match="NoSuchExecutionProvider"):
        quantize(paths, execution_providers=["NoSuchExecutionProvider"])


def batch_norm_model():
    norm = {name: np.abs(normal(4, seed=i)) + 0.5 for i, name in enumerate("gbmv")}
    return build(
        [
            node("Conv", ["x", "w"], ["c"], name="conv"),
            node("BatchNormalization", ["c", "g", "b", "m", "v"], ["y"], name="norm"),
        ],
        {"x": [1, 3, 6, 6]},
        {"y": [1, 4, 6, 6]},
        {"w": weight(4, 3, 1, 1), **norm},
    )


@pytest.mark.parametrize("optimize", [True, False])
def test_the_model_is_optimized_unless_told_not_to(optimize):
    model = batch_norm_model()
    made = vai_q_onnx.quantize_static(
        model,
        None,
        Reader(make_samples(model)),
        calibrate_method="MinMax",
        optimize_model=optimize,
    )
    assert ops(made)["BatchNormalization"] == (not optimize)


def test_data_may_come_from_files(paths, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for index, sample in enumerate(paths[2]):
        np.save(folder / f"{index}.npy", sample["x"])
    made = vai_q_onnx.quantize_static(paths[0], calibration_data_path=folder)
    assert made.graph == vai_q_onnx.quantize_static(paths[0], None, Reader(paths[2])).graph
    with pytest.raises(DataError, match="give one of them"):
        vai_q_onnx.quantize_static(paths[0], None, Reader(paths[2]), calibration_data_path=folder)


def test_the_summary_is_printed_on_request(paths, capsys):
    quantize(paths, print_summary=True)
    assert "nodes quantized" in capsys.readouterr().out
    quantize(paths)
    assert capsys.readouterr().out == ""


def test_extra_op_types_join_the_usual_ones(paths):
    made = quantize(paths, extra_op_types_to_quantize=["Erf"])
    assert made.graph == quantize(paths).graph


# Random data --------------------------------------------------------------------------------


def two_input_model():
    return build(
        [
            node("MatMul", ["a", "w"], ["p"], name="left"),
            node("MatMul", ["b", "w"], ["q"], name="right"),
            node("Add", ["p", "q"], ["y"], name="sum"),
        ],
        [info("a", ["n", "k"]), info("b", ["n", "k"])],
        [info("y", ["n", 4])],
        {"w": weight(8, 4)},
    )


def dynamic_cnn():
    return build(
        [node("Conv", ["x", "w"], ["y"], name="conv")],
        {"x": ["n", 3, "h", "w"]},
        {"y": ["n", 4, "h", "w"]},
        {"w": weight(4, 3, 1, 1)},
    )


@pytest.mark.parametrize("shape", [[1, 3, 6, 6], (1, 3, 6, 6), [[1, 3, 6, 6]], {"x": [1, 3, 6, 6]}])
def test_random_data_stands_in_where_there_is_none(shape):
    with pytest.warns(UserWarning, match="random numbers"):
        made = vai_q_onnx.quantize_static(
            dynamic_cnn(), random_data_reader_input_shape=shape, calibrate_method="MinMax"
        )
    assert 0.9 / 255 < constants_of(made)["x_scale"] <= 1 / 255


def test_shapes_of_several_inputs():
    for shape in ([[2, 8], [2, 8]], {"a": (2, 8), "b": (2, 8)}):
        with pytest.warns(UserWarning, match="random numbers"):
            vai_q_onnx.quantize_static(two_input_model(), random_data_reader_input_shape=shape)
    with (
        pytest.warns(UserWarning, match="random numbers"),
        pytest.raises(DataError, match="1 shapes were given"),
    ):
        vai_q_onnx.quantize_static(two_input_model(), random_data_reader_input_shape=[2, 8])


def test_none_stands_for_an_empty_list(paths):
    with pytest.warns(UserWarning, match="random numbers"):
        made = vai_q_onnx.quantize_static(
            paths[0],
            input_nodes=None,
            output_nodes=None,
            op_types_to_quantize=None,
            random_data_reader_input_shape=None,
            extra_options=None,
        )
    assert ops(made)["QuantizeLinear"]


def test_random_data_is_said_in_the_summary(paths, capsys):
    with pytest.warns(UserWarning, match="random numbers"):
        vai_q_onnx.quantize_static(paths[0], print_summary=True)
    assert "random data" in capsys.readouterr().out


# Cross-layer equalization ---------------------------------------------------------------------


def test_quantizing_with_cross_layer_equalization(paths):
    vai_q_onnx.quantize_static(
        paths[0],
        paths[1],
        Reader(paths[2]),
        quant_format=ORT.QuantFormat.QDQ,
        calibrate_method=vai_q_onnx.PowerOfTwoMethod.MinMSE,
        activation_type=ORT.QuantType.QUInt8,
        weight_type=ORT.QuantType.QInt8,
        enable_dpu=True,
        include_cle=True,
        extra_options={
            "ActivationSymmetric": True,
            "ReplaceClip6Relu": True,
            "CLESteps": 1,
            "CLEScaleAppendBias": True,
        },
    )
    check(paths)


# Float16 ------------------------------------------------------------------------------------


def interface(model):
    return {v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)}


def test_quantizing_float16_models(paths):
    half = retype(make_cnn(), np.float16, FLOAT16)
    onnx.save(half, paths[0])
    vai_q_onnx.quantize_static(
        paths[0],
        paths[1],
        Reader(paths[2]),
        quant_format=ORT.QuantFormat.QDQ,
        calibrate_method=vai_q_onnx.PowerOfTwoMethod.MinMSE,
        activation_type=ORT.QuantType.QUInt8,
        weight_type=ORT.QuantType.QInt8,
        enable_dpu=True,
        convert_fp16_to_fp32=True,
        extra_options={"ActivationSymmetric": True},
    )
    model = onnx.load(paths[1])
    assert interface(model) == {TensorProto.FLOAT}
    assert quality(make_cnn(), model, paths[2]) > 20
    kept = vai_q_onnx.quantize_static(paths[0], None, Reader(paths[2]))
    assert interface(kept) == {FLOAT16}


# Channels last ------------------------------------------------------------------------------


def test_converting_nchw_models_to_nhwc(paths):
    vai_q_onnx.quantize_static(
        paths[0],
        paths[1],
        Reader(paths[2]),
        quant_format=ORT.QuantFormat.QDQ,
        calibrate_method=vai_q_onnx.PowerOfTwoMethod.MinMSE,
        activation_type=ORT.QuantType.QUInt8,
        weight_type=ORT.QuantType.QInt8,
        enable_dpu=True,
        extra_options={"ActivationSymmetric": True},
        convert_nchw_to_nhwc=True,
    )
    model = onnx.load(paths[1])
    dims = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    assert dims == [1, 12, 12, 3]
    turned = [{"x": sample["x"].transpose(0, 2, 3, 1)} for sample in paths[2]]
    expected, given = run(onnx.load(paths[0]), paths[2]), run(model, turned)
    assert max(np.abs(a[0] - b[0]).max() for a, b in zip(expected, given, strict=True)) < 0.2


# Other precisions ---------------------------------------------------------------------------

TYPES = vai_q_onnx.VitisQuantType


@pytest.mark.parametrize(
    ("activation", "kept", "least"),
    [
        (TYPES.QInt16, TYPES.QInt16, 60),
        (TYPES.QUInt16, TYPES.QUInt16, 50),
        (TYPES.QInt32, TYPES.QInt32, 80),
        (TYPES.QUInt32, TYPES.QUInt32, 80),
        (TYPES.QFloat16, TYPES.QFloat16, 50),
        (TYPES.QBFloat16, TYPES.QBFloat16, 35),
        (TYPES.QInt16, ORT.QuantType.QInt8, 30),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_quantizing_to_other_precisions(paths, activation, kept, least):
    vai_q_onnx.quantize_static(
        paths[0],
        paths[1],
        Reader(paths[2]),
        calibrate_method=vai_q_onnx.PowerOfTwoMethod.MinMSE,
        quant_format=vai_q_onnx.VitisQuantFormat.QDQ,
        activation_type=activation,
        weight_type=kept,
    )
    model = check(paths, least)
    assert ops(model)["VitisQuantizeLinear"] and ops(model)["VitisDequantizeLinear"]


def test_fix_neurons(paths):
    vai_q_onnx.quantize_static(
        paths[0], paths[1], Reader(paths[2]), quant_format=vai_q_onnx.VitisQuantFormat.FixNeuron
    )
    model = check(paths)
    assert ops(model)["FixNeuron"] and not ops(model)["QuantizeLinear"]
