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
