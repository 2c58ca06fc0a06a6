"""Configurations, and `quantize` that takes one."""

from __future__ import annotations

from inspect import signature

import onnx
import onnxruntime.quantization as peer
import pytest
from support.models import Reader, make_cnn, make_mlp, make_samples, ops, quality

import bitwright.compat.onnxruntime as ours
from bitwright.compat.onnxruntime import (
    DynamicQuantConfig,
    QuantFormat,
    QuantType,
    StaticQuantConfig,
    get_qdq_config,
    matmul_nbits_quantizer,
    quantize,
)


@pytest.mark.parametrize(
    "name",
    "StaticQuantConfig DynamicQuantConfig get_qdq_config quantize create_calibrator "
    "save_tensors_data load_tensors_data write_calibration_table MinMaxCalibrater "
    "CalibraterBase TensorsData".split(),
)
def test_arguments_have_the_peers_names_and_order(name):
    mine, theirs = signature(getattr(ours, name)), signature(getattr(peer, name))
    assert list(mine.parameters) == list(theirs.parameters)
    for key, parameter in theirs.parameters.items():
        default = mine.parameters[key].default
        if parameter.default != {}:  # which calls there write into
            assert getattr(default, "name", default) == getattr(
                parameter.default, "name", parameter.default
            )


def test_a_static_configuration(tmp_path):
    model = make_cnn()
    samples = make_samples(model)
    config = StaticQuantConfig(
        Reader(samples),
        activation_type=QuantType.QUInt8,
        per_channel=True,
        nodes_to_exclude=["fc"],
        extra_options={"ActivationSymmetric": True},
    )
    quantize(model, tmp_path / "q.onnx", config)
    made = onnx.load(tmp_path / "q.onnx")
    assert quality(model, made, samples) > 25
    assert not next(n for n in made.graph.node if n.name == "fc").input[0].endswith("Output")


def test_a_dynamic_configuration(tmp_path):
    model = make_mlp()
    quantize(model, tmp_path / "q.onnx", DynamicQuantConfig(weight_type=QuantType.QUInt8))
    assert ops(tmp_path / "q.onnx")["MatMulInteger"] == 2


def test_anything_else_is_no_configuration(tmp_path):
    with pytest.raises(TypeError, match="StaticQuantConfig"):
        quantize(make_mlp(), tmp_path / "q.onnx", {"per_channel": True})


def normal_form(config):
    plain = {
        name: getattr(value, "name", value)
        for name, value in vars(config).items()
        if name != "calibration_data_reader"
    }
    for name in ("op_types_to_quantize", "nodes_to_exclude"):
        plain[name] = sorted(plain[name])
    return plain


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"per_channel": True, "activation_symmetric": True, "min_real_range": 0.1},
        {"calibrate_args": {"percentile": 99.0, "symmetric": True}},
        {"nodes_to_exclude": ["fc"]},
        {"nodes_to_exclude": lambda model, node: node.op_type == "Gemm"},
        {"op_types_to_quantize": ["Conv"]},
        {"keep_removable_activations": True, "extra_options": {"QuantizeBias": False}},
    ],
)
def test_get_qdq_config_gives_the_peers_settings(options):
    model = make_cnn()
    mine = get_qdq_config(model, Reader([]), **options)
    theirs = peer.get_qdq_config(model, Reader([]), **options)
    assert normal_form(mine) == normal_form(theirs)
    assert mine.quant_format is QuantFormat.QDQ


@pytest.mark.parametrize(
    ("weight", "contrib"), [("QInt4", True), ("QInt8", False), ("QInt16", False)]
)
def test_four_bit_types_below_opset_21_take_the_contrib_operators(weight, contrib):
    model = make_cnn()
    mine = get_qdq_config(model, Reader([]), weight_type=QuantType[weight])
    theirs = peer.get_qdq_config(model, Reader([]), weight_type=peer.QuantType[weight])
    assert mine.extra_options.get("UseQDQContribOps", False) is contrib
    assert theirs.extra_options.get("UseQDQContribOps", False) is contrib


def test_the_configuration_quantizes_everything(tmp_path):
    model = make_cnn()
    samples = make_samples(model)
    config = get_qdq_config(model, Reader(samples))
    quantize(model, tmp_path / "q.onnx", config)
    assert quality(model, tmp_path / "q.onnx", samples) > 25


def test_unknown_calibration_arguments_are_ignored():
    with pytest.warns(UserWarning, match="Did you mean 'percentile'"):
        get_qdq_config(make_mlp(), Reader([]), calibrate_args={"percentil": 3})


@pytest.mark.parametrize("kind", ["DefaultWeightOnlyQuantConfig", "RTNWeightOnlyQuantConfig"])
def test_a_weight_only_configuration(tmp_path, kind):
    config = getattr(matmul_nbits_quantizer, kind)()
    onnx.save(make_mlp(width=128), tmp_path / "model.onnx")
    quantize(tmp_path / "model.onnx", tmp_path / "q.onnx", config)
    assert "MatMulNBits" in ops(onnx.load(tmp_path / "q.onnx"))
    assert (tmp_path / "q.onnx.data").exists()


def test_a_model_with_its_weights_in_another_file_is_configured_without_them(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(make_mlp(width=64), path, save_as_external_data=True, location="weights.bin")
    (tmp_path / "weights.bin").rename(tmp_path / "elsewhere.bin")
    config = get_qdq_config(path, Reader([]), weight_type=QuantType.QInt4)
    assert config.use_external_data_format
    assert config.extra_options["UseQDQContribOps"] is True
    (tmp_path / "elsewhere.bin").rename(tmp_path / "weights.bin")
    config.calibration_data_reader = make_samples(make_mlp(width=64))
    config.weight_type = QuantType.QInt8
    config.extra_options.pop("UseQDQContribOps")
    quantize(path, tmp_path / "q.onnx", config)
    assert (tmp_path / "q.onnx.data").exists()
