"""A small transformer block with inputs that are correlated, as those of real layers are."""

from __future__ import annotations

import numpy as np

from support.models import build, info, node

WIDTH, HIDDEN, VOCABULARY = 64, 128, 96


def make_block(*, dtype=np.float32, seed=0, depth=2, tied=False):
    """Token ids in, logits out: an embedding, gated layers with residuals and norms, a head.

    A tied head reads the embedding: as a Gemm, or behind a "transpose".
    """
    rng = np.random.default_rng(seed)

    def weight(*shape):
        return (rng.normal(size=shape) / np.sqrt(shape[0])).astype(dtype)

    mixing = (np.eye(WIDTH) + 0.9 * rng.normal(size=(WIDTH, WIDTH)) / 4).astype(dtype)
    table = (rng.normal(size=(VOCABULARY, WIDTH)) @ mixing).astype(dtype)
    table[:, :3] *= 12  # a few channels are much larger, as in language models
    constants = {"embedding": table}
    nodes = [node("Gather", ["embedding", "ids"], ["x0"], "embed")]
    current = "x0"
    onnx_type = 1 if dtype == np.float32 else 10
    for layer in range(depth):
        names = {k: f"{k}{layer}" for k in ("gain", "bias", "gate", "up", "down")}
        constants[names["gain"]] = np.exp(0.2 * rng.normal(size=WIDTH)).astype(dtype)
        constants[names["bias"]] = np.zeros(WIDTH, dtype)
        constants[names["gate"]] = weight(WIDTH, HIDDEN)
        constants[names["up"]] = weight(WIDTH, HIDDEN)
        constants[names["down"]] = weight(HIDDEN, WIDTH)
        n = layer
        nodes += [
            node("LayerNormalization", [current, f"gain{n}", f"bias{n}"], [f"h{n}"], f"norm{n}"),
            node("MatMul", [f"h{n}", f"gate{n}"], [f"g{n}"], f"gate{n}/MatMul"),
            node("MatMul", [f"h{n}", f"up{n}"], [f"u{n}"], f"up{n}/MatMul"),
            node("Sigmoid", [f"g{n}"], [f"s{n}"], f"sigmoid{n}"),
            node("Mul", [f"g{n}", f"s{n}"], [f"a{n}"], f"silu{n}"),
            node("Mul", [f"a{n}", f"u{n}"], [f"b{n}"], f"both{n}"),
            node("MatMul", [f"b{n}", f"down{n}"], [f"d{n}"], f"down{n}/MatMul"),
            node("Add", [current, f"d{n}"], [f"x{n + 1}"], f"sum{n}"),
        ]
        current = f"x{n + 1}"
    if tied == "transpose":
        nodes += [
            node("Transpose", ["embedding"], ["turned"], "turn", perm=[1, 0]),
            node("MatMul", [current, "turned"], ["logits"], "head/MatMul"),
        ]
        shape = [1, "n", VOCABULARY]
    elif tied:
        nodes += [
            node("Reshape", [current, "flat"], ["rows"], "rows"),
            node("Gemm", ["rows", "embedding"], ["logits"], "head", transB=1),
        ]
        constants["flat"] = np.array([-1, WIDTH], np.int64)
        shape = ["n", VOCABULARY]
    else:
        constants["head"] = weight(WIDTH, VOCABULARY)
        nodes.append(node("MatMul", [current, "head"], ["logits"], "head/MatMul"))
        shape = [1, "n", VOCABULARY]
    return build(
        nodes,
        [info("ids", [1, "n"], 7)],
        [info("logits", shape, onnx_type)],
        constants,
        opset=21,
        ir_version=10,
    )


def make_samples(count=12, length=48, seed=1):
    rng = np.random.default_rng(seed)
    return [{"ids": rng.integers(0, VOCABULARY, size=(1, length))} for _ in range(count)]


def make_decoder(*, seed=0, width=16, vocabulary=48, shapes=None):
    """A decoder with a cache: one layer of attention, named as exporters name it.

    `shapes` are shapes of inputs instead of its own.
    """
    rng = np.random.default_rng(seed)
    constants = {
        name: (rng.normal(size=(width, width)) / np.sqrt(width)).astype(np.float32)
        for name in ("q", "k", "v", "o")
    }
    constants["embedding"] = rng.normal(size=(vocabulary, width)).astype(np.float32)
    constants["head"] = rng.normal(size=(width, vocabulary)).astype(np.float32)
    constants["angles"] = rng.normal(size=(256, width)).astype(np.float32)
    for name, values in {"one": [1], "two": [2], "axis0": 0, "step": 1}.items():
        constants[name] = np.array(values, np.int64)
    constants |= {"zero": np.float32(0), "never": np.float32(-1e9)}
    nodes = [
        node("Gather", ["embedding", "input_ids"], ["tokens"]),
        node("Gather", ["angles", "position_ids"], ["turns"]),
        node("Add", ["tokens", "turns"], ["x"]),
        *(node("MatMul", ["x", name], [f"{name}_flat"], f"{name}/MatMul") for name in "qkv"),
        *(node("Unsqueeze", [f"{name}_flat", "one"], [f"{name}_now"]) for name in "qkv"),
        node("Concat", ["past_key_values.0.key", "k_now"], ["present.0.key"], axis=2),
        node("Concat", ["past_key_values.0.value", "v_now"], ["present.0.value"], axis=2),
        node("Transpose", ["present.0.key"], ["keys"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q_now", "keys"], ["scores"]),
        node("Shape", ["attention_mask"], ["total1"], start=1, end=2),
        node("Squeeze", ["total1"], ["total"]),
        node("Range", ["axis0", "total", "step"], ["places"]),
        node("Unsqueeze", ["position_ids", "two"], ["here"]),
        node("LessOrEqual", ["places", "here"], ["before"]),
        node("Cast", ["attention_mask"], ["kept"], to=9),
        node("And", ["before", "kept"], ["seen"]),
        node("Where", ["seen", "zero", "never"], ["mask"]),
        node("Add", ["scores", "mask"], ["masked"]),
        node("Softmax", ["masked"], ["shares"], axis=-1),
        node("MatMul", ["shares", "present.0.value"], ["mixed"]),
        node("Squeeze", ["mixed", "one"], ["flat"]),
        node("MatMul", ["flat", "o"], ["out"], "o/MatMul"),
        node("Add", ["x", "out"], ["y"]),
        node("MatMul", ["y", "head"], ["logits"], "head/MatMul"),
    ]
    sizes = {
        "input_ids": [1, "n"],
        "attention_mask": [1, "total"],
        "position_ids": [1, "n"],
        "past_key_values.0.key": [1, 1, "past", width],
        "past_key_values.0.value": [1, 1, "past", width],
    } | (shapes or {})
    inputs = [info(name, shape, 1 if "past" in name else 7) for name, shape in sizes.items()]
    outputs = [
        info("logits", [1, "n", vocabulary]),
        info("present.0.key", [1, 1, "all", width]),
        info("present.0.value", [1, 1, "all", width]),
    ]
    return build(nodes, inputs, outputs, constants, opset=21, ir_version=10)
