"""`quantize_qat` by ONNX Runtime's old name."""

import numpy as np
import onnx
import pytest
from support.models import make_mlp, ops, run, run_plain
from support.qat_models import Trained, largest_difference, samples_for

import bitwright
import bitwright.compat.onnxruntime as ours
from bitwright.compat.onnxruntime import QuantFormat, QuantType, quantize_qat


@pytest.fixture
def model():
    t = Trained()
    y = t.add("Relu", [t.conv(t.pair("x", 0.04, 128), "a", axis=0)])
    return t.model(t.pair(t.conv(t.pair(y, 0.05), "b", (5, 4), axis=0), 0.05, 128))


def test_it_writes_a_model_that_answers_as_the_trained_one(model, tmp_path):
    path = tmp_path / "q.onnx"
    assert quantize_qat(model, path) is None
    samples = samples_for()
    assert largest_difference(run_plain(model, samples), run(onnx.load(path), samples)) <= 0.0501
    assert ops(path)["DequantizeLinear"] == 7 and "Relu" not in ops(path)


def test_integer_ops_are_written_on_request(model, tmp_path):
    path = tmp_path / "q.onnx"
    quantize_qat(model, path, quant_format=QuantFormat.QOperator)
    assert ops(path)["QLinearConv"] == 2 and "Conv" not in ops(path)
    samples = samples_for()
    assert largest_difference(run_plain(model, samples), run(onnx.load(path), samples)) <= 0.0501


def test_a_path_works_as_well_as_a_message(model, tmp_path):
    onnx.save(model, tmp_path / "in.onnx")
    quantize_qat(str(tmp_path / "in.onnx"), str(tmp_path / "one.onnx"))
    quantize_qat(model, tmp_path / "two.onnx")
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()


def test_arguments_that_agree_with_the_training_are_taken(model, tmp_path):
    quantize_qat(
        model,
        tmp_path / "q.onnx",
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        extra_options={},
    )
    assert (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"per_channel": False}, "trained with a scale for each channel"),
        ({"activation_type": QuantType.QInt8}, "activation_type is int8, but .* uint8"),
        ({"weight_type": QuantType.QUInt8}, "weight_type is uint8, but .* int8"),
        ({"weight_type": "QInt9"}, "unknown weight type 'QInt9'"),
        ({"reduce_range": True}, "reduce_range changes scales"),
        ({"quant_format": "QDK"}, "unknown quantization format"),
    ],
)
def test_arguments_that_contradict_it_are_errors_and_nothing_is_written(
    model, tmp_path, arguments, message
):
    with pytest.raises(bitwright.RecipeError, match=message):
        quantize_qat(model, tmp_path / "q.onnx", **arguments)
    assert not list(tmp_path.iterdir())


def test_nodes_can_be_chosen_and_left_out(model, tmp_path):
    convs = [item.name for item in model.graph.node if item.op_type == "Conv"]
    for arguments in ({"nodes_to_exclude": [convs[0]]}, {"nodes_to_quantize": convs[1:]}):
        quantize_qat(model, tmp_path / "q.onnx", **arguments)
        stored = {tensor.name for tensor in onnx.load(tmp_path / "q.onnx").graph.initializer}
        assert "a_w" in stored and "b_w_quantized" in stored


def test_external_data_is_written_when_asked_for(tmp_path):
    t = Trained((2, 64))
    array = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    w = t.weight("w", array)
    model = t.model(t.pair(t.add("MatMul", [t.pair("x", 0.04, 128), w]), 0.2, 128))
    quantize_qat(model, tmp_path / "q.onnx", use_external_data_format=True)
    assert (tmp_path / "q.onnx.data").stat().st_size >= 64 * 64


def test_the_destination_is_checked_before_any_work(model, tmp_path):
    with pytest.raises(bitwright.OutputError, match="no folder"):
        quantize_qat(model, tmp_path / "nowhere" / "q.onnx")


def test_a_model_without_pairs_is_quantized_dynamically(tmp_path):
    with pytest.warns(UserWarning, match="no Q/DQ pairs from training"):
        quantize_qat(make_mlp(), tmp_path / "q.onnx", per_channel=True)
    ours.quantize_dynamic(make_mlp(), tmp_path / "dynamic.onnx", per_channel=True)
    assert onnx.load(tmp_path / "q.onnx").graph == onnx.load(tmp_path / "dynamic.onnx").graph


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"extra_options": {"ActivationSymmetric": True}}, "no meaning"),
        ({"extra_options": {"ActivationSymetric": True}}, "Did you mean 'ActivationSymmetric'"),
        ({"nodes_to_exclude": ["nobody"]}, "no node is called 'nobody'"),
        ({"op_types_to_quantize": ["Conv", "Konv"]}, "Did you mean 'Conv'"),
    ],
)
def test_what_has_no_effect_is_a_warning(model, tmp_path, arguments, message):
    with pytest.warns(UserWarning, match=message):
        quantize_qat(model, tmp_path / "q.onnx", **arguments)
    assert "DequantizeLinear" in ops(onnx.load(tmp_path / "q.onnx"))
