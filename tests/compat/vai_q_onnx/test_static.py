"""`quantize_static` with the Vitis AI quantizer's arguments."""

from __future__ import annotations

import warnings

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
    weight,
)
from support.vai_q_onnx import quantize_vai

import bitwright
import bitwright.compat.vai_q_onnx as vai_q_onnx
from bitwright.errors import DataError
from bitwright.recipe import Recipe, named_recipe

ORT = onnxruntime.quantization


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
    """Return what the model was made with, but for names that no node has: recipes refuse them."""
    found = {prop.key: prop.value for prop in model.metadata_props}
    recipe = Recipe.from_json(found["bitwright.recipe"])
    assert recipe.select.unknown_names == "warn"
    return recipe.replace(select=recipe.select.replace(unknown_names="refuse"))


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
    assert all(scale.size == 1 for scale in scales_of(model))


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
    monkeypatch.setattr("bitwright.compat.vai_q_onnx.static._warned", set())
    with pytest.warns(DeprecationWarning, match=said) as caught:
        first = vai_q_onnx.quantize_static(paths[0], None, Reader(paths[2]), **arguments)
        again = vai_q_onnx.quantize_static(paths[0], None, Reader(paths[2]), **arguments)
    assert [str(w.message) for w in caught].count(str(caught[0].message)) == 1
    assert caught[0].filename == __file__
    assert first.graph == again.graph


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


def test_input_and_output_nodes_bound_what_is_quantized(paths):
    made = quantize_vai(
        paths[0], samples=paths[2], input_nodes=["conv2"], output_nodes=["residual"]
    )
    assert dequantizes(made, "conv2") and dequantizes(made, "residual")
    assert not dequantizes(made, "conv1") and not dequantizes(made, "fc")


def test_tensors_stand_for_the_nodes_that_read_or_write_them(paths):
    by_tensor = quantize_vai(paths[0], samples=paths[2], input_nodes=["x"], output_nodes=["y"])
    assert by_tensor.graph == quantize_vai(paths[0], samples=paths[2]).graph


def test_parts_of_the_graph_stay_float(paths):
    made = quantize_vai(
        paths[0], samples=paths[2], subgraphs_to_exclude=[(["conv2"], ["residual"])]
    )
    assert dequantizes(made, "conv1") and dequantizes(made, "fc")
    assert not dequantizes(made, "conv2") and not dequantizes(made, "residual")


def test_nodes_and_op_types_are_chosen(paths):
    made = quantize_vai(
        paths[0], samples=paths[2], op_types_to_quantize=["Conv"], nodes_to_exclude=["^conv2.*"]
    )
    assert dequantizes(made, "conv1") and not dequantizes(made, "conv2")
    assert not dequantizes(made, "fc")
    made = quantize_vai(paths[0], samples=paths[2], nodes_to_quantize=["fc"])
    assert dequantizes(made, "fc") and not dequantizes(made, "conv1")


def test_per_channel_and_reduced_ranges(paths):
    made = constants_of(
        quantize_vai(paths[0], samples=paths[2], per_channel=True, reduce_range=True)
    )
    assert made["w1_scale"].shape == (8,)
    assert np.abs(made["w1_quantized"].astype(int)).max() == 64


def test_large_models_have_their_weights_beside_them(paths, tmp_path):
    onnx.save(make_cnn(channels=32), paths[0])
    vai_q_onnx.quantize_static(paths[0], paths[1], Reader(paths[2]), use_external_data_format=True)
    assert {path.name for path in tmp_path.iterdir()} > {"float.onnx", "quantized.onnx"}
    check(paths)


def test_execution_providers_are_checked(paths):
    with pytest.raises(bitwright.TargetError, match="NoSuchExecutionProvider"):
        quantize_vai(paths[0], samples=paths[2], execution_providers=["NoSuchExecutionProvider"])


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
    quantize_vai(paths[0], samples=paths[2], print_summary=True)
    assert "nodes quantized" in capsys.readouterr().out
    quantize_vai(paths[0], samples=paths[2])
    assert capsys.readouterr().out == ""


def test_extra_op_types_join_the_usual_ones(paths):
    made = quantize_vai(paths[0], samples=paths[2], extra_op_types_to_quantize=["Erf"])
    assert made.graph == quantize_vai(paths[0], samples=paths[2]).graph


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


def test_quantize_static_corrects_biases(tmp_path):
    import onnx

    from bitwright.compat import vai_q_onnx

    model = make_cnn()
    onnx.save(model, tmp_path / "model.onnx")
    written = []
    for option in (False, True):
        out = tmp_path / f"{option}.onnx"
        vai_q_onnx.quantize_static(
            str(tmp_path / "model.onnx"),
            str(out),
            Reader(make_samples(model, 8)),
            extra_options={"BiasCorrection": option},
        )
        written.append(onnx.load(out))
    recipes = [
        next(p.value for p in m.metadata_props if p.key == "bitwright.recipe") for m in written
    ]
    assert '"bias_correction":"sequential"' in recipes[1].replace(" ", "")
    assert '"bias_correction":"off"' in recipes[0].replace(" ", "")


@pytest.mark.parametrize("switch", ["enable_npu_cnn", "enable_npu_transformer"])
def test_shapes_that_the_npu_does_not_take_are_warned_of(switch):
    demo = bitwright.load_demo()
    options = {"activation_type": "QUInt8", switch: True}
    with pytest.warns(UserWarning, match="'image' has the open size batch, and the NPU takes"):
        vai_q_onnx.quantize_static(demo.model_path, None, demo.calibration[:4], **options)
    fixed = onnx.load(demo.model_path)
    fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*the NPU takes fixed shapes")
        vai_q_onnx.quantize_static(fixed, None, demo.calibration[:4], **options)
