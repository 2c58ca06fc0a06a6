"""`quantize_dynamic` by ONNX Runtime's name and signature."""

from __future__ import annotations

import inspect

import numpy as np
import onnx
import onnxruntime.quantization as peer
import pytest
from onnx import TensorProto
from support.dynamic_models import make_matmul
from support.models import (
    build,
    element_types,
    make_cnn,
    make_mlp,
    make_samples,
    make_transformer,
    node,
    ops,
    quality,
    unchanged,
    weight,
)

from bitwright import ModelError, OutputError, RecipeError
from bitwright.compat import onnxruntime as ours
from bitwright.compat.onnxruntime import QuantType, quantize_dynamic


def quantized(folder, model, **options):
    quantize_dynamic(model, folder / "quantized.onnx", **options)
    return onnx.load(folder / "quantized.onnx")


def test_the_signature_is_that_of_onnxruntime():
    found, theirs = (
        inspect.signature(f).parameters for f in (quantize_dynamic, peer.quantize_dynamic)
    )
    assert list(found) == list(theirs)
    for name, parameter in theirs.items():
        default = parameter.default
        same = getattr(default, "name", default)
        assert getattr(found[name].default, "name", found[name].default) == same


def test_a_path_and_a_message_give_the_same(tmp_path):
    model = make_mlp()
    onnx.save(model, tmp_path / "model.onnx")
    quantize_dynamic(tmp_path / "model.onnx", tmp_path / "a.onnx")
    quantize_dynamic(model, tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_nobodys_model_or_dict_is_written_into(tmp_path):
    model, options = make_mlp(), {"EnableSubgraph": False}
    before = model.SerializeToString()
    quantize_dynamic(model, tmp_path / "q.onnx", extra_options=options)
    assert options == {"EnableSubgraph": False}
    assert model.SerializeToString() == before


@pytest.mark.parametrize("kind", [QuantType.QUInt8, peer.QuantType.QUInt8, "QUInt8"], ids=str)
def test_weight_types_of_either_package(tmp_path, kind):
    found = element_types(quantized(tmp_path, make_mlp(), weight_type=kind))
    assert found["w1_quantized"] == TensorProto.UINT8


def test_matmul_stands_for_gemm_too(tmp_path):
    model = make_cnn()
    counts = ops(quantized(tmp_path, model, op_types_to_quantize=["MatMul"]))
    assert (counts["MatMulInteger"], counts["Conv"]) == (1, 2)


def test_nodes_by_name(tmp_path):
    counts = ops(quantized(tmp_path, make_cnn(), nodes_to_quantize=["conv1"]))
    assert (counts["ConvInteger"], counts["Conv"], counts["Gemm"]) == (1, 1, 1)
    counts = ops(quantized(tmp_path, make_cnn(), nodes_to_exclude=["conv1"]))
    assert (counts["ConvInteger"], counts["Conv"], counts["MatMulInteger"]) == (1, 1, 1)


def test_products_of_activations_with_the_option_off(tmp_path):
    model = make_transformer()
    assert ops(quantized(tmp_path, model))["MatMul"] == 2
    off = {"MatMulConstBOnly": False}
    assert ops(quantized(tmp_path, model, extra_options=off))["MatMul"] == 0


def test_options_with_their_effects(tmp_path):
    def weights(**options):
        model = quantized(tmp_path, make_matmul(), **options)
        return {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}

    assert weights()["w_zero_point"] == 0
    assert weights(extra_options={"WeightSymmetric": False})["w_zero_point"] != 0
    assert np.abs(weights(reduce_range=True)["w_quantized"].astype(int)).max() == 64
    assert weights(per_channel=True)["w_scale"].shape == (8,)
    wide = weights(extra_options={"MinimumRealRange": 1000.0})["w_scale"]
    assert wide > weights()["w_scale"]


def test_external_data(tmp_path):
    quantize_dynamic(
        make_matmul((64, 64), (3, 64)), tmp_path / "q.onnx", use_external_data_format=True
    )
    assert (tmp_path / "q.onnx.data").stat().st_size >= 64 * 64


@pytest.mark.parametrize("name", ["QInt16", "QUInt16", "QInt4", "QUInt4", "QFLOAT8E4M3FN"])
def test_types_without_kernels_are_refused_before_any_work(tmp_path, name):
    with unchanged(tmp_path), pytest.raises(RecipeError, match="weights in int8 or uint8"):
        quantize_dynamic("no_such_model.onnx", tmp_path / "q.onnx", weight_type=QuantType[name])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"MatMulConstBonly": True}, "Did you mean 'MatMulConstBOnly'"),
        ({"ActivationSymmetric": True}, "'ActivationSymmetric' is ignored: it has no effect"),
        ({"CalibMovingAverage": True}, "'CalibMovingAverage' is ignored"),
        ({"DedicatedQDQPair": True}, "'DedicatedQDQPair' is ignored"),
    ],
)
def test_options_that_mean_nothing_here_are_warnings(tmp_path, options, told):
    with pytest.warns(UserWarning, match=told):
        quantize_dynamic(make_mlp(), tmp_path / "q.onnx", extra_options=options)
    quantize_dynamic(make_mlp(), tmp_path / "plain.onnx")
    assert onnx.load(tmp_path / "q.onnx").graph == onnx.load(tmp_path / "plain.onnx").graph


@pytest.mark.parametrize("argument", ["optimize_model", "activation_type"])
def test_arguments_of_older_releases_are_taken_with_a_warning(tmp_path, argument):
    with pytest.warns(UserWarning, match=f"{argument} is ignored"):
        quantize_dynamic(make_mlp(), tmp_path / "q.onnx", **{argument: False})


@pytest.mark.parametrize(("op_type", "said"), [("Conv", "nothing in"), ("MatMull", "unknown op")])
def test_a_model_with_nothing_to_quantize_is_written_as_it_is(tmp_path, op_type, said):
    with pytest.warns(UserWarning, match=said):
        quantize_dynamic(make_mlp(), tmp_path / "q.onnx", op_types_to_quantize=[op_type])
    assert ops(onnx.load(tmp_path / "q.onnx")) == ops(make_mlp())


def test_nowhere_to_write_is_an_error(tmp_path):
    with unchanged(tmp_path), pytest.raises(OutputError, match="there is no folder") as error:
        quantize_dynamic(make_mlp(), tmp_path / "no" / "q.onnx")
    assert isinstance(error.value, FileNotFoundError)


def test_a_dynamic_model_is_not_quantized_again(tmp_path):
    with pytest.raises(ModelError, match="already quantized"):
        quantize_dynamic(quantized(tmp_path, make_mlp()), tmp_path / "twice.onnx")


def test_channels_of_a_conv_of_one_sign_are_better_than_one_range(tmp_path):
    weights = np.abs(weight(8, 3, 3, 3)) * np.linspace(0.3, 1, 8).reshape(-1, 1, 1, 1)
    model = build(
        [node("Conv", ["x", "w"], ["y"], name="conv")],
        {"x": [1, 3, 9, 9]},
        {"y": [1, 8, 7, 7]},
        {"w": weights.astype(np.float32)},
    )
    samples = make_samples(model)
    errors = []
    for tool in (ours, peer):
        path = tmp_path / f"{tool.__name__}.onnx"
        kind = tool.QuantType.QUInt8
        tool.quantize_dynamic(model, path, weight_type=kind, per_channel=True)
        errors.append(quality(model, path, samples))
    assert errors[0] > errors[1]
