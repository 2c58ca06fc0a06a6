"""The worker process of one model: opens it, times its runs, measures its memory.

It imports numpy and ONNX Runtime, and nothing of ours.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

_LONG_RUN = 0.1
"""Seconds of a run from which on caches and spinning threads no longer matter to it."""


class Worker:
    """One model with its samples."""

    def __init__(self) -> None:
        self.session: Any = None
        self.samples: list[dict[str, Any]] = []
        self.next = 0

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
            "inputs": [
                {"name": each.name, "type": each.type, "shape": each.shape}
                for each in self.session.get_inputs()
            ],
        }

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

    def memory(self) -> dict[str, Any]:
        """Return the largest resident size of this process so far, and who says so."""
        size, source = _resident_peak()
        return {"bytes": size, "source": source}


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
