"""Scales and zero points in files: the fields, shapes and order of ONNX Runtime's tool."""

from __future__ import annotations

import pytest
from support.models import make_cnn, make_samples
from support.peer_runs import quantize_both, quiet  # noqa: F401 (a fixture)

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
