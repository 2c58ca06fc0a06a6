"""Scales and zero points in files: the fields, shapes and order of ONNX Runtime's tool."""

from __future__ import annotations

import onnx
import onnxruntime.quantization as peer
import pytest
from support.models import make_cnn, make_mlp, make_samples
from support.peer_runs import quantize_both, quiet  # noqa: F401 (a fixture)

from bitwright.compat import onnxruntime as ours

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
