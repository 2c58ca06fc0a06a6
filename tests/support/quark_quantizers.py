"""Quantizers of Quark over a small network, with the ranges that it has."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from bitwright.compat.quark.onnx_quantizer import (
    QuantizationMode,
    VitisONNXQuantizer,
)
from bitwright.compat.vai_q_onnx import CalibrationMethod, QuantType
from support.models import (
    make_cnn,
    make_samples,
    run,
)

MODE = QuantizationMode.QLinearOps


def observed(model):
    """Return (lowest, highest) of every tensor of a model, over its samples."""
    names = [name for n in model.graph.node for name in n.output]
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    known = {value.name for value in model.graph.output}
    exposed.graph.output.extend(
        onnx.helper.make_tensor_value_info(n, TensorProto.FLOAT, None)
        for n in names
        if n not in known
    )
    samples = make_samples(model)
    outputs = [value.name for value in exposed.graph.output]
    results = [dict(zip(outputs, run(exposed, s), strict=True)) | s for s in samples]
    return {
        name: (min(r[name].min() for r in results), max(r[name].max() for r in results))
        for name in results[0]
    }


def make_quantizer(
    model=None,
    *,
    method=CalibrationMethod.MinMax,
    ranges=None,
    per_channel=False,
    weight_type=QuantType.QInt8,
    activation_type=QuantType.QUInt8,
    types=None,
    op_types=(),
    options=None,
):
    model = make_cnn() if model is None else model
    return VitisONNXQuantizer(
        model,
        per_channel,
        False,
        MODE,
        True,
        weight_type,
        activation_type,
        observed(model) if ranges is None else ranges,
        [],
        [],
        list(op_types),
        method,
        types or {},
        options,
    )


def initializer(model, name):
    return next(t for t in model.graph.initializer if t.name == name)
