"""Models are written with what ONNX Runtime's tool writes, also where nothing is quantized."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime.quantization as peer
import pytest
from support.models import build, make_cnn, make_mlp, make_samples, node, run
from support.peer_runs import quantize_both, quiet  # noqa: F401 (a fixture)

from bitwright.compat import onnxruntime as ours
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


FIELDS = ("raw_data", "float_data", "int32_data")


def stored(model):
    return [
        (tensor.name, tuple(tensor.dims), [bool(len(getattr(tensor, name))) for name in FIELDS])
        for tensor in model.graph.initializer
    ]


@pytest.mark.parametrize("options", [{}, {"per_channel": True}, {"weight_type": "QInt16"}], ids=str)
def test_initializers_are_stored_as_the_peers(tmp_path, options):
    model = make_cnn()
    options = {"activation_type": "QUInt8", **options}
    mine, theirs = quantize_both(tmp_path, model, make_samples(model), **options)
    assert stored(mine) == stored(theirs)


def test_big_weights_keep_their_place(tmp_path):
    model = make_mlp(width=300)  # 90 kB of int8
    mine, theirs = quantize_both(tmp_path, model, make_samples(model))
    names = [[tensor.name for tensor in one.graph.initializer] for one in (mine, theirs)]
    assert names[0] == names[1]


@pytest.mark.parametrize("per_channel", [False, True])
def test_dynamic_weights_are_stored_as_the_peers(tmp_path, per_channel):
    model, made = make_mlp(width=32), []
    for module in (ours, peer):
        path = tmp_path / f"{module.__name__}.onnx"
        module.quantize_dynamic(model, path, per_channel=per_channel)
        made.append(onnx.load(path))
    mine, theirs = map(stored, made)
    assert mine == theirs
