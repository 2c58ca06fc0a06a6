"""The classes and names behind the functions, beside ONNX Runtime's own."""

from __future__ import annotations

import importlib
import inspect
import sys

import numpy as np
import onnx
import onnxruntime.quantization as peer
import pytest
from support.models import (
    Reader,
    make_cnn,
    make_mlp,
    make_samples,
    make_transformer,
    ops,
    quality,
)

import bitwright.compat.onnxruntime as ours
from bitwright.compat.onnxruntime.onnx_model import ONNXModel
from bitwright.compat.onnxruntime.onnx_quantizer import ONNXQuantizer
from bitwright.compat.onnxruntime.qdq_quantizer import QDQQuantizer
from bitwright.errors import DataError, ModelError, RecipeError

TYPES = ours.QuantType.QInt8, ours.QuantType.QUInt8

# Pieces of the tool's own inside: Bitwright has other pieces.
INSIDE = {
    "": {"CudaQuantizer"},
    "calibrate": {"CalibrationDataCollector", "HistogramCollector", "apply_plot", "entropy",
                  "rel_entr", "load_model_with_shape_infer", "smooth_distribution"},
    "quant_utils": {"BiasToQuantize", "FLOAT8_DISTRIBUTIONS", "QuantizedInitializer",
                    "QuantizedValue", "apply_plot"},
    "quantize": {"TensorQuantOverridesHelper"},
    "qdq_quantizer": None,
    "onnx_quantizer": None,
    "onnx_model": set(),
}  # fmt: skip


@pytest.mark.parametrize("module", INSIDE)
def test_every_name_that_people_import_is_here(module):
    suffix = f".{module}" if module else ""
    for package in ("onnxruntime.quantization", "bitwright.compat.onnxruntime"):
        importlib.import_module(package + suffix)
    theirs, mine = (
        sys.modules[package + suffix]
        for package in ("onnxruntime.quantization", "bitwright.compat.onnxruntime")
    )
    if INSIDE[module] is None:  # one class, and all the machinery that it is made of
        wanted = {{"qdq_quantizer": "QDQQuantizer", "onnx_quantizer": "ONNXQuantizer"}[module]}
    else:
        wanted = {
            name
            for name, value in vars(theirs).items()
            if not name.startswith("_")
            and (inspect.isfunction(value) or inspect.isclass(value) or name.isupper())
            and getattr(value, "__module__", "onnxruntime.quantization").startswith(
                "onnxruntime.quantization"
            )
        } - INSIDE[module]
    assert wanted <= set(dir(mine))


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


def test_integer_ops_without_ranges(tmp_path):
    model = make_mlp()
    mode = ours.QuantizationMode.IntegerOps
    found = ONNXQuantizer(model, False, False, mode, False, *TYPES, None).quantize_model()
    ours.quantize_dynamic(model, tmp_path / "q.onnx")
    assert found.graph == onnx.load(tmp_path / "q.onnx").graph


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
    with pytest.raises(RecipeError, match="ranges are given here"):
        options = {"CalibPercentile": 99.0}
        QDQQuantizer(model, False, False, *TYPES, ranges, extra_options=options)


# ONNXModel ------------------------------------------------------------------------------------


def test_a_model_is_looked_at_as_the_peers_is():
    theirs = importlib.import_module("onnxruntime.quantization.onnx_model").ONNXModel(make_cnn())
    mine = ONNXModel(make_cnn())
    for name in ("get_initializer_name_set", "get_non_initializer_inputs", "ir_version"):
        assert getattr(mine, name)() == getattr(theirs, name)()
    for tensor in ("x", "y", "w1", "c1"):
        assert mine.is_graph_input(tensor) == theirs.is_graph_input(tensor)
        assert mine.is_graph_output(tensor) == theirs.is_graph_output(tensor)
        assert (mine.get_initializer(tensor) is None) == (theirs.get_initializer(tensor) is None)
    for index in range(len(mine.nodes())):
        for name in ("get_children", "get_parents"):
            found, wanted = (getattr(m, name)(m.nodes()[index]) for m in (mine, theirs))
            assert [node.name for node in found] == [node.name for node in wanted]
    assert mine.output_name_to_node()["c1"].name == "conv1"


def test_a_model_is_changed_in_place(tmp_path):
    model = ONNXModel(make_mlp())
    (first, *_) = list(model.nodes())
    model.remove_node(first)
    model.replace_input_of_all_nodes(first.output[0], "renamed")
    first.output[0] = "renamed"
    model.add_nodes([first])
    model.add_initializer(onnx.numpy_helper.from_array(np.zeros(3, np.float32), "idle"))
    model.topological_sort()
    assert model.nodes()[0].name == first.name
    model.clean_initializers()
    assert "idle" not in model.get_initializer_name_set()
    model.set_opset_import("com.microsoft", 1)
    model.save_model_to_file(tmp_path / "m.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "m.onnx"))
    with pytest.raises(ModelError, match="there is no node"):
        model.remove_node(onnx.helper.make_node("Relu", ["a"], ["b"], name="nobody"))
