"""One measurement of `finetune.py`: a JSON object with what to do, as the only argument.

Runs in the environment of either tool, so it imports nothing but what both have.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from measure import report

RATES = {"adaround": 0.1, "adaquant": 1e-5}
"""The peer's own learning rates."""


def read(task: dict[str, Any]) -> Iterator[dict[str, np.ndarray]]:
    """Read the samples."""
    for path in sorted(Path(task["data"]).glob("*.npz"))[: task["samples"]]:
        with np.load(path) as found:
            yield {key: found[key] for key in found.files}


def run_ours(task: dict[str, Any]) -> None:
    import bitwright

    recipe: dict[str, Any] = {"base": task["base"]}
    if task["method"] is not None:
        recipe["fine_tune"] = {
            "method": task["method"],
            "iterations": task["iterations"],
            "batch_size": task["batch"],
            "scope": task["scope"],
            "min_segment_weights": task["smallest"],
            "seed": task["seed"],
        }
    begin = time.perf_counter()
    result = bitwright.quantize(
        task["model"],
        task["output"],
        data=list(read(task)),
        recipe=recipe,
        holdout=False,
        progress=False,
        device=task["device"],
    )
    seconds = time.perf_counter() - begin
    segments = sum(note.startswith("fine-tuning: ") for note in result.plan.notes)
    report(seconds, segments=segments)


def run_peer(task: dict[str, Any]) -> None:
    os.environ.setdefault("QUARK_LOG_LEVEL", "critical")
    os.chdir(Path(task["output"]).parent)  # it leaves files where it runs
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType
    from quark.onnx import PowerOfTwoMethod, quantize_static
    from quark.onnx.algorithm.finetuning.fast_finetune import fast_finetune

    logging.disable(logging.CRITICAL)
    samples = list(read(task))

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.reset_iter()

        def reset_iter(self) -> None:
            self.left = iter(samples)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.left, None)

    options: dict[str, Any] = {}
    if task["method"] is not None:
        options["FastFinetune"] = {
            "OptimAlgorithm": task["method"],
            "NumIterations": task["iterations"],
            "BatchSize": task["batch"],
            "LearningRate": RATES[task["method"]],
            "DataSize": len(samples),
            "FixedSeed": task["seed"],
        }
    begin = time.perf_counter()
    if task["start"] is not None:
        import onnx

        made = fast_finetune(task["model"], onnx.load(task["start"]), False, Reader(), options)
        onnx.save(made, task["output"])
    else:
        quantize_static(
            task["model"],
            task["output"],
            Reader(),
            quant_format=QuantFormat.QDQ,
            calibrate_method=PowerOfTwoMethod.MinMSE,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            enable_npu_cnn=True,
            include_cle=False,
            include_fast_ft=task["method"] is not None,
            extra_options={"ActivationSymmetric": True, **options},
        )
    report(time.perf_counter() - begin)


if __name__ == "__main__":
    task = json.loads(sys.argv[1])
    (run_peer if task["who"] == "peer" else run_ours)(task)
