"""One measurement of `compare.py`: WHAT MODEL SAMPLES FOLDER."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from graphs import make_images
from measure import report


def samples(count: int) -> Iterator[dict[str, np.ndarray]]:
    """Make samples one at a time: the data itself must not count as memory of the tool."""
    for seed in range(count):
        yield {"image": make_images(1, seed)}


def quantize(model: Path, quantized: Path, count: int) -> None:
    import bitwright

    start = time.perf_counter()
    bitwright.quantize(model, quantized, data=samples(count), progress=False)
    report(time.perf_counter() - start)


def run_plainly(model: Path, quantized: Path, count: int) -> None:
    import onnxruntime

    data = list(samples(count))
    start = time.perf_counter()
    for path in (model, quantized):
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        for sample in data:
            session.run(None, sample)
    report(time.perf_counter() - start)


def compare(model: Path, quantized: Path, count: int) -> None:
    import bitwright

    making = 0.0

    def timed() -> Iterator[dict[str, np.ndarray]]:
        nonlocal making
        before = time.perf_counter()
        for sample in samples(count):
            making += time.perf_counter() - before
            yield sample
            before = time.perf_counter()

    start = time.perf_counter()
    found = bitwright.compare(model, quantized, data=timed(), progress=False)
    seconds = time.perf_counter() - start - making
    assert found.samples == count and len(found.tensors) > 50
    report(seconds, sqnr=found.outputs[0].sqnr)


WORK = {"quantize": quantize, "plain": run_plainly, "compare": compare}

if __name__ == "__main__":
    what, name, number, folder = sys.argv[1:]
    place = Path(folder)
    WORK[what](place / f"{name}.onnx", place / f"{name}-int8.onnx", int(number))
