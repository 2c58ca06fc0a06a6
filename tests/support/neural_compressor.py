"""Models, loaders and errors for tests of Neural Compressor's functions."""

import re

import numpy as np
from onnx import helper

from support.models import (
    build,
    node,
    normal,
    run,
    weight,
)

CPU = ["CPUExecutionProvider"]


# Arrays ---------------------------------------------------------------------------------------

GROUP = [-1.0, -0.3, 0.2, 0.7]


# Data -----------------------------------------------------------------------------------------


class Loader:
    """As Neural Compressor's: (inputs, label), with a batch size."""

    def __init__(self, samples, batch_size=1):
        self.samples, self.batch_size = samples, batch_size

    def __iter__(self):
        return ((sample, 0) for sample in self.samples)


def mlp(**options):
    constants = {"w1": weight(64, 96), "w2": weight(96, 32, seed=1)}
    nodes = [
        node("MatMul", ["x", "w1"], ["h"], name="fc1"),
        node("Relu", ["h"], ["r"], name="relu"),
        node("MatMul", ["r", "w2"], ["y"], name="fc2"),
    ]
    return build(nodes, {"x": ["m", 64]}, {"y": ["m", 32]}, constants, opset=21, **options)


def rows(count=6, length=24):
    size = np.exp(np.random.default_rng(1).normal(size=64))
    return [(normal(length, 64, seed=seed) * size).astype(np.float32) for seed in range(count)]


def attributes(model):
    """Return the attributes of packed nodes, by the names that the nodes had."""
    return {
        re.sub(r"_Q\d$", "", n.name): {a.name: helper.get_attribute_value(a) for a in n.attribute}
        for n in model.nodes()
        if n.op_type == "MatMulNBits"
    }


def error(model, found, samples):
    lost = [
        ((run(model, s)[0] - run(found, s)[0]) ** 2).sum() / (run(model, s)[0] ** 2).sum()
        for s in samples
    ]
    return float(np.mean(lost))
