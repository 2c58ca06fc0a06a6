"""The import lines of scripts, with `bitwright.compat.` before `quark`."""

from __future__ import annotations

import importlib

import pytest

from bitwright.compat import quark

PATHS = {
    "quark.onnx": "ModelQuantizer PowerOfTwoMethod QuantFormat QuantType VitisQuantType "
    "ExtendedQuantType QConfig XInt8Spec CLEConfig get_library_path quantize_static",
    "quark.onnx.quant_utils": "PowerOfTwoMethod ExtendedQuantFormat get_library_path",
    "quark.onnx.operators.custom_ops": "get_library_path",
    "quark.onnx.quantization.api": "ModelQuantizer",
    "quark.onnx.quantization.config": "Config QConfig QuantizationConfig get_default_config",
    "quark.onnx.quantization.config.config": "Config QConfig QLayerConfig QuantizationConfig",
    "quark.onnx.quantization.config.spec": "QLayerConfig XInt8Spec Int8Spec CalibMethod",
    "quark.onnx.quantization.config.algorithm": "AdaRoundConfig GPTQConfig SmoothQuantConfig",
    "quark.onnx.quantization.config.custom_config": "get_default_config DefaultConfigMapping "
    "U8S8_AAWS_CONFIG XINT8_CONFIG A8W8_ADAROUND_CONFIG",
    "quark.onnx.onnx_quantizer": "ONNXQuantizer VitisONNXQuantizer",
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
