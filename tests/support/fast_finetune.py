"""Small networks, fine-tuned by the options of FastFinetune."""

from __future__ import annotations

from functools import cache

import numpy as np

from bitwright.compat import vai_q_onnx
from bitwright.compat.vai_q_onnx import QuantType
from support.models import Reader, constants_of, make_mlp, make_samples

BASE = {"NumIterations": 200, "BatchSize": 4, "SelectiveUpdate": False}


@cache
def _quantized(items, fine_tune=True, make=make_mlp):
    model = make(opset=21, ir_version=10)
    made = vai_q_onnx.quantize_static(
        model,
        None,
        Reader(make_samples(model, 8)),
        calibrate_method="MinMax",
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt4,
        include_fast_ft=fine_tune,
        extra_options={"FastFinetune": dict(items)} if fine_tune else None,
    )
    found = constants_of(made)
    return {name: np.asarray(found[name], np.int64) for name in found if "_quantized" in name}


def quantized(fine_tune=True, make=make_mlp, **options):
    """Return the integers of weights and biases."""
    return _quantized(tuple({**BASE, **options}.items()), fine_tune, make)


def equal(first, second, part=""):
    names = [name for name in first if part in name]
    assert names
    return all(np.array_equal(first[name], second[name]) for name in names)
