"""Ready ONNX files: those in packages of PyPI and npm, most of them trained, and those in onnx."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from google.protobuf.message import DecodeError
from onnx import helper

from zoo.case import save_samples
from zoo.network import SAMPLES, Samples, seed_of
from zoo.runner import Model, model_of_file
from zoo.worker import Send, run_in_process

_FOLDER = Path(os.environ.get("ZOO_FILES", str(Path(sys.prefix) / "files")))
MAX_BYTES = 60_000_000
SECONDS = 60
FILLS = ((64, 16), (48, 128), (32, 512), (224, 100), (320, 400), (640, 4000))
"""Open sizes of images and of rows, until one of them runs."""
Shapes = dict[str, tuple[int, ...]]

# Part of a path -> shapes of its inputs where some are open; others get those of `_guess`.
SHAPES: dict[str, Shapes] = {
    "*silero_vad_v6*": {"input": (1, 576), "h": (1, 1, 128), "c": (1, 1, 128)},
    "*silero_vad*": {"input": (1, 576), "state": (2, 1, 128), "h": (2, 1, 64), "c": (2, 1, 64)},
    "*melspectrogram*": {"input": (1, 12800)},
    "*embedding_model*": {"input_1": (1, 76, 32, 1)},
    "*smart-turn*": {"input_features": (1, 80, 800)},
    "*rec*": {"x": (1, 3, 48, 160)},
    "*cls*": {"x": (1, 3, 48, 192)},
    "*det*": {"x": (1, 3, 96, 160)},
    "*layout*": {"image": (1, 3, 800, 608)},
    "*nmp*": {"serving_default_input_2:0": (1, 43844, 1)},
    "*common.onnx": {"input1": (1, 1, 64, 128)},
    "*common_old.onnx": {"input1": (1, 1, 64, 128)},
    "*onnx_asr*": {"waveforms": (1, 4000)},
    "*magika*": {"bytes": (1, 2048)},
}
# Inputs whose values mean something: the largest one, or the only one.
VALUES = {
    "sr": (16000, 16000),
    "waveforms_lens": (4000, 4000),
    "attention_mask": (1, 1),
    "bytes": (0, 255),
    "input_ids": (5, 2000),
}


def models(folder: Path) -> Iterator[Model]:
    """Give every file once, whichever package carries it; small ones first."""
    seen: set[str] = set()
    found: dict[str, Path] = {}
    for source in _sources():
        digest = sha256(source.read_bytes()).hexdigest()
        if digest in seen or source.stat().st_size > MAX_BYTES:
            continue
        seen.add(digest)
        name = _name(source)
        found[f"{name}-{digest[:6]}" if name in found else name] = source
    for name, source in sorted(found.items(), key=lambda item: item[1].stat().st_size):
        path = folder / "files" / f"{name}.onnx"
        if not path.exists():
            try:
                model = onnx.load(source)
            except (DecodeError, OSError, onnx.checker.ValidationError):
                continue  # a pointer to where the file is, or without its weights
            if not all(map(_is_of_numbers, model.graph.input)):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            save_samples(path.with_suffix(".npz"), _make_samples(model, str(source)))
            onnx.save(model, path)
        yield model_of_file(f"files/{name}", "package", path)


def _is_of_numbers(value: onnx.ValueInfoProto) -> bool:
    """Whether samples can be made for an input: of no texts, no sequences and no maps."""
    kind = value.type
    return kind.HasField("tensor_type") and kind.tensor_type.elem_type != onnx.TensorProto.STRING


def _sources() -> Iterator[Path]:
    yield from sorted(_FOLDER.rglob("*.onnx"))
    yield from sorted((Path(onnxruntime.__file__).parent / "datasets").glob("*.onnx"))
    yield from sorted((Path(onnx.__file__).parent / "backend" / "test" / "data").rglob("*.onnx"))


def _name(source: Path) -> str:
    """Return a file's name with the folders that tell it from others, without the longest paths."""
    parts = [p for p in source.parts[-5:-1] if p not in {"models", "data", "resources", "test"}]
    return "-".join([*parts[-2:], source.stem])


def _make_samples(model: onnx.ModelProto, path: str) -> Samples:
    rng = np.random.default_rng(seed_of(Path(path).name))
    initialized = {tensor.name for tensor in model.graph.initializer}
    values = [v for v in model.graph.input if v.name not in initialized]
    for fill in FILLS:
        samples = [
            {v.name: _make_array(v, path, rng, fill) for v in values} for _ in range(SAMPLES)
        ]
        if not values or _runs(model, samples[0]):
            return samples
    return samples


def _runs(model: onnx.ModelProto, sample: dict[str, np.ndarray]) -> bool:
    """Whether ONNX Runtime runs a model on a sample, in a process that may end by it."""

    def run(send: Send) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        content, providers = model.SerializeToString(), ["CPUExecutionProvider"]
        onnxruntime.InferenceSession(content, options, providers=providers).run(None, sample)
        send("ran", None)

    return [kind for kind, _ in run_in_process(run, SECONDS)] == ["ran"]


def _make_array(
    value: onnx.ValueInfoProto, path: str, rng: np.random.Generator, fill: tuple[int, int]
) -> np.ndarray:
    kind = value.type.tensor_type
    known = next((shapes for part, shapes in SHAPES.items() if fnmatch(path, part)), {})
    shape = known.get(value.name) or _guess([d.dim_value for d in kind.shape.dim], fill)
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
    if value.name in VALUES:
        low, high = VALUES[value.name]
        return rng.integers(low, high, shape, endpoint=True).astype(dtype)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind == "b":
        return np.ones(shape, bool)
    return rng.integers(0, 2, shape).astype(dtype)


def _guess(sizes: list[int], fill: tuple[int, int]) -> tuple[int, ...]:
    """Return a shape with its open sizes filled in: a batch of 1, images and rows so long."""
    filled = fill[len(sizes) != 4]
    return tuple(
        size if size > 0 else 1 if axis == 0 else filled for axis, size in enumerate(sizes)
    )
