"""The names of `vai_q_onnx`."""

from __future__ import annotations

import onnx
from support.models import (
    make_cnn,
    make_samples,
    quality,
)

import bitwright
import bitwright.compat.vai_q_onnx as vai_q_onnx


def test_the_top_level_has_the_same_objects():
    for name in (
        "quantize_static",
        "QuantFormat",
        "QuantType",
        "CalibrationMethod",
        "PowerOfTwoMethod",
        "VitisQuantFormat",
        "VitisQuantType",
    ):
        assert getattr(bitwright, name) is getattr(vai_q_onnx, name)


def test_preprocessing_is_where_the_page_has_it(tmp_path):
    onnx.save(make_cnn(), tmp_path / "float.onnx")
    vai_q_onnx.shape_inference.quant_pre_process(
        input_model_path=str(tmp_path / "float.onnx"),
        output_model_path=str(tmp_path / "ready.onnx"),
        skip_optimization=False,
        verbose=0,
        all_tensors_to_one_file=False,
    )
    assert quality(tmp_path / "float.onnx", tmp_path / "ready.onnx", make_samples(make_cnn())) > 90
