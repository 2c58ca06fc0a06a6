"""One measurement of `npu.py`: WHO CONFIGURATION MODEL SAMPLES OUTPUT.

Runs in the environment of either tool, so it imports nothing but what both have.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from measure import peak_memory, report

# What each configuration is called on both sides: a recipe of ours, arguments of the peer. Each
# names how activations are calibrated; weights are stored as either tool does it then.
CONFIGURATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "min-mse": (
        {"base": "npu-cnn"},
        {"calibrate_method": "MinMSE", "enable_npu_cnn": True},
    ),
    "non-overflow": (
        {"base": "npu-cnn", "ranges": {"method": "non-overflow", "symmetric": True}},
        {"calibrate_method": "NonOverflow", "enable_npu_cnn": True},
    ),
    "min-mse, equalized": (
        {"base": "npu-cnn", "equalize": {}},
        {"calibrate_method": "MinMSE", "enable_npu_cnn": True, "include_cle": True},
    ),
    "int8 minmax": (
        {"base": "int8"},
        {"calibrate_method": "MinMax"},
    ),
}  # fmt: skip


def read(folder: Path, count: int) -> Iterator[dict[str, np.ndarray]]:
    """Read the samples one at a time: the data itself must not count as memory of the tool."""
    for path in sorted(folder.glob("*.npz"))[:count]:
        with np.load(path) as found:
            yield {key: found[key] for key in found.files}


def finish(begin: float, cpu: float, imported: float) -> None:
    seconds, spent = time.perf_counter() - begin, time.process_time() - cpu
    report(seconds, peak=peak_memory(), cpu=spent, imported=imported)


def run_ours(name: str, model: Path, samples: Iterator[Any], output: Path) -> None:
    start = time.perf_counter()
    # What a program written for the peer would import.
    import bitwright.compat.vai_q_onnx

    imported = time.perf_counter() - start
    begin, cpu = time.perf_counter(), time.process_time()
    import bitwright

    recipe = CONFIGURATIONS[name][0]
    bitwright.quantize(model, output, data=samples, recipe=recipe, holdout=False, progress=False)
    finish(begin, cpu, imported)


def run_peer(name: str, model: Path, samples: Iterator[Any], output: Path) -> None:
    os.environ.setdefault("QUARK_LOG_LEVEL", "critical")
    os.chdir(output.parent)  # it leaves a file where it runs
    start = time.perf_counter()
    from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat
    from onnxruntime.quantization import QuantType as Type
    from quark.onnx import PowerOfTwoMethod, quantize_static

    imported = time.perf_counter() - start
    logging.disable(logging.CRITICAL)

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(samples, None)

    options = dict(CONFIGURATIONS[name][1])
    method = options.pop("calibrate_method")
    power_of_two = method in ("MinMSE", "NonOverflow")
    options.setdefault("include_cle", False)
    begin, cpu = time.perf_counter(), time.process_time()
    quantize_static(
        str(model),
        str(output),
        Reader(),
        quant_format=QuantFormat.QDQ,
        calibrate_method=getattr(PowerOfTwoMethod if power_of_two else CalibrationMethod, method),
        activation_type=Type.QUInt8,
        weight_type=Type.QInt8,
        extra_options={"ActivationSymmetric": power_of_two},
        **options,
    )
    finish(begin, cpu, imported)


def run_float(name: str, model: Path, samples: Iterator[Any], output: Path) -> None:
    """Only run the samples through the float model, which no calibration can do without."""
    import onnxruntime

    begin, cpu = time.perf_counter(), time.process_time()
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    for sample in samples:
        session.run(None, sample)
    finish(begin, cpu, 0.0)


def main() -> None:
    who, name, model, data, count, output = sys.argv[1:]
    samples = read(Path(data), int(count))
    run = {"ours": run_ours, "peer": run_peer, "float": run_float}[who]
    run(name, Path(model), samples, Path(output))


if __name__ == "__main__":
    main()
