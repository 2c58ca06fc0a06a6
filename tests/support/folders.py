"""A folder of a language model as onnxruntime-genai's builder writes it, tiny."""

from __future__ import annotations

import json

import numpy as np
import onnx

from support.language_models import VOCABULARY, make_block
from support.models import build, info, node

CONFIG = {
    "model": {"type": "llama", "decoder": {"filename": "model.onnx", "head_size": 16}},
    "search": {"max_length": 64},
}


class Letters:
    """A tokenizer that needs no package: a letter is a token."""

    def encode(self, text):
        return [(ord(letter) - 32) % VOCABULARY for letter in text]


def make_folder(path, *, model=None):
    """Write a model with external data, its configuration and a tokenizer's files."""
    path.mkdir()
    onnx.save(
        make_block() if model is None else model,
        path / "model.onnx",
        save_as_external_data=True,
        location="model.onnx.data",
        size_threshold=64,
    )
    (path / "genai_config.json").write_text(json.dumps(CONFIG))
    (path / "tokenizer_config.json").write_text("{}")
    return path


def make_text(path, letters=600):
    path.write_text(("the quick brown fox jumps over the lazy dog. " * letters)[:letters])
    return path


def make_vision_tower():
    """A projection of images, which no text fills."""
    weight = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    return build(
        [node("MatMul", ["pixel_values", "w"], ["features"], "project")],
        [info("pixel_values", ["n", 64])],
        [info("features", ["n", 32])],
        {"w": weight},
        opset=21,
        ir_version=10,
    )


def make_idle():
    """A model without a weight: token types from tokens."""
    return build(
        [node("Sub", ["input_ids", "input_ids"], ["types"], "zero")],
        [info("input_ids", ["n", "m"], 7)],
        [info("types", ["n", "m"], 7)],
        {},
        opset=21,
        ir_version=10,
    )


def make_encoder(*, images=False):
    """Token ids in, a vector for each token out, as `last_hidden_state` or `inputs_embeds`.

    With `images`, features of images stand behind those of the tokens, as many as there are.
    """
    table = np.random.default_rng(1).normal(size=(VOCABULARY, 64)).astype(np.float32)
    inputs, constants = [info("input_ids", ["batch", "n"], 7)], {"table": table}
    if not images:
        nodes = [node("Gather", ["table", "input_ids"], ["last_hidden_state"], "embed")]
        outputs = [info("last_hidden_state", ["batch", "n", 64])]
        return build(nodes, inputs, outputs, constants, opset=21, ir_version=10)
    nodes = [
        node("Gather", ["table", "input_ids"], ["tokens"], "embed"),
        node("Unsqueeze", ["image_features", "axis"], ["images"], "rows"),
        node("Concat", ["tokens", "images"], ["inputs_embeds"], "both", axis=1),
    ]
    constants["axis"] = np.array([0], np.int64)
    inputs.append(info("image_features", ["images", 64]))
    outputs = [info("inputs_embeds", ["batch", "all", 64])]
    return build(nodes, inputs, outputs, constants, opset=21, ir_version=10)


def make_decoder(reads="encoder_hidden_states"):
    """What another model makes of a text in, logits out; an encoder's comes with a cache."""
    weight = np.random.default_rng(2).normal(size=(64, VOCABULARY)).astype(np.float32)
    inputs = [
        info(reads, ["batch", "encoder_sequence_length", 64]),
        info("attention_mask", ["batch", "encoder_sequence_length"], 7),
    ]
    if reads == "encoder_hidden_states":
        shape = ["batch", 2, "encoder_sequence_length", 8]
        inputs.append(info("past_key_values.0.encoder.key", shape))
    return build(
        [node("MatMul", [reads, "w"], ["logits"], "head/MatMul")],
        inputs,
        [info("logits", ["batch", "encoder_sequence_length", VOCABULARY])],
        {"w": weight},
        opset=21,
        ir_version=10,
    )
