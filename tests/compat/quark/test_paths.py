"""The import lines of scripts, with `bitwright.compat.` before `quark`."""

from __future__ import annotations

import importlib

import pytest
from support.models import make_mlp, make_samples

from bitwright.compat import quark

PATHS = {
    "quark.onnx": "ModelQuantizer PowerOfTwoMethod QuantFormat QuantType VitisQuantType "
    "ExtendedQuantType QConfig XInt8Spec CLEConfig get_library_path quantize_static Int8 BFP16 "
    "A8W8_QCONFIG XINT8_ADAROUND_QCONFIG MinMaxCalibrater RandomDataReader SearchSpace",
    "quark.onnx.quant_utils": "PowerOfTwoMethod ExtendedQuantFormat get_library_path",
    "quark.onnx.operators.custom_ops": "get_library_path _COP_DOMAIN",
    "quark.onnx.calibration": "RandomDataReader CachedDataReader PowerOfTwoMethod",
    "quark.onnx.quantization": "ModelQuantizer QConfig AdaRoundConfig",
    "quark.onnx.quantization.quant_utils": "PowerOfTwoMethod ExtendedQuantType",
    "quark.onnx.quantization.config.legacy": "QuantizationConfig",
    "quark.onnx.quantization.config.data_type": "Int8 BFP16 MXInt8 parse_data_type",
    "quark.onnx.quantization.api": "ModelQuantizer",
    "quark.onnx.quantize": "quantize_static quantize_dynamic",
    "quark.onnx.quantization.config": "Config QConfig QuantizationConfig get_default_config "
    "DefaultConfigMapping get_default_config_mapping",
    "quark.onnx.quantization.config.config": "Config QConfig QLayerConfig QuantizationConfig",
    "quark.onnx.quantization.config.spec": "QLayerConfig XInt8Spec Int8Spec CalibMethod",
    "quark.onnx.quantization.config.algorithm": "AdaRoundConfig GPTQConfig SmoothQuantConfig",
    "quark.onnx.quantization.config.custom_config": "get_default_config DefaultConfigMapping "
    "U8S8_AAWS_CONFIG XINT8_CONFIG A8W8_ADAROUND_CONFIG BF16_QCONFIG BF16_MIXED_BFP16_CONFIG",
    "quark.onnx.onnx_quantizer": "ONNXQuantizer VitisONNXQuantizer",
    "quark.onnx.quantizers.onnx_quantizer": "ONNXQuantizer ExtendedONNXQuantizer",
    "quark.onnx.quantization.auto_search": "AutoSearch SearchSpace",
    "quark.onnx.algorithm.finetuning.create_torch.base_qdq_quantizers": "INTQuantizer",
}


@pytest.mark.parametrize("path", PATHS)
def test_scripts_import_by_the_same_paths(path):
    module = importlib.import_module(f"bitwright.compat.{path}")
    for name in PATHS[path].split():
        assert getattr(module, name) is not None
        assert getattr(quark, name, None) in (getattr(module, name), None)


def test_the_torch_quantizers_are_where_the_page_has_them():
    pytest.importorskip("torch")
    path = "quark.onnx.finetuning.create_torch.base_qdq_quantizers"
    assert importlib.import_module(f"bitwright.compat.{path}").INTDeQuantFunction


@pytest.mark.parametrize("name", ["BF16_MIXED_BFP16_CONFIG", "VINT8_QCONFIG"])
def test_a_preset_that_is_not_here_is_an_error_when_it_is_used(name):
    path = "bitwright.compat.quark.onnx.quantization.config.custom_config"
    preset = getattr(importlib.import_module(path), name)
    wrapped = preset if name.endswith("_QCONFIG") else quark.Config(preset)
    with pytest.raises(ValueError, match="there is no preset"):
        quark.ModelQuantizer(wrapped).quantize_model(make_mlp(), None, make_samples(make_mlp()))


def test_a_star_takes_the_names_of_a_path():
    found = {}
    exec("from bitwright.compat.quark.onnx.quant_utils import *", found)
    assert {"PowerOfTwoMethod", "get_library_path"} <= found.keys()
