"""Ten small models of the kinds that run on accelerators, with fixed shapes."""

from __future__ import annotations

import numpy as np

from support.equalization_models import make_mobilenet
from support.models import build, make_cnn, make_mlp, make_transformer, node, normal, weight


def make_yolo():
    """Swish behind convolutions, a split with a short cut, a pool, a join and a Resize."""
    constants = {
        "w1": weight(8, 3, 3, 3, seed=1),
        "b1": normal(8, seed=2, size=0.1),
        "w2": weight(4, 4, 3, 3, seed=3),
        "b2": normal(4, seed=4, size=0.1),
        "w3": weight(6, 20, 1, 1, seed=5),
        "b3": normal(6, seed=6, size=0.1),
        "halves": [4, 4],
        "scales": np.array([1, 1, 2, 2], np.float32),
    }
    pool = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], name="conv1", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Sigmoid", ["c1"], ["s1"], name="sigmoid1"),
        node("Mul", ["c1", "s1"], ["a1"], name="swish1"),
        node("Split", ["a1", "halves"], ["left", "right"], name="split", axis=1),
        node("Conv", ["right", "w2", "b2"], ["c2"], name="conv2", pads=[1, 1, 1, 1]),
        node("Add", ["c2", "right"], ["r"], name="residual"),
        node("MaxPool", ["r"], ["p"], name="pool", **pool),
        node("Concat", ["left", "r", "p", "a1"], ["j"], name="join", axis=1),
        node("Conv", ["j", "w3", "b3"], ["c3"], name="conv3"),
        node("Resize", ["c3", "", "scales"], ["y"], name="up", mode="nearest"),
    ]
    return build(nodes, {"x": [1, 3, 16, 16]}, {"y": [1, 6, 16, 16]}, constants)


def make_segmenter():
    """An encoder and a decoder with a transposed convolution and a Pad."""
    constants = {
        "w1": weight(6, 3, 3, 3, seed=1),
        "w2": weight(6, 4, 2, 2, seed=2),
        "b2": normal(4, seed=3, size=0.1),
        "pads": [0, 0, 1, 1, 0, 0, 1, 1],
    }
    nodes = [
        node("Pad", ["x", "pads"], ["q"], name="pad"),
        node("Conv", ["q", "w1"], ["c"], name="conv", strides=[2, 2]),
        node("LeakyRelu", ["c"], ["l"], name="leaky", alpha=0.1),
        node("ConvTranspose", ["l", "w2", "b2"], ["t"], name="up", strides=[2, 2]),
        node("Relu", ["t"], ["y"], name="relu"),
    ]
    return build(nodes, {"x": [1, 3, 9, 9]}, {"y": [1, 4, 10, 10]}, constants)


def make_gates():
    """Tanh and sigmoid gates over two products, as in recurrent cells."""
    constants = {"v": weight(8, 12, seed=1), "w": weight(8, 12, seed=2)}
    nodes = [
        node("MatMul", ["x", "v"], ["a"], name="first"),
        node("MatMul", ["x", "w"], ["b"], name="second"),
        node("Tanh", ["a"], ["t"], name="tanh"),
        node("Sigmoid", ["b"], ["s"], name="sigmoid"),
        node("Mul", ["t", "s"], ["y"], name="gate"),
    ]
    return build(nodes, {"x": [4, 8]}, {"y": [4, 12]}, constants)


def make_pools():
    """Branches of pools that are joined, then averaged and classified."""
    constants = {"w": weight(6, 3, 1, 1, seed=1), "v": weight(12, 5, seed=2)}
    pool = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv"),
        node("AveragePool", ["c"], ["a"], name="average", **pool),
        node("MaxPool", ["c"], ["m"], name="most", **pool),
        node("Concat", ["a", "m"], ["j"], name="join", axis=1),
        node("GlobalAveragePool", ["j"], ["g"], name="mean"),
        node("Flatten", ["g"], ["f"], name="flatten"),
        node("MatMul", ["f", "v"], ["l"], name="classify"),
        node("Softmax", ["l"], ["y"], name="softmax"),
    ]
    return build(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 5]}, constants)


def fix_batch(model, size=4):
    """Give a model the batch that it leaves open."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = size
    return model


MODELS = {
    "resnet": make_cnn,
    "wide resnet": lambda: make_cnn(channels=16),
    "mobilenet": make_mobilenet,
    "mobilenet with relu6": lambda: make_mobilenet(clip=(0.0, 6.0)),
    "yolo": make_yolo,
    "segmenter": make_segmenter,
    "pools": make_pools,
    "gates": make_gates,
    "transformer": make_transformer,
    "mlp": lambda: fix_batch(make_mlp()),
}
