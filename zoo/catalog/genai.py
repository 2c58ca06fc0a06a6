"""Decoders as onnxruntime-genai's model builder writes them, with the runtime's fused operators."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

import zoo.catalog.torchvision_operators  # noqa: F401 (defines them before the first import)
from zoo.case import save_samples
from zoo.network import SAMPLES, Samples, seed_of
from zoo.runner import Model, model_of_file

_PAST, _NEW = 5, 3
# Configurations of transformers, tiny; head sizes and widths are those that its kernels take.
_COMMON: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": 4}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {}),
    "phi3": ("Phi3Config", {}),
    "phi": ("PhiConfig", {"num_key_value_heads": 4}),
    "gemma": ("GemmaConfig", {}),
    # Its cache slides, too: the window holds the past and the new tokens.
    "gemma2": ("Gemma2Config", {"sliding_window": _PAST + _NEW}),
    "smollm3": ("SmolLM3Config", {}),
    "olmo": ("OlmoConfig", {}),
}
PRECISIONS = ("fp32", "fp16")


def models(folder: Path) -> Iterator[Model]:
    """Give each configuration in both precisions, where the builder takes it."""
    for name in CONFIGS:
        for precision in PRECISIONS:
            path = folder / "genai" / f"{name}-{precision}.onnx"
            if not path.exists():
                why = _build(name, precision, path)
                if why:
                    print(f"not exported: genai/{name}-{precision}: {why}", flush=True)
                    continue
            yield model_of_file(f"genai/{name}-{precision}", "genai", path)


def _build(name: str, precision: str, path: Path) -> str:
    """Write a model with samples; returns why the builder did not."""
    import torch
    import transformers
    from onnxruntime_genai.models.builder import create_model, parse_extra_options

    class_name, changes = CONFIGS[name]
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed_of(name))
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "source", Path(folder) / "target"
        config = getattr(transformers, class_name)(**(_COMMON | changes))
        network = transformers.AutoModelForCausalLM.from_config(config)
        network.save_pretrained(source)
        _write_tokenizer(source)
        quiet = io.StringIO()
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            warnings.simplefilter("ignore")
            try:
                arguments = ("", str(source), str(target), precision, "cpu", folder)
                create_model(*arguments, **parse_extra_options(*arguments, []))
            except Exception as error:  # noqa: BLE001 - the builder's own failure
                return f"{type(error).__name__}: {error}"[:200]
        model = onnx.load(target / "model.onnx")
    onnx.save(model, path)
    save_samples(path.with_suffix(".npz"), _make_samples(model, name))
    return ""


def _write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of plain words: the builder copies one beside its model."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"w{i}": i for i in range(3, 64)}}
    plain = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=plain, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    wrapped.save_pretrained(folder)


def _make_samples(model: onnx.ModelProto, name: str) -> Samples:
    """Return steps of a few new tokens behind a cache of a few."""
    rng = np.random.default_rng(seed_of(name))
    samples = []
    for _ in range(SAMPLES):
        sample = {}
        for value in model.graph.input:
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            sizes = [d.dim_value for d in value.type.tensor_type.shape.dim]
            if value.name.startswith("past"):
                # Some graphs leave these open.
                heads = sizes[1] or int(_COMMON["num_key_value_heads"])
                shape = (1, heads, _PAST, sizes[3] or int(_COMMON["head_dim"]))
                sample[value.name] = rng.standard_normal(shape).astype(dtype)
            elif value.name == "attention_mask":
                sample[value.name] = np.ones((1, _PAST + _NEW), dtype)
            elif value.name == "position_ids":
                sample[value.name] = np.arange(_PAST, _PAST + _NEW)[np.newaxis].astype(dtype)
            else:
                sample[value.name] = rng.integers(3, 64, (1, _NEW)).astype(dtype)
        samples.append(sample)
    return samples
