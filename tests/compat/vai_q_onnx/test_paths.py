"""Old and second names of AMD's tools: modules by their paths, functions that moved."""

import importlib

import onnx
import pytest

import bitwright
from bitwright.compat import vai_q_onnx
from bitwright.compat.onnxruntime import QuantizationMode

PATHS = {
    "vai_q_onnx.calibrate": "PowerOfTwoMethod CachedDataReader",
    "vai_q_onnx.onnx_quantizer": "VitisONNXQuantizer ONNXQuantizer",
    "vai_q_onnx.operators.custom_ops": "get_library_path",
    "vai_q_onnx.quant_utils": "VitisQuantFormat VitisQuantType DEFAULT_ADAROUND_PARAMS",
    "vai_q_onnx.quantize": "quantize_static quantize_dynamic",
    "quark.onnx.auto_search": "SearchSpace",
    "quark.onnx.calibration.data_readers": "CachedDataReader",
    "quark.onnx.calibration.methods": "PowerOfTwoMethod LayerWiseMethod",
    "quark.onnx.quantization.config.custom_config": "DEFAULT_ADAQUANT_PARAMS",
}


@pytest.mark.parametrize("path", PATHS)
def test_scripts_import_by_the_same_paths(path):
    module = importlib.import_module(f"bitwright.compat.{path}")
    assert [name for name in PATHS[path].split() if not hasattr(module, name)] == []


def test_the_library_is_asked_for_where_it_was():
    assert vai_q_onnx.get_library_path("CPU") == vai_q_onnx.get_library_path()
    with pytest.raises(AttributeError, match="nor an installed vai_q_onnx has 'get_librar'"):
        _ = vai_q_onnx.get_librar


def test_a_quantizer_has_what_the_runtimes_has():
    model = onnx.load(bitwright.load_demo().model_path)
    ranges = {"image": (-0.9, 0.9)}
    types = (True, "QInt8", "QUInt8", ranges, [], [], [], "NonOverflow")
    quantizer = vai_q_onnx.VitisONNXQuantizer(
        model, False, False, QuantizationMode.QLinearOps, *types
    )
    first = model.graph.node[0]
    assert not quantizer.has_QDQ_nodes() and quantizer.find_initializer_in_path(first.input[1])
    names, zero_points, scales, nodes = quantizer.quantize_activation(first, [0])
    assert (names, zero_points, scales) == (
        ["image_quantized"],
        ["image_zero_point"],
        ["image_scale"],
    )
    quantizer.add_new_nodes(nodes)
    assert [node.op_type for node in quantizer.new_nodes] == ["QuantizeLinear"]


def test_parameters_of_a_torch_quantizer_are_in_its_state():
    torch = pytest.importorskip("torch")
    path = "quark.onnx.finetuning.create_torch.base_qdq_quantizers"
    kinds = importlib.import_module(f"bitwright.compat.{path}")
    quantizer = kinds.INTQuantizer(torch.tensor(0.5), torch.tensor(0), -128, 127)
    assert {"scale", "zero_point"} <= quantizer.state_dict().keys()
    quantizer.to(torch.float64)
    assert quantizer.scale.dtype == torch.float64
    other = kinds.INTQuantizer(torch.tensor(1.0), torch.tensor(3), -128, 127)
    other.load_state_dict(quantizer.state_dict())
    assert float(other(torch.tensor([0.7]))) == 0.5
