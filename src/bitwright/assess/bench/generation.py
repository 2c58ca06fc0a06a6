"""Tokens in a second of language models: a prompt at once (prefill), then token by token.

A folder of onnxruntime-genai is run by that library where it is installed. The model of a decoder,
whose cache goes in as inputs and comes out as outputs, is run by ONNX Runtime itself.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bitwright import graph
from bitwright.assess.bench.generation_results import Engine, GenerationBenchmark, ModelGeneration
from bitwright.assess.bench.process import ModelProcess, run_interleaved
from bitwright.assess.bench.requests import TimedModel, Timing, check_shapes, write_samples
from bitwright.data import Heads, continued_by, fill_token_inputs, is_cache
from bitwright.errors import MissingPackageError, ModelError, TargetError
from bitwright.run.session import checked_providers
from bitwright.support import ScratchFolder, show_progress

MIN_RUNS, MAX_RUNS = 5, 50
_ROUNDS_SHOWN = 10
_COMMON_TOKENS = 100
"""Vocabulary size that is assumed where a model does not state its own."""
_CONFIG = "genai_config.json"
Shapes = Mapping[str, Sequence[int] | int]


def is_decoder(source: graph.ModelSource) -> bool:
    """Whether a source is a folder, or a model with a cache of the tokens before."""
    if isinstance(source, (str, os.PathLike)) and Path(source).is_dir():
        return True
    return any(is_cache(value.name or "") for value in graph.load_model(source).graph.inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest(Timing):
    """How language models are timed: a prompt, then new tokens one by one."""

    prompt_tokens: int = 128
    new_tokens: int = 64
    shapes: Shapes | None = None
    seconds: float = 10.0
    warm_up: int = 1

    def check(self, models: Sequence[graph.ModelSource]) -> None:
        """Refuse what cannot be timed."""
        Timing.check(self, models)
        for name, value in (("prompt tokens", self.prompt_tokens), ("new tokens", self.new_tokens)):
            if value < 1:
                raise TargetError(f"{name} must be at least 1, not {value}.")

    @property
    def length(self) -> int:
        """Tokens of the prompt, the first answer and all that are generated behind it."""
        return self.prompt_tokens + 1 + self.new_tokens

    def draw_tokens(self, vocabulary: int) -> list[int]:
        """Return the prompt, and tokens that follow it whatever the model says."""
        count = self.prompt_tokens + self.new_tokens
        return np.random.default_rng(0).integers(0, vocabulary, count).tolist()  # type: ignore[no-any-return]


def bench_generation(
    models: Sequence[graph.ModelSource], request: GenerationRequest
) -> GenerationBenchmark:
    """Time language models against each other: a prompt, then new tokens one by one."""
    request.check(models)
    folders = [_read_folder(model) for model in models]
    for folder in folders:
        if folder is not None and folder.context is not None and request.length > folder.context:
            raise TargetError(
                f"{str(folder.path)!r} takes at most {folder.context} tokens, and prompt and new "
                f"tokens are {request.length}; ask for fewer."
            )
    by_genai = all(folders) and find_spec("onnxruntime_genai") is not None
    if by_genai and (request.providers or request.shapes):
        raise TargetError(
            f"providers and shapes are for ONNX Runtime; {_CONFIG} names those of a folder."
        )
    providers = () if by_genai else tuple(checked_providers(request.providers))
    request = replace(request, providers=providers)
    with ScratchFolder("bench") as scratch, contextlib.ExitStack() as stack:
        timed = [
            _open_folder(request, folder, stack)
            if by_genai and folder is not None
            else _open_model(request, model, folder, index, scratch.path, stack)
            for index, (model, folder) in enumerate(zip(models, folders, strict=True))
        ]
        if not by_genai:
            check_shapes([each.process.inputs for each in timed], request.shapes or {})
        # One run tells how many fit into the time.
        leads = [each.burst(runs=max(request.warm_up, int(request.runs is None))) for each in timed]
        runs, seconds = request.runs, request.seconds
        if runs is None:
            slowest = max(lead[-1] for lead in leads)
            runs = min(max(math.ceil(seconds / slowest), MIN_RUNS), MAX_RUNS)
        for each in timed:
            each.runs.clear()
        with show_progress(request.progress, "Generating", _ROUNDS_SHOWN) as report:
            run_interleaved(timed, runs=runs, seconds=seconds, on_round=report)
        engine: Engine = "onnxruntime-genai" if by_genai else "onnxruntime"
        figures = tuple(_figures(request, each) for each in timed)
    return GenerationBenchmark(figures, engine, request.threads, providers)


class _Folder(NamedTuple):
    """What the configuration of a folder says."""

    path: Path
    decoder: Path | None
    """The one model that reads and gives tokens; None where there are several."""
    vocabulary: int
    context: int | None
    window: int
    """Tokens that layers with a sliding window look back; their cache is at least as long."""


class _TimedDecoder:
    """A language model in its process, and the seconds of its runs."""

    def __init__(self, name: str, size: int, process: ModelProcess) -> None:
        self.name, self.size, self.process = name, size, process
        self.runs: list[tuple[float, float]] = []

    def burst(self, *, runs: int | None = None, seconds: float = 0.0) -> list[float]:
        """Generate `runs` times; return the seconds of each run."""
        assert runs is not None  # how many is known before
        found = [(prompt, rest) for prompt, rest in self.process.call("generate", runs=runs)]
        self.runs += found
        return [prompt + rest for prompt, rest in found]


def _open_folder(
    request: GenerationRequest, folder: _Folder, stack: contextlib.ExitStack
) -> _TimedDecoder:
    name = str(folder.path)
    process = stack.enter_context(
        ModelProcess(
            name, "open_folder", folder=str(folder.path.absolute()), threads=request.threads
        )
    )
    process.call(
        "load_prompt",
        tokens=request.draw_tokens(folder.vocabulary)[: request.prompt_tokens],
        new_tokens=request.new_tokens,
        cache_length=max(request.length, folder.window),
    )
    files = [p for p in folder.path.iterdir() if p.is_file()]
    size = sum(p.stat().st_size for p in files)
    return _TimedDecoder(name, graph.file_size(folder.decoder) if folder.decoder else size, process)


def _open_model(
    request: GenerationRequest,
    source: graph.ModelSource,
    folder: _Folder | None,
    index: int,
    scratch: Path,
    stack: contextlib.ExitStack,
) -> _TimedDecoder:
    if folder is not None:
        if folder.decoder is None:
            raise MissingPackageError(
                f"{str(folder.path)!r} consists of several models, which onnxruntime-genai runs "
                "one after the other; pip install onnxruntime-genai, and time folders only."
            )
        source = folder.decoder
    model = TimedModel(source, index, scratch)
    process = stack.enter_context(
        ModelProcess.of_file(
            model.name, model.path, threads=request.threads, providers=request.providers or ()
        )
    )
    caches = _pair_caches(process, model.name)
    heads = None
    if isinstance(source, (str, os.PathLike)):
        heads = Heads.read_beside(Path(source).parent)
    own = {dim for spec in process.inputs for dim in (spec.name, *(spec.shape or ()))}
    shapes = {name: size for name, size in (request.shapes or {}).items() if name in own}
    tokens = np.array([request.draw_tokens(_vocabulary(process))])
    samples, done = [], 0
    for count in (request.prompt_tokens, *[1] * request.new_tokens):
        part = tokens[:, done : done + count]
        samples.append(
            fill_token_inputs(part, process.inputs, done=done, shapes=shapes, heads=heads)
        )
        done += count
    files = write_samples(samples, scratch / f"tokens{index}")
    process.call("load_tokens", files=files, caches=caches)
    return _TimedDecoder(model.name if folder is None else str(folder.path), model.size, process)


def _pair_caches(process: ModelProcess, name: str) -> dict[str, str]:
    """Return the inputs of the cache, each with the output that goes on as it."""
    found: dict[str, str] = {}
    for spec in process.inputs:
        if not is_cache(spec.name):
            continue
        present = continued_by(spec.name, process.outputs)
        if present is None:
            raise ModelError(
                f"no output of {name!r} goes on as the cache {spec}; it should be named like "
                "present.0.key for past_key_values.0.key."
            )
        if spec.shape is not None and all(isinstance(dim, int) for dim in spec.shape):
            raise ModelError(
                f"the cache {spec} of {name!r} has a fixed length, which cannot grow token by "
                "token; export it with an open one."
            )
        found[spec.name] = present
    if not found:
        raise ModelError(
            f"{name!r} has no cache of tokens (inputs like past_key_values.0.key), and does not "
            "generate one by one; leave the numbers of tokens out, or export it with its cache."
        )
    return found


def _vocabulary(process: ModelProcess) -> int:
    sizes = [shape[-1] for name, shape in process.outputs.items() if "logits" in name and shape]
    return next((size for size in sizes if isinstance(size, int)), _COMMON_TOKENS)


def _figures(request: GenerationRequest, timed: _TimedDecoder) -> ModelGeneration:
    prefill, decode = zip(*timed.runs, strict=True)
    return ModelGeneration(
        name=timed.name,
        size=timed.size,
        prompt_tokens=request.prompt_tokens,
        new_tokens=request.new_tokens,
        prefill_seconds=prefill,
        decode_seconds=decode,
        open_seconds=timed.process.open_seconds,
        peak_memory=timed.process.peak_memory()[0],
    )


def _read_folder(source: graph.ModelSource) -> _Folder | None:
    """Return the configuration of a folder; None where the source is no folder."""
    if not isinstance(source, (str, os.PathLike)) or not Path(source).is_dir():
        return None
    path = Path(source) / _CONFIG
    if not path.is_file():
        raise ModelError(
            f"the folder {str(source)!r} has no {_CONFIG}; give the .onnx file of its decoder."
        )
    try:
        model = json.loads(path.read_text(encoding="utf-8"))["model"]
        decoder, context = model["decoder"].get("filename"), model.get("context_length")
        vocabulary = int(model["vocab_size"])
        window = int((model["decoder"].get("sliding_window") or {}).get("window_size") or 0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{str(path)!r} is no configuration of a model: {error!r}.") from error
    one = isinstance(decoder, str) and (Path(source) / decoder).is_file()
    return _Folder(
        Path(source),
        Path(source) / decoder if one else None,
        vocabulary,
        context if isinstance(context, int) else None,
        window,
    )
