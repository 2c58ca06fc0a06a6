"""A tiny encoder with tokens as inputs, in a folder as exporters of transformers write it."""

import json

import numpy as np
import onnx
from onnx import TensorProto

from support.models import build, info, node

WORDS, WIDTH = 64, 64
CONFIG = {"model_type": "bert", "hidden_size": WIDTH, "vocab_size": WORDS}


def make_encoder(*, mask=-1e4, times=1, seed=0):
    """Embeddings, one attention behind a mask as old exports write it, and a product.

    The mask is added so many times.
    """
    random = np.random.default_rng(seed)

    def weight(*shape):
        return (random.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)

    constants = {
        "table": weight(WORDS, WIDTH) * 8,
        **{name: weight(WIDTH, WIDTH) for name in ("wq", "wk", "wv", "wo")},
        "one": np.float32(1),
        "least": np.float32(mask),
        "root": np.float32(WIDTH**-0.5),
        "axes": np.int64([1]),
    }
    nodes = [
        node("Gather", ["table", "input_ids"], ["x"], "embed"),
        *(node("MatMul", ["x", f"w{n}"], [n], f"to_{n}") for n in "qkv"),
        node("Transpose", ["k"], ["kt"], "turn", perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["raw"], "scores"),
        node("Mul", ["raw", "root"], ["scaled"], "scale"),
        node("Cast", ["attention_mask"], ["seen"], "as_float", to=TensorProto.FLOAT),
        node("Sub", ["one", "seen"], ["hidden"], "invert"),
        node("Mul", ["hidden", "least"], ["added"], "mask"),
        node("Unsqueeze", ["added", "axes"], ["wide"], "spread"),
        *(
            node("Add", [f"s{n}" if n else "scaled", "wide"], [f"s{n + 1}"], f"add_mask{n or ''}")
            for n in range(times)
        ),
        node("Softmax", [f"s{times}"], ["weights"], "softmax", axis=-1),
        node("MatMul", ["weights", "v"], ["mixed"], "mix"),
        node("MatMul", ["mixed", "wo"], ["last_hidden_state"], "project"),
    ]
    ids = [
        info(name, ["batch", "length"], TensorProto.INT64)
        for name in ("input_ids", "attention_mask")
    ]
    outputs = [info("last_hidden_state", ["batch", "length", WIDTH])]
    return build(nodes, ids, outputs, constants)


def make_encoder_folder(path, **options):
    """Write it beside a configuration and a tokenizer's file."""
    path.mkdir()
    onnx.save(make_encoder(**options), path / "model.onnx")
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "tokenizer_config.json").write_text("{}")
    return path
