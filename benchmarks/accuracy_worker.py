"""One quantization of `accuracy.py`: a JSON object with what to do, as the only argument.

Runs in the environment of any of the tools, so it imports nothing but what all have.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measure import report

Sample = dict[str, np.ndarray]
HOLDOUT = 8
"""Every so many samples, one is kept out of calibration by tools that choose between models."""


class Reader:
    """What ONNX Runtime's tool reads its data from."""

    def __init__(self, samples: list[Sample]) -> None:
        self._left: Iterator[Sample] = iter(samples)

    def get_next(self) -> Sample | None:
        return next(self._left, None)


def bitwright(task: dict[str, Any], samples: list[Sample], **options: Any) -> None:
    import bitwright

    bitwright.quantize(task["model"], task["output"], data=samples, progress=False, **options)


def onnxruntime(task: dict[str, Any], samples: list[Sample], **options: Any) -> None:
    from onnxruntime.quantization import quantize_static

    quantize_static(task["prepared"], task["output"], Reader(samples), **options)


def onnxruntime_per_channel(task: dict[str, Any], samples: list[Sample], method: str) -> None:
    from onnxruntime.quantization import CalibrationMethod, QuantType

    onnxruntime(
        task,
        samples,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod[method],
    )


def nncf(task: dict[str, Any], samples: list[Sample], preset: str | None = None) -> None:
    import nncf
    import onnx

    quantized = nncf.quantize(
        onnx.load(task["prepared"]),
        nncf.Dataset(samples),
        subset_size=len(samples),
        preset=None if preset is None else nncf.QuantizationPreset(preset),
        model_type=nncf.ModelType.TRANSFORMER if task["transformer"] else None,
    )
    onnx.save(quantized, task["output"])


def onnxsim(task: dict[str, Any], samples: list[Sample]) -> None:
    import onnx
    import onnxsim

    onnx.save(onnxsim.quantize_static(task["prepared"], samples), task["output"])


def onnxsim_pick(task: dict[str, Any], samples: list[Sample]) -> None:
    import onnx
    import onnxsim

    kept = samples[HOLDOUT - 1 :: HOLDOUT]
    rest = [x for i, x in enumerate(samples) if i % HOLDOUT != HOLDOUT - 1]
    onnx.save(onnxsim.pick_calibration(task["prepared"], rest, kept).model, task["output"])


TOOLS: dict[str, Callable[[dict[str, Any], list[Sample]], None]] = {
    "bitwright": bitwright,
    "bitwright low": partial(bitwright, effort="low"),
    "bitwright medium": partial(bitwright, effort="medium"),
    "bitwright high": partial(bitwright, effort="high"),
    "bitwright npu": partial(bitwright, target="npu-cnn"),
    "bitwright npu medium": partial(bitwright, target="npu-cnn", effort="medium"),
    "bitwright a8w4": partial(bitwright, recipe="a8w4"),
    "bitwright a8w4 medium": partial(bitwright, recipe="a8w4", effort="medium"),
    "bitwright a8w4 high": partial(bitwright, recipe="a8w4", effort="high"),
    "onnxruntime": onnxruntime,
    "onnxruntime per channel": lambda t, samples: onnxruntime_per_channel(t, samples, "MinMax"),
    "onnxruntime percentile": lambda t, samples: onnxruntime_per_channel(t, samples, "Percentile"),
    "nncf": nncf,
    "nncf mixed": lambda task, samples: nncf(task, samples, "mixed"),
    "onnxsim": onnxsim,
    "onnxsim pick": onnxsim_pick,
}
"""Each tool as its documentation calls it; a second word is its own name for other settings."""


def main() -> None:
    task = json.loads(sys.argv[1])
    logging.disable(logging.CRITICAL)
    samples = []
    for path in sorted(Path(task["data"]).glob("*.npz")):
        with np.load(path) as arrays:
            samples.append(dict(arrays))
    # What a tool imports is not its work; it is imported here so that it is not timed.
    __import__(task["tool"].split()[0])
    start = time.perf_counter()
    cpu = time.process_time()
    with contextlib.redirect_stdout(sys.stderr):
        TOOLS[task["tool"]](task, samples)
    report(time.perf_counter() - start, cpu=time.process_time() - cpu)


if __name__ == "__main__":
    main()
