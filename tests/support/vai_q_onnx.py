"""Models quantized by the names of the Vitis AI quantizer."""

import json

import numpy as np

from bitwright.compat import vai_q_onnx
from support.models import Reader, build, constants_of, make_samples, node, weight

TESTED = set()
"""The keys of `extra_options` that tests were seen to show."""


def quantize_vai(model, options=None, *, samples=None, **arguments):
    """Quantize with float scales and unsigned activations, unless arguments say otherwise."""
    arguments.setdefault("calibrate_method", "MinMax")
    arguments.setdefault("activation_type", vai_q_onnx.QuantType.QUInt8)
    samples = make_samples(model) if samples is None else samples
    return vai_q_onnx.quantize_static(
        model, None, Reader(samples), extra_options=options, **arguments
    )


def option(*keys):
    """Mark what a test shows, so that no key is left out."""
    TESTED.update(keys)
    return lambda function: function


def on_npu(model, options=None, **arguments):
    return quantize_vai(model, options, enable_npu_cnn=True, calibrate_method="MinMSE", **arguments)


def scale(model, tensor):
    return constants_of(model)[f"{tensor}_scale"]


def zero_point(model, tensor):
    return constants_of(model)[f"{tensor}_zero_point"]


def position(model, tensor):
    """Return p of the scale 2^-p."""
    return int(-np.log2(scale(model, tensor)))


def recipe_of(model):
    return json.loads({p.key: p.value for p in model.metadata_props}["bitwright.recipe"])


def conv(inputs, output, name, **attributes):
    return node("Conv", inputs, [output], name=name, **attributes)


def image_model(*nodes, constants=None, shape=(1, 3, 6, 6), out=None):
    return build(list(nodes), {"x": list(shape)}, {"y": out}, constants or {})


def behind_conv(*nodes, constants=None, shape=(1, 3, 6, 6)):
    return image_model(
        conv(["x", "w"], "c", "conv"),
        *nodes,
        constants={"w": weight(4, 3, 1, 1), **(constants or {})},
        shape=shape,
    )


def activation_model(op_type):
    extra = {"Clip": ["low", "high"], "PRelu": ["slope"]}.get(op_type, [])
    constants = {
        "w": weight(4, 3, 1, 1),
        "low": np.float32(0),
        "high": np.float32(6),
        "slope": np.full((4, 1, 1), 0.25, np.float32),
    }
    used = {name: value for name, value in constants.items() if name in ("w", *extra)}
    nodes = [conv(["x", "w"], "c", "conv"), node(op_type, ["c", *extra], ["y"], name="act")]
    return build(nodes, {"x": [1, 3, 6, 6]}, {"y": [1, 4, 6, 6]}, used)
