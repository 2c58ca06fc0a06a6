"""Models are written with what ONNX Runtime's tool writes, also where nothing is quantized."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.models import build, make_mlp, make_samples, node, run

from bitwright.compat.onnxruntime import QuantFormat, quantize_dynamic, quantize_static
from bitwright.errors import DataError


def make_unquantizable():
    nodes = [node("Cos", ["x"], ["a"], name="cos"), node("Exp", ["a"], ["y"], name="exp")]
    return build(nodes, {"x": [2, 3]}, {"y": [2, 3]})


@pytest.mark.parametrize("quant_format", QuantFormat)
def test_a_static_model_is_written_with_a_warning_of_the_caller(quant_format, tmp_path):
    model = make_unquantizable()
    samples = make_samples(model)
    with pytest.warns(UserWarning, match="written as it was: nothing in this model") as caught:
        quantize_static(model, tmp_path / "q.onnx", samples, quant_format=quant_format)
    assert caught[0].filename == __file__
    written = onnx.load(tmp_path / "q.onnx")
    assert [str(n) for n in written.graph.node] == [str(n) for n in model.graph.node]
    np.testing.assert_array_equal(run(written, samples[0])[0], run(model, samples[0])[0])


def test_so_is_a_dynamic_one_with_its_data_in_another_file_if_asked_for(tmp_path):
    model = make_mlp(width=64)
    options = {"op_types_to_quantize": ["Conv"], "use_external_data_format": True}
    with pytest.warns(UserWarning, match="written as it was") as caught:
        quantize_dynamic(model, tmp_path / "q.onnx", **options)
    assert caught[0].filename == __file__
    assert (tmp_path / "q.onnx.data").exists()
    assert len(onnx.load(tmp_path / "q.onnx").graph.node) == len(model.graph.node)


def test_other_faults_are_errors_still(tmp_path):
    with pytest.raises(DataError):
        quantize_static(make_mlp(), tmp_path / "q.onnx", [])
    assert not list(tmp_path.iterdir())
