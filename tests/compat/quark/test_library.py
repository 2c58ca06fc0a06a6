"""The library of operators that is not needed."""

from __future__ import annotations

import onnxruntime
import pytest
from support.models import make_cnn, make_samples

from bitwright.compat import quark
from bitwright.compat.quark import get_library_path
from bitwright.errors import RecipeError


def test_a_model_of_extended_types_runs_with_the_library_that_scripts_register(tmp_path):
    path = tmp_path / "bf16.onnx"
    config = quark.QConfig.get_default_config("BF16")
    config.global_quant_config.print_summary = False
    quark.ModelQuantizer(config).quantize_model(make_cnn(), path)
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(get_library_path("CPU"))
    session = onnxruntime.InferenceSession(str(path), options)
    assert session.run(None, make_samples(make_cnn())[0])


def test_other_libraries_are_registered_as_before(tmp_path):
    quark.get_library_path()
    with pytest.raises(Exception, match=r"missing\.so"):
        onnxruntime.SessionOptions().register_custom_ops_library(str(tmp_path / "missing.so"))


def test_an_unknown_device_is_refused():
    with pytest.raises(RecipeError, match="TPU"):
        quark.get_library_path("TPU")
