"""One quantization of `accuracy.py` or `peers.py`: a JSON object with what to do, as the argument.

Runs in the environment of any of the tools, so it imports nothing but what all have.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
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
    """What ONNX Runtime's tool, and tools that are built on it, read their data from."""

    def __init__(self, samples: list[Sample]) -> None:
        self._samples = samples
        self.rewind()

    def get_next(self) -> Sample | None:
        return next(self._left, None)

    def get_first(self) -> Sample:
        return self._samples[0]

    def rewind(self) -> None:
        self._left: Iterator[Sample] = iter(self._samples)


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


def quark(task: dict[str, Any], samples: list[Sample]) -> None:
    from onnxruntime.quantization import CalibrationDataReader
    from quark.onnx import ModelQuantizer
    from quark.onnx.quantization.config import Config, get_default_config

    CalibrationDataReader.register(Reader)
    config = Config(global_quant_config=get_default_config("U8S8_AAWS"))
    ModelQuantizer(config).quantize_model(task["prepared"], task["output"], Reader(samples))


class Loader:
    """What Neural Compressor 2 reads its data from: batches with labels that are not used."""

    batch_size = 1

    def __init__(self, samples: list[Sample]) -> None:
        self._samples = samples

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        for sample in self._samples:
            yield (sample if len(sample) > 1 else next(iter(sample.values()))), 0


def neural_compressor(task: dict[str, Any], samples: list[Sample]) -> None:
    from neural_compressor import PostTrainingQuantConfig, quantization

    config = PostTrainingQuantConfig(
        approach="static", calibration_sampling_size=[len(samples)], quant_level=1
    )
    # It logs what went wrong, and returns None.
    logging.disable(logging.WARNING)
    errors: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: errors.append(record.getMessage().splitlines()[0])  # type: ignore[method-assign]
    logging.getLogger("neural_compressor").addHandler(handler)
    found = quantization.fit(task["model"], config, calib_dataloader=Loader(samples))
    if found is None:
        raise SystemExit(errors[0] if errors else "it returned no model")
    found.save(task["output"])


def onnx_neural_compressor(task: dict[str, Any], samples: list[Sample]) -> None:
    from onnx_neural_compressor import data_reader
    from onnx_neural_compressor.quantization import config, quantize

    data_reader.CalibrationDataReader.register(Reader)
    settings = config.StaticQuantConfig(
        calibration_data_reader=Reader(samples), calibration_sampling_size=len(samples)
    )
    quantize(task["model"], task["output"], settings)


def aimet(task: dict[str, Any], samples: list[Sample]) -> None:
    import aimet_onnx
    import onnx

    simulated = aimet_onnx.QuantizationSimModel(
        onnx.load(task["prepared"]), dummy_input=samples[0], providers=["CPUExecutionProvider"]
    )
    simulated.compute_encodings(samples)
    exported = simulated.to_onnx_qdq(export_int32_bias=True, prequantize_constants=True)
    onnx.save(exported, task["output"])


def modelopt(task: dict[str, Any], samples: list[Sample]) -> None:
    from modelopt.onnx.quantization import quantize
    from onnxruntime.quantization import CalibrationDataReader

    CalibrationDataReader.register(Reader)
    # Its default for what stays float is float16, which CPUs do not compute in.
    quantize(
        task["prepared"],
        calibration_data_reader=Reader(samples),
        calibration_eps=["cpu"],
        high_precision_dtype="fp32",
        output_path=task["output"],
    )


TOOLS: dict[str, Callable[[dict[str, Any], list[Sample]], None]] = {
    "bitwright": bitwright,
    "bitwright low": partial(bitwright, effort="low"),
    "bitwright medium": partial(bitwright, effort="medium"),
    "bitwright high": partial(bitwright, effort="high"),
    "bitwright balanced": partial(bitwright, purpose="balanced"),
    "bitwright speed": partial(bitwright, purpose="speed"),
    "bitwright size": partial(bitwright, purpose="size"),
    "bitwright size low": partial(bitwright, purpose="size", effort="low"),
    "bitwright size medium": partial(bitwright, purpose="size", effort="medium"),
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
    "amd-quark": quark,
    "neural-compressor": neural_compressor,
    "onnx-neural-compressor": onnx_neural_compressor,
    "aimet-onnx": aimet,
    "nvidia-modelopt": modelopt,
}
"""Each tool as its documentation calls it; a second word is its own name for other settings."""

MODULES = {
    "amd-quark": "quark.onnx",
    "neural-compressor": "neural_compressor.quantization",
    "onnx-neural-compressor": "onnx_neural_compressor.quantization",
    "aimet-onnx": "aimet_onnx",
    "nvidia-modelopt": "modelopt.onnx.quantization",
}
"""What a tool is imported as, where that is not its name."""


def main() -> None:
    task = json.loads(sys.argv[1])
    logging.disable(logging.CRITICAL)
    samples = []
    for path in sorted(Path(task["data"]).glob("*.npz")):
        with np.load(path) as arrays:
            samples.append(dict(arrays))
    # What a tool imports is not its work; it is imported here so that it is not timed.
    os.chdir(Path(task["output"]).parent)  # some leave files where they run
    name = task["tool"].split()[0]
    importlib.import_module(MODULES.get(name, name))
    start = time.perf_counter()
    cpu = time.process_time()
    with contextlib.redirect_stdout(sys.stderr):
        TOOLS[task["tool"]](task, samples)
    spent = time.process_time() - cpu
    # Of the whole process and those that it started: some import only what they come to need.
    report(time.perf_counter() - start, cpu=spent, whole=sum(os.times()[:4]))


if __name__ == "__main__":
    main()
