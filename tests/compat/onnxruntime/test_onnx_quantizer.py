"""`QDQQuantizer` and `ONNXQuantizer`, from given ranges."""

from __future__ import annotations

import onnx
import onnxruntime.quantization as peer
import pytest
from support.models import (
    Reader,
    build,
    make_cnn,
    make_mlp,
    make_samples,
    make_transformer,
    node,
    ops,
    quality,
    weight,
)

import bitwright.compat.onnxruntime as ours
from bitwright.compat.onnxruntime.onnx_quantizer import ONNXQuantizer
from bitwright.compat.onnxruntime.qdq_quantizer import QDQQuantizer
from bitwright.errors import DataError, RecipeError

TYPES = ours.QuantType.QInt8, ours.QuantType.QUInt8


def ranges_of(model, samples, tmp_path):
    onnx.save(model, tmp_path / "model.onnx")
    calibrator = ours.create_calibrator(tmp_path / "model.onnx")
    calibrator.collect_data(Reader(samples))
    return calibrator.compute_data()


@pytest.mark.parametrize("make", [make_cnn, make_mlp, make_transformer])
@pytest.mark.parametrize("format", ["QDQ", "QOperator"])
def test_given_ranges_make_the_same_model_as_the_function(tmp_path, make, format, same_sums):
    model = make()
    samples = make_samples(model)
    ranges = ranges_of(model, samples, tmp_path)
    if format == "QDQ":
        quantizer = QDQQuantizer(model, True, False, *TYPES, ranges)
    else:
        mode = ours.QuantizationMode.QLinearOps
        quantizer = ONNXQuantizer(model, True, False, mode, True, *TYPES, ranges)
    found = quantizer.quantize_model()
    ours.quantize_static(
        model,
        tmp_path / "q.onnx",
        samples,
        quant_format=format,
        per_channel=True,
        weight_type=TYPES[0],
        activation_type=TYPES[1],
    )
    wanted = onnx.load(tmp_path / "q.onnx")
    assert quantizer.model.model is found and quantizer.plan.tensors
    assert found.graph == wanted.graph


def test_the_peers_ranges_options_and_numbers_of_types_are_taken(tmp_path):
    model = make_cnn()
    samples = make_samples(model)
    onnx.save(model, tmp_path / "model.onnx")
    calibrator = peer.create_calibrator(
        str(tmp_path / "model.onnx"), augmented_model_path=str(tmp_path / "a.onnx")
    )
    calibrator.collect_data(Reader(samples))
    quantizer = QDQQuantizer(
        model,
        False,
        False,
        onnx.TensorProto.INT8,
        onnx.TensorProto.UINT8,
        calibrator.compute_data(),
        None,
        ["conv1"],
        ["Conv"],
        {"QuantizeBias": False},
    )
    found = quantizer.quantize_model()
    assert quality(model, found, samples) > 30
    assert ops(found)["QuantizeLinear"] == 2  # what the second convolution reads and writes
    quantizer.model.save_model_to_file(tmp_path / "q.onnx")
    assert onnx.load(tmp_path / "q.onnx").graph == found.graph


def test_a_model_with_nothing_to_quantize_stays_as_it_is():
    model = make_mlp()
    mode = ours.QuantizationMode.IntegerOps
    quantizer = ONNXQuantizer(
        model, False, False, mode, False, *TYPES, None, op_types_to_quantize=["Conv"]
    )
    with pytest.warns(UserWarning, match="stays as it is"):
        assert ops(quantizer.quantize_model()) == ops(model)


def test_integer_ops_without_ranges(tmp_path):
    model = make_mlp()
    mode = ours.QuantizationMode.IntegerOps
    found = ONNXQuantizer(model, False, False, mode, False, *TYPES, None).quantize_model()
    ours.quantize_dynamic(model, tmp_path / "q.onnx")
    assert found.graph == onnx.load(tmp_path / "q.onnx").graph


@pytest.mark.parametrize("options", [None, {"MatMulConstBOnly": True}])
def test_dynamic_products_of_activations_and_gemms_are_those_of_the_peer(options):
    types = peer.QuantType.QInt8, peer.QuantType.QUInt8
    for model in (make_transformer(), make_mlp()):
        counts = []
        for kind, mode in ((ONNXQuantizer, ours), (peer.onnx_quantizer.ONNXQuantizer, peer)):
            mode = mode.QuantizationMode.IntegerOps
            twin = onnx.ModelProto.FromString(model.SerializeToString())
            quantizer = kind(
                twin, False, False, mode, False, *types, None, [], [], ["MatMul"], options
            )
            quantizer.quantize_model()
            counts.append(ops(quantizer.model.model))
        for op_type in ("MatMulInteger", "MatMul", "Gemm"):
            assert counts[0][op_type] == counts[1][op_type]


@pytest.mark.parametrize("readers", [1, 2])
def test_dedicated_pairs_leave_float_nodes_to_the_float_tensor_where_the_peer_does(
    tmp_path, readers
):
    """An Exp beside one quantized reader shares its pair, beside several it has none."""
    nodes = [node("Conv", ["x", "w"], ["a"]), node("Exp", ["a"], ["e"])]
    nodes += [node("Conv", ["a", "w"], [f"y{i}"]) for i in range(readers)]
    outputs = {"e": None, **{f"y{i}": None for i in range(readers)}}
    model = build(nodes, {"x": [1, 3, 6, 6]}, outputs, {"w": weight(3, 3, 1, 1)})
    onnx.save(model, tmp_path / "model.onnx")
    augmented = str(tmp_path / "augmented.onnx")
    calibrator = peer.create_calibrator(str(tmp_path / "model.onnx"), [], augmented)
    calibrator.collect_data(Reader(make_samples(model)))
    ranges = calibrator.compute_data()
    found = []
    for kind in (QDQQuantizer, peer.qdq_quantizer.QDQQuantizer):
        twin = onnx.ModelProto.FromString(model.SerializeToString())
        options = {"DedicatedQDQPair": True}
        types = ["Conv"]
        quantizer = kind(twin, False, False, *TYPES, ranges, [], [], types, options)
        made = quantizer.quantize_model()
        exp = next(n for n in made.graph.node if n.op_type == "Exp")
        found.append((ops(made), exp.input[0]))
    assert found[0] == found[1]


def test_an_empty_list_of_op_types_quantizes_nothing(tmp_path):
    model = make_mlp()
    ranges = ranges_of(model, make_samples(model), tmp_path)
    quantizer = QDQQuantizer(model, False, False, *TYPES, ranges, [], [], [], {})
    with pytest.warns(UserWarning, match="op_types_to_quantize is empty"):
        found = quantizer.quantize_model()
    assert ops(found) == ops(model)


def test_what_is_missing_or_contradicts_is_said(tmp_path):
    model = make_cnn()
    ranges = ranges_of(model, make_samples(model), tmp_path)
    few = {"x": ranges["x"]}
    with pytest.raises(DataError, match="nothing was observed of"):
        QDQQuantizer(model, False, False, *TYPES, few).quantize_model()
    with pytest.raises(DataError, match="is a TensorData, not 3"):
        QDQQuantizer(model, False, False, *TYPES, {"x": 3}).quantize_model()
    with pytest.raises(RecipeError, match="goes with the mode IntegerOps"):
        ONNXQuantizer(model, False, False, ours.QuantizationMode.QLinearOps, False, *TYPES, ranges)
    with pytest.warns(UserWarning, match="ranges are given here"):
        options = {"CalibPercentile": 99.0}
        QDQQuantizer(model, False, False, *TYPES, ranges, extra_options=options)
