"""The worker process of one model: opens it, times its runs or tokens, measures its memory.

It imports numpy and ONNX Runtime, or onnxruntime-genai, or ONNX, and nothing of ours.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LONG_RUN = 0.1
"""Seconds from which a run is so long that caches and spinning threads do not matter."""


class Worker:
    """One model with its samples."""

    def __init__(self) -> None:
        self.session: Any = None
        self.generator: Any = None
        self.samples: list[dict[str, Any]] = []
        self.next = 0
        self.generate_once: Callable[[], tuple[float, float]]

    def open(self, model: str, threads: int | None, providers: list[str]) -> dict[str, Any]:
        """Open the model as a program would that leaves all options as they are."""
        import onnxruntime as ort

        before = _resident_peak()
        options = ort.SessionOptions()
        options.log_severity_level = 4
        if threads is not None:
            options.intra_op_num_threads = threads
        start = time.perf_counter()
        self.session = ort.InferenceSession(model, options, providers=providers)
        return {
            "seconds": time.perf_counter() - start,
            "memory_before": before[0],
            "providers": self.session.get_providers(),
            "inputs": [_describe(each) for each in self.session.get_inputs()],
            "outputs": [_describe(each) for each in self.session.get_outputs()],
        }

    def open_once(self, model: str, providers: list[str]) -> None:
        """Open the model, and let it go again."""
        self.open(model, 1, providers)
        self.session = None

    def infer_shapes(self, model: str, data_prop: bool) -> None:
        """Write what ONNX's inference knows of a model into its file."""
        import onnx

        onnx.shape_inference.infer_shapes_path(model, model, False, False, data_prop)

    def open_folder(self, folder: str, threads: int | None, providers: list[str]) -> dict[str, Any]:
        """Open a folder with onnxruntime-genai, which has inputs and providers of its own."""
        import onnxruntime_genai as genai

        before = _resident_peak()
        none: dict[str, Any] = {"providers": providers, "inputs": [], "outputs": []}
        config = genai.Config(folder)
        if threads is not None:
            options = {"intra_op_num_threads": threads}
            config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        start = time.perf_counter()
        self.generator = genai.Model(config)
        return none | {"seconds": time.perf_counter() - start, "memory_before": before[0]}

    def load(self, files: list[str]) -> int:
        """Read the samples from .npz files."""
        import numpy as np

        for file in files:
            with np.load(file, allow_pickle=False) as arrays:
                sample = {name: arrays[name] for name in arrays.files}
            self.samples.append(
                {n: a.astype(object) if a.dtype.kind == "U" else a for n, a in sample.items()}
            )
        return len(self.samples)

    def burst(self, runs: int | None, seconds: float) -> list[float]:
        """Run a number of times, or for some time, and return the seconds of each run.

        Where runs are short, one more goes first and is not counted: caches hold what another
        model left there, and its threads may still be spinning.
        """
        end = time.perf_counter() + seconds
        times = [lead] if (lead := self.run_once()) >= _LONG_RUN else []
        while len(times) < runs if runs is not None else not times or time.perf_counter() < end:
            times.append(self.run_once())
        return times

    def run_once(self) -> float:
        """Run the next sample and return the seconds it took."""
        sample = self.samples[self.next % len(self.samples)]
        self.next += 1
        start = time.perf_counter()
        self.session.run(None, sample)
        return time.perf_counter() - start

    def load_tokens(self, files: list[str], caches: dict[str, str]) -> None:
        """Load the feeds of the prompt and of each following token; map caches to outputs.

        Values stay where the runtime has them: a cache is not copied between two tokens.
        """
        import onnxruntime as ort

        self.load(files)
        feeds = [
            {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in sample.items()}
            for sample in self.samples
        ]
        outputs = [output.name for output in self.session.get_outputs()]
        kept = {past: outputs.index(present) for past, present in caches.items()}

        def generate() -> tuple[float, float]:
            start = time.perf_counter()
            found = self.session.run_with_ort_values(outputs, feeds[0])
            middle = time.perf_counter()
            for step in feeds[1:]:
                cache = {past: found[place] for past, place in kept.items()}
                found = self.session.run_with_ort_values(outputs, {**step, **cache})
            return middle - start, time.perf_counter() - middle

        self.generate_once = generate

    def load_prompt(self, tokens: list[int], new_tokens: int, cache_length: int) -> None:
        """Take the prompt of a folder, and how many tokens are generated behind the first."""
        import onnxruntime_genai as genai

        options = {"do_sample": False, "max_length": cache_length}
        options["min_length"] = cache_length  # no token ends the text earlier

        def generate() -> tuple[float, float]:
            parameters = genai.GeneratorParams(self.generator)
            parameters.set_search_options(**options)
            generator = genai.Generator(self.generator, parameters)
            start = time.perf_counter()
            generator.append_tokens(tokens)
            generator.generate_next_token()
            middle = time.perf_counter()
            for _ in range(new_tokens):
                generator.generate_next_token()
            return middle - start, time.perf_counter() - middle

        self.generate_once = generate

    def generate(self, runs: int) -> list[tuple[float, float]]:
        """Return the seconds of the prompt and of the tokens behind it, of each run."""
        return [self.generate_once() for _ in range(runs)]

    def memory(self) -> dict[str, Any]:
        """Return the largest resident size of this process so far, and who says so."""
        size, source = _resident_peak()
        return {"bytes": size, "source": source}


def _describe(node: Any) -> dict[str, Any]:
    return {"name": node.name, "type": node.type, "shape": node.shape}


def _resident_peak() -> tuple[int | None, str]:
    """Return bytes and where they are from."""
    status = Path("/proc/self/status")
    if status.is_file():
        # Not ru_maxrss: on Linux a new process inherits that of the one which started it.
        for line in status.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024, "VmHWM"
    try:
        import psutil

        info = psutil.Process().memory_info()
        if hasattr(info, "peak_wset"):
            return int(info.peak_wset), "peak working set"
    except ImportError:
        pass
    try:
        import resource
    except ImportError:  # Windows without psutil
        return None, "not measured: install psutil"
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024, "ru_maxrss"
