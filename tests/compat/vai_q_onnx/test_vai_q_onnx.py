"""The names of `vai_q_onnx`."""

from __future__ import annotations

import onnx
import pytest
from support.models import (
    make_cnn,
    make_samples,
    quality,
)

import bitwright
import bitwright.compat.vai_q_onnx as vai_q_onnx


def test_at_the_top_its_names_say_where_they_are():
    names = ("quantize_static", "QuantFormat", "QuantType", "CalibrationMethod")
    for name in (*names, "PowerOfTwoMethod", "VitisQuantFormat", "VitisQuantType"):
        assert hasattr(vai_q_onnx, name)
        with pytest.raises(AttributeError, match=r"bitwright\.compat\.vai_q_onnx"):
            getattr(bitwright, name)


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
