"""Quark's presets as arguments; `bitwright.recipe` has the same as recipes."""

from __future__ import annotations

from typing import Any

from bitwright.compat.onnxruntime.enums import CalibrationMethod, QuantType
from bitwright.compat.vai_q_onnx.enums import PowerOfTwoMethod, VitisQuantFormat
from bitwright.numerics.types import QTYPES

__all__ = ["PRESET_ARGUMENTS"]

_SYMMETRIC = {"ActivationSymmetric": True}
_NPU_CNN: dict[str, Any] = {
    "calibrate_method": PowerOfTwoMethod.MinMSE,
    "activation_type": QuantType.QUInt8,
    "enable_npu_cnn": True,
    "extra_options": _SYMMETRIC,
}
_INT16: dict[str, Any] = {
    "activation_type": QuantType.QInt16,
    "weight_type": QuantType.QInt16,
    "include_cle": False,
    "extra_options": _SYMMETRIC,
}
_FOUR_BITS = {
    "UseMatMulNBits": True,
    "MatMulNBitsParams": {"GroupSize": 128, "Symmetric": True, "Bits": 4, "AccuracyLevel": 1},
}


def _integers(activation: QuantType, weight: QuantType, **options: Any) -> dict[str, Any]:
    return {
        "calibrate_method": CalibrationMethod.MinMax,
        "activation_type": activation,
        "weight_type": weight,
        "extra_options": options,
    }


def _floats(qtype: str) -> dict[str, Any]:
    return {
        "quant_format": VitisQuantFormat.QDQ,
        "activation_type": QTYPES[qtype],
        "weight_type": QTYPES[qtype],
        "include_cle": False,
    }


_BLOCKS = "bfp16 mxint8 mxfp8e5m2 mxfp8e4m3 mxfp6e3m2 mxfp6e2m3 mxfp4e2m1 mx4 mx6 mx9".split()

_LEARNING = ("adaround", "adaquant")


def _fine_tuned(arguments: dict[str, Any], method: str) -> dict[str, Any]:
    learning = {
        "OptimAlgorithm": method,
        "DataSize": 1000,
        "BatchSize": 2,
        "NumIterations": 1000,
        "EarlyStop": True,
    }
    options = {**arguments.get("extra_options", {}), "FastFinetune": learning}
    return {**arguments, "include_fast_ft": True, "extra_options": options}


def _accurate(activation: QuantType, weight: QuantType, **more: Any) -> dict[str, Any]:
    plain = _integers(activation, weight, Percentile=99.9999)
    plain["calibrate_method"] = CalibrationMethod.Percentile
    return {**_fine_tuned(plain, "adaround"), **more}


_PLAIN: dict[str, dict[str, Any]] = {
    "XINT8": _NPU_CNN,
    "INT8_CNN_DEFAULT": {**_NPU_CNN, "include_cle": False},
    "INT8_TRANSFORMER_DEFAULT": {"include_cle": False},
    "A8W8": _integers(QuantType.QInt8, QuantType.QInt8, ActivationSymmetric=True),
    "A16W8": _integers(QuantType.QInt16, QuantType.QInt8, ActivationSymmetric=True),
    "S8S8_AAWS": _integers(QuantType.QInt8, QuantType.QInt8),
    "U8S8_AAWS": _integers(QuantType.QUInt8, QuantType.QInt8),
    "U8U8_AAWA": _integers(QuantType.QUInt8, QuantType.QUInt8),
    "S16S8_ASWS": _integers(QuantType.QInt16, QuantType.QInt8, ActivationSymmetric=True),
    "U16S8_AAWS": _integers(QuantType.QUInt16, QuantType.QInt8),
    "INT16_CNN_DEFAULT": {**_INT16, "calibrate_method": PowerOfTwoMethod.MinMSE},
    "INT16_TRANSFORMER_DEFAULT": _INT16,
    "UINT8_DYNAMIC_QUANT": {"use_dynamic_quant": True, "weight_type": QuantType.QUInt8},
    "MATMUL_NBITS": {"extra_options": _FOUR_BITS},
    "FP16": _floats("float16"),
    "BF16": _floats("bfloat16"),
    **{name.upper(): _floats(name) for name in _BLOCKS},
}

_INTEGERS = ("XINT8", "A8W8", "A16W8", "S8S8_AAWS", "U8S8_AAWS", "S16S8_ASWS", "U16S8_AAWS")

PRESET_ARGUMENTS: dict[str, dict[str, Any]] = {
    **_PLAIN,
    **{
        f"{name}_{method.upper()}": _fine_tuned(_PLAIN[name], method)
        for name in _INTEGERS
        for method in _LEARNING
    },
    "INT8_CNN_ACCURATE": _accurate(QuantType.QUInt8, QuantType.QInt8),
    "INT16_CNN_ACCURATE": _accurate(QuantType.QUInt16, QuantType.QInt16),
    "INT8_TRANSFORMER_ACCURATE": _accurate(
        QuantType.QUInt8, QuantType.QInt8, enable_npu_transformer=True
    ),
    "INT16_TRANSFORMER_ACCURATE": _accurate(
        QuantType.QUInt16, QuantType.QInt16, enable_npu_transformer=True
    ),
}
