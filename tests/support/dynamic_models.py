"""A small model for each operator that a dynamic recipe knows, and data for it."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from support.models import BOOL, build, info, node, normal, random_samples, weight

MICROSOFT = ["com.microsoft"]


def make_matmul(b=(16, 8), x=(3, 16)):
    return build(
        [node("MatMul", ["x", "w"], ["y"], name="op")],
        {"x": list(x)},
        {"y": None},
        {"w": weight(*b)},
    )


def make_gemm(**attributes):
    w = weight(16, 5)
    constants = {"w": w.T.copy() if attributes.get("transB") else w, "c": normal(5, seed=3)}
    shape = [16, 4] if attributes.get("transA") else [4, 16]
    nodes = [node("Gemm", ["x", "w", "c"], ["y"], name="op", **attributes)]
    return build(nodes, {"x": shape}, {"y": [4, 5]}, constants)


def make_conv(dimensions=2, *, bias=True, group=1, **attributes):
    size = [6] * dimensions
    constants = {"w": weight(8, 4 // group, *[3] * dimensions), "b": normal(8, seed=1)}
    inputs = ["x", "w", "b"] if bias else ["x", "w"]
    nodes = [node("Conv", inputs, ["y"], name="op", group=group, **attributes)]
    if not bias:
        del constants["b"]
    return build(nodes, {"x": [1, 4, *size]}, {"y": None}, constants)


def make_lstm(directions=1, **attributes):
    hidden, inputs = 8, 5
    constants = {
        "W": normal(directions, 4 * hidden, inputs, seed=1, size=0.5),
        "R": normal(directions, 4 * hidden, hidden, seed=2, size=0.5),
        "B": normal(directions, 8 * hidden, seed=3, size=0.2),
    }
    # Rows of one direction differ in size, as those of different gates do.
    constants["W"] *= np.linspace(0.2, 2, 4 * hidden, dtype=np.float32)[None, :, None]
    direction = {1: "forward", 2: "bidirectional"}[directions]
    lstm = node(
        "LSTM",
        ["x", "W", "R", "B", "", "h0", "c0"],
        ["y", "", "c"],
        name="op",
        hidden_size=hidden,
        direction=direction,
        **attributes,
    )
    state = [directions, 2, hidden]
    return build(
        [lstm],
        {"x": [6, 2, inputs], "h0": state, "c0": state},
        {"y": [6, directions, 2, hidden], "c": state},
        constants,
    )


def make_attention(mask=False, **attributes):
    inputs = {"x": [2, 5, 16]}
    infos = [info(name, shape) for name, shape in inputs.items()]
    names = ["x", "w", "b"]
    if mask:
        infos.append(info("mask", [2, 5], TensorProto.INT32))
        names.append("mask")
    attention = node(
        "Attention", names, ["y"], name="op", domain="com.microsoft", num_heads=2, **attributes
    )
    constants = {"w": weight(16, 48), "b": normal(48, seed=2, size=0.1)}
    return build([attention], infos, {"y": [2, 5, 16]}, constants, domains=MICROSOFT)


def make_embedding(segments=False):
    infos = [info("ids", [2, 6], TensorProto.INT32)]
    constants = {
        "words": normal(20, 16, seed=1),
        "places": normal(6, 16, seed=2),
        "gamma": 1 + normal(16, seed=3, size=0.1),
        "beta": normal(16, seed=4, size=0.1),
    }
    names = ["ids", "", "words", "places", "", "gamma", "beta"]
    if segments:
        infos.append(info("mask", [2, 6], TensorProto.INT32))
        constants["parts"] = normal(20, 16, seed=5)
        names[1], names[4] = "mask", "parts"
        names.append("mask")
    embed = node(
        "EmbedLayerNormalization", names, ["y", "index"], name="op", domain="com.microsoft"
    )
    return build([embed], infos, {"y": [2, 6, 16]}, constants, domains=MICROSOFT)


def make_gather():
    """A table whose rows are multiplied, turned and multiplied, and given out."""
    nodes = [
        node("Gather", ["table", "ids"], ["rows"], name="op"),
        node("MatMul", ["rows", "w"], ["y"], name="first"),
        node("Transpose", ["rows"], ["turned"], name="turn", perm=[0, 2, 1]),
        node("MatMul", ["turned", "v"], ["z"], name="second"),
        node("Identity", ["rows"], ["out"], name="copy"),
    ]
    constants = {"table": normal(20, 16), "w": weight(16, 4, seed=1), "v": weight(6, 3, seed=2)}
    ids = info("ids", [2, 6], TensorProto.INT64)
    return build(nodes, [ids], {"y": None, "z": None, "out": None}, constants)


def make_branches():
    """An If whose branches multiply by weights of their own and by one of the outer graph."""

    def branch(name, seed):
        nodes = [
            node("MatMul", ["x", f"{name}_w"], [f"{name}_h"], name=f"{name}_own"),
            node("MatMul", [f"{name}_h", "shared"], [f"{name}_y"], name=f"{name}_shared"),
        ]
        own = helper.make_tensor(
            f"{name}_w", TensorProto.FLOAT, [16, 16], weight(16, 16, seed=seed).reshape(-1)
        )
        return helper.make_graph(nodes, name, [], [info(f"{name}_y", [3, 4])], [own])

    choice = node(
        "If", ["which"], ["y"], name="choice",
        then_branch=branch("then", 1), else_branch=branch("other", 2),
    )  # fmt: skip
    inputs = [info("which", [], BOOL), info("x", [3, 16])]
    return build([choice], inputs, {"y": [3, 4]}, {"shared": weight(16, 4, seed=3)})


DYNAMIC_MODELS = {
    "MatMul": make_matmul,
    "MatMul of batches": lambda: make_matmul((2, 16, 8), (2, 3, 16)),
    "MatMul with a vector": lambda: make_matmul((16,)),
    "Gemm": make_gemm,
    "Gemm, turned weight": lambda: make_gemm(transB=1),
    "Gemm, all attributes": lambda: make_gemm(transA=1, transB=1, alpha=0.5, beta=2.0),
    "Conv": make_conv,
    "Conv of signals": lambda: make_conv(1, pads=[1, 1]),
    "Conv of volumes": lambda: make_conv(3, bias=False),
    "Conv in groups": lambda: make_conv(group=4, strides=[2, 2]),
    "LSTM": make_lstm,
    "LSTM both ways": lambda: make_lstm(2),
    "Attention": make_attention,
    "Attention with a mask": lambda: make_attention(mask=True),
    "EmbedLayerNormalization": make_embedding,
    "EmbedLayerNormalization with segments": lambda: make_embedding(segments=True),
    "Gather": make_gather,
}
"""What it shows -> a function that builds the model."""


def dynamic_samples(model, count=4, seed=0):
    """Return data for one of the models above."""
    return random_samples(model, count, seed)
