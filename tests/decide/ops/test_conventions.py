"""Rules of ONNX Runtime's tool: the same nodes and scales as its own."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import build, constants_of, info, make_samples, node, ops, weight
from support.peer_runs import quantize_both, quiet  # noqa: F401 (a fixture)

from bitwright.decide.ops.conventions import rule_for
from bitwright.recipe import Emulation, Recipe

BOUNDS = {"lo": np.float32(-1), "hi": np.float32(1)}
PADS = {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1])}


def behind_conv(*nodes, constants=None, inputs=None, size=6):
    nodes = [node("Conv", ["x", "w"], ["c"], name="conv"), *nodes]
    inputs = inputs or {"x": [1, 3, 8, 8]}
    return build(
        nodes, inputs, {"y": [1, 4, size, size]}, {"w": weight(4, 3, 3, 3), **(constants or {})}
    )


def before_conv(first, size=6, constants=None):
    nodes = [first, node("Conv", ["t", "w"], ["y"], name="conv")]
    constants = {"w": weight(4, 3, 1, 1), **(constants or {})}
    return build(nodes, {"x": [1, 3, 6, 6]}, {"y": [1, 4, size, size]}, constants)


def make_two_readers():
    nodes = [node("Relu", ["c"], ["r"], name="relu"), node("Add", ["c", "r"], ["y"], name="add")]
    return behind_conv(*nodes)


def make_split():
    nodes = [
        node("Split", ["x"], ["a", "b"], name="split", axis=1, num_outputs=2),
        node("Add", ["a", "b"], ["y"], name="add"),
    ]
    return build(nodes, {"x": [1, 4, 6, 6]}, {"y": [1, 2, 6, 6]}, opset=18)


def make_run_time_pad():
    pad = node("Pad", ["c", "p", "v"], ["y"], name="pad")
    inputs = [info("x", [1, 3, 8, 8]), info("v", [])]
    return behind_conv(pad, constants=PADS, inputs=inputs, size=8)


RELU = node("Relu", ["c"], ["y"], name="relu")
CLIP = node("Clip", ["c", "lo", "hi"], ["y"], name="clip")
POOL = node("AveragePool", ["c"], ["y"], name="pool", kernel_shape=[2, 2])
PAD = node("Pad", ["c", "p", "v"], ["y"], name="pad")
MODELS = {
    "relu": lambda: behind_conv(RELU),
    "clip": lambda: behind_conv(CLIP, constants=BOUNDS),
    "relu and clip": lambda: behind_conv(
        node("Relu", ["c"], ["r"], name="relu"),
        node("Clip", ["r", "lo", "hi"], ["y"], name="clip"),
        constants=BOUNDS,
    ),
    "relu behind a pool": lambda: behind_conv(
        node("MaxPool", ["c"], ["m"], name="pool", kernel_shape=[1, 1]),
        node("Relu", ["m"], ["y"], name="relu"),
    ),
    "two readers": make_two_readers,
    "relu first": lambda: before_conv(node("Relu", ["x"], ["t"], name="first")),
    "pad first": lambda: before_conv(
        node("Pad", ["x", "p"], ["t"], name="first"), 8, constants=PADS
    ),
    "padded with a number": lambda: behind_conv(
        PAD, constants={**PADS, "v": np.float32(0.5)}, size=8
    ),
    "padded at run time": make_run_time_pad,
    "global pool first": lambda: before_conv(
        node("GlobalAveragePool", ["x"], ["t"], name="first"), 1
    ),
    "pool first": lambda: before_conv(
        node("AveragePool", ["x"], ["t"], name="first", kernel_shape=[2, 2]), 5
    ),
    "pool": lambda: behind_conv(POOL, size=5),
    "split first": make_split,
    "transpose first": lambda: before_conv(
        node("Transpose", ["x"], ["t"], name="first", perm=[0, 1, 3, 2])
    ),
}
OPTIONS = {
    "default": {},
    "symmetric": {"ActivationSymmetric": True},
    "forced": {"ForceQuantizeNoInputCheck": True},
    "kept": {"QDQKeepRemovableActivations": True},
}
# The other tool lets a Relu go whose input others read unclipped, and rounds a value that is known
# at run time only to the range of what it pads.
OURS_IS_RIGHT = {
    ("two readers", "QOperator"),
    ("relu behind a pool", "QOperator"),
    ("padded at run time", "QOperator"),
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("quant_format", ["QDQ", "QOperator"])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.sampled(40)
def test_nodes_and_scales_are_the_peers(tmp_path, kind, quant_format, options):
    if (kind, quant_format) in OURS_IS_RIGHT:
        pytest.skip("the other tool computes other numbers than the float model")
    model = MODELS[kind]()
    mine, theirs = quantize_both(
        tmp_path,
        model,
        make_samples(model),
        activation_type="QUInt8",
        quant_format=quant_format,
        extra_options=OPTIONS[options],
    )
    assert ops(mine) == ops(theirs)
    found, wanted = constants_of(mine), constants_of(theirs)
    for name in found.keys() & wanted.keys():
        if name.endswith("_scale"):
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5)


def test_another_tool_keeps_the_scale_of_an_average():
    other = Recipe(emulate=Emulation(conventions="onnxruntime"))
    assert rule_for("AveragePool", other).keeps_scale
    assert not rule_for("AveragePool", Recipe()).keeps_scale
