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
