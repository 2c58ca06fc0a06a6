"""Folders as the builder of onnxruntime-genai 0.18 writes them, of tiny models with random weights.

Their graphs and configurations are in `fixtures/genai`: two layers, a width of 64, 256 tokens.
"""

from __future__ import annotations

from pathlib import Path

import onnx

from zoo.stored import restore

STORED = Path(__file__).parents[1] / "fixtures" / "genai"
FAMILIES = ("llama", "qwen3", "gemma2", "phi3")
VOCABULARY = 256


class Words:
    """The tokenizer of these models: a word is its number."""

    def encode(self, text):
        return [int(word) for word in text.split()]


def make_folder(family, path):
    """Write a folder as the builder does: weights beside the model, configuration, tokenizer."""
    path.mkdir()
    model = onnx.load(restore(STORED / f"{family}.onnx.gz", path.parent).path)
    onnx.save(
        model,
        path / "model.onnx",
        save_as_external_data=True,
        location="model.onnx.data",
        size_threshold=1024,
    )
    (path / "genai_config.json").write_text((STORED / f"{family}.json").read_text())
    (path / "tokenizer.json").write_text("{}")
    return path
