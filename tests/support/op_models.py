"""A tiny model for every operator that has a rule: a convolution or a MatMul feeds it and follows.

So the operator lies between quantized neighbours, where its rule applies in full.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from support.models import build, info, node, normal, random_samples, weight

BEFORE = ("conv", [1, 8, 6, 6])
FLAT = ("matmul", [4, 16])


def _between(kind, shape, nodes, constants, out_shape, opset):
    """Put nodes that turn `h` into `k` between two weighted nodes."""
    if kind == "conv":
        first = node("Conv", ["x", "w_in"], ["h"], name="before", pads=[1, 1, 1, 1])
        constants = {"w_in": weight(8, 3, 3, 3, seed=90), **constants}
        inputs = {"x": [1, 3, 6, 6]}
    else:
        first = node("MatMul", ["x", "w_in"], ["h"], name="before")
        constants = {"w_in": weight(8, 16, seed=90), **constants}
        inputs = {"x": [4, 8]}
    last = []
    result = "k"
    if out_shape is not None and len(out_shape) == 4:
        last = [node("Conv", ["k", "w_out"], ["y"], name="after")]
        constants["w_out"] = weight(4, out_shape[1], 1, 1, seed=91)
        result, out_shape = "y", [out_shape[0], 4, *out_shape[2:]]
    elif out_shape is not None:
        last = [node("MatMul", ["k", "w_out"], ["y"], name="after")]
        constants["w_out"] = weight(out_shape[-1], 4, seed=92)
        result, out_shape = "y", [*out_shape[:-1], 4]
    return build([first, *nodes, *last], inputs, [info(result, out_shape)], constants, opset=opset)


def _op(op_type, inputs=("h",), *, on=BEFORE, out=None, opset=17, constants=None, **attributes):
    kind, shape = on
    nodes = [node(op_type, list(inputs), ["k"], name="op", **attributes)]
    return _between(kind, shape, nodes, dict(constants or {}), out or shape, opset)


def _number(value):
    return np.array(value, np.float32)


def _ints(*values):
    return np.array(values, np.int64)


def _where():
    nodes = [
        node("Sigmoid", ["h"], ["s"], name="other"),
        node("Where", ["choice", "h", "s"], ["k"], name="op"),
    ]
    choice = np.random.default_rng(3).random((1, 8, 6, 6)) > 0.5
    return _between(*BEFORE, nodes, {"choice": choice}, BEFORE[1], 17)


def _two_branches(op_type, **attributes):
    nodes = [
        node("Sigmoid", ["h"], ["s"], name="other"),
        node(op_type, ["h", "s"], ["k"], name="op", **attributes),
    ]
    out = [1, 16, 6, 6] if op_type == "Concat" else BEFORE[1]
    return _between(*BEFORE, nodes, {}, out, 17)


def _split():
    nodes = [
        node("Split", ["h", "parts"], ["k", "other"], name="op", axis=1),
        node("Conv", ["other", "w_side"], ["side"], name="side"),
    ]
    constants = {"parts": _ints(4, 4), "w_side": weight(4, 4, 1, 1, seed=9)}
    model = _between(*BEFORE, nodes, constants, [1, 4, 6, 6], 17)
    model.graph.output.append(info("side", [1, 4, 6, 6]))
    return model


def _top_k():
    nodes = [node("TopK", ["h", "count"], ["k", "where"], name="op", axis=-1)]
    model = _between(*FLAT, nodes, {"count": _ints(5)}, [4, 5], 17)
    model.graph.output.append(info("where", [4, 5], TensorProto.INT64))
    return model


def _arg_max():
    nodes = [node("ArgMax", ["h"], ["where"], name="op", axis=-1, keepdims=0)]
    nodes.append(node("Identity", ["h"], ["k"], name="rest"))
    model = _between(*FLAT, nodes, {}, FLAT[1], 17)
    model.graph.output.append(info("where", [4], TensorProto.INT64))
    return model


def _embed_layer_norm():
    ids = info("ids", [2, 6], TensorProto.INT32)
    nodes = [
        node(
            "EmbedLayerNormalization",
            ["ids", "", "words", "places", "", "gamma", "beta"],
            ["k", "m"],
            name="op",
            domain="com.microsoft",
        ),
        node("MatMul", ["k", "w_out"], ["y"], name="after"),
    ]
    constants = {
        "words": normal(20, 16, seed=1),
        "places": normal(6, 16, seed=2),
        "gamma": 1 + normal(16, seed=3, size=0.1),
        "beta": normal(16, seed=4, size=0.1),
        "w_out": weight(16, 4, seed=5),
    }
    return build(nodes, [ids], {"y": [2, 6, 4]}, constants, domains=["com.microsoft"])


def _normalization(op_type, on, **attributes):
    width = on[1][1] if op_type != "LayerNormalization" else on[1][-1]
    constants = {
        "scale": 1 + normal(width, seed=1, size=0.2),
        "shift": normal(width, seed=2, size=0.2),
    }
    inputs = ["h", "scale", "shift"]
    if op_type == "BatchNormalization":
        constants |= {"mean": normal(8, seed=3), "var": 1 + np.abs(normal(8, seed=4))}
        inputs += ["mean", "var"]
    return _op(op_type, inputs, on=on, constants=constants, **attributes)


OP_MODELS = {
    "Conv": lambda: _op(
        "Conv", ["h", "w", "b"], constants={"w": weight(8, 8, 1, 1), "b": normal(8, seed=7)}
    ),
    "ConvTranspose": lambda: _op(
        "ConvTranspose",
        ["h", "w", "b"],
        constants={"w": weight(8, 5, 2, 2), "b": normal(5, seed=7)},
        out=[1, 5, 12, 12],
        strides=[2, 2],
    ),
    "Gemm": lambda: _op(
        "Gemm",
        ["h", "w", "b"],
        on=FLAT,
        constants={"w": weight(16, 8).T.copy(), "b": normal(8, seed=7)},
        out=[4, 8],
        transB=1,
    ),
    "MatMul": lambda: _op("MatMul", ["h", "w"], on=FLAT, constants={"w": weight(16, 16)}),
    "InstanceNormalization": lambda: _normalization("InstanceNormalization", BEFORE),
    "LayerNormalization": lambda: _normalization("LayerNormalization", FLAT),
    "BatchNormalization": lambda: _between(
        *BEFORE,
        [
            node("Sigmoid", ["h"], ["s"], name="other"),
            node("BatchNormalization", ["s", *"abcd"], ["k"], name="op"),
        ],
        {
            "a": 1 + normal(8, seed=1, size=0.2),
            "b": normal(8, seed=2, size=0.2),
            "c": normal(8, seed=3, size=0.2),
            "d": 1 + np.abs(normal(8, seed=4)),
        },
        BEFORE[1],
        17,
    ),
    "Reshape": lambda: _op(
        "Reshape", ["h", "to"], constants={"to": _ints(1, 16, 3, 6)}, out=[1, 16, 3, 6]
    ),
    "Transpose": lambda: _op("Transpose", perm=[0, 1, 3, 2]),
    "Squeeze": lambda: _between(
        *FLAT,
        [
            node("Unsqueeze", ["h", "at"], ["u"], name="other"),
            node("Squeeze", ["u", "at"], ["k"], name="op"),
        ],
        {"at": _ints(0)},
        FLAT[1],
        17,
    ),
    "Unsqueeze": lambda: _op(
        "Unsqueeze", ["h", "at"], on=FLAT, constants={"at": _ints(0)}, out=[1, 4, 16]
    ),
    "Flatten": lambda: _op("Flatten", out=[1, 288]),
    "Slice": lambda: _op(
        "Slice",
        ["h", "from", "to", "along"],
        constants={"from": _ints(1), "to": _ints(5), "along": _ints(2)},
        out=[1, 8, 4, 6],
    ),
    "TopK": _top_k,
    "MaxPool": lambda: _op("MaxPool", kernel_shape=[2, 2], strides=[2, 2], out=[1, 8, 3, 3]),
    "GatherElements": lambda: _op(
        "GatherElements",
        ["h", "which"],
        on=FLAT,
        constants={"which": np.random.default_rng(1).integers(0, 16, (4, 16))},
        axis=1,
    ),
    "DepthToSpace": lambda: _op("DepthToSpace", blocksize=2, out=[1, 2, 12, 12]),
    "SpaceToDepth": lambda: _op("SpaceToDepth", blocksize=2, out=[1, 32, 3, 3]),
    "Gather": lambda: _op(
        "Gather", ["h", "which"], constants={"which": _ints(1, 3, 5, 7)}, axis=1, out=[1, 4, 6, 6]
    ),
    "Split": _split,
    # One that crops, too: no convolution can take it in.
    "Pad": lambda: _op(
        "Pad", ["h", "by"], constants={"by": _ints(0, 0, 1, 3, 0, 0, 1, -1)}, out=[1, 8, 8, 8]
    ),
    "Resize": lambda: _op(
        "Resize",
        ["h", "", "by"],
        constants={"by": np.array([1, 1, 2, 2], np.float32)},
        mode="nearest",
        out=[1, 8, 12, 12],
    ),
    "AveragePool": lambda: _op(
        "AveragePool", kernel_shape=[2, 2], strides=[2, 2], out=[1, 8, 3, 3]
    ),
    "Relu": lambda: _op("Relu"),
    "Clip": lambda: _op(
        "Clip", ["h", "low", "high"], constants={"low": _number(0), "high": _number(6)}
    ),
    "Add": lambda: _two_branches("Add"),
    "Sub": lambda: _two_branches("Sub"),
    "Mul": lambda: _two_branches("Mul"),
    "Div": lambda: _between(
        *BEFORE,
        [
            node("Sigmoid", ["h"], ["s"], name="other"),
            node("Add", ["s", "one"], ["t"], name="away_from_zero"),
            node("Div", ["h", "t"], ["k"], name="op"),
        ],
        {"one": _number([[[1.5]]])},
        BEFORE[1],
        17,
    ),
    "Min": lambda: _two_branches("Min"),
    "Max": lambda: _two_branches("Max"),
    "Concat": lambda: _two_branches("Concat", axis=1),
    "Where": _where,
    "Softmax": lambda: _op("Softmax", on=FLAT, axis=-1),
    "ArgMax": _arg_max,
    "CumSum": lambda: _op("CumSum", ["h", "along"], on=FLAT, constants={"along": np.array(1)}),
    "ReduceMean": lambda: _op("ReduceMean", axes=[2, 3], keepdims=1, out=[1, 8, 1, 1]),
    "PRelu": lambda: _op(
        "PRelu", ["h", "slope"], constants={"slope": np.abs(normal(8, 1, 1, seed=1))}
    ),
    "Sigmoid": lambda: _op("Sigmoid"),
    "HardSigmoid": lambda: _op("HardSigmoid"),
    "LeakyRelu": lambda: _op("LeakyRelu", alpha=0.2),
    "GlobalAveragePool": lambda: _op("GlobalAveragePool", out=[1, 8, 1, 1]),
    "EmbedLayerNormalization": _embed_layer_norm,
    "Tanh": lambda: _op("Tanh"),
    "Gelu": lambda: _op("Gelu", opset=20),
    "Erf": lambda: _op("Erf"),
    "LpNormalization": lambda: _op("LpNormalization", on=FLAT, axis=-1, p=2),
}
"""Op type -> a function that builds its model; the node in question is called `op`."""


def op_samples(model, count=6):
    """Return data for one of the models above."""
    return random_samples(model, count, seed=5)
