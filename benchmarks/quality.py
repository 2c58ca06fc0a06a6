"""Accuracy and latency of the quantized model, ours against `onnxruntime.quantization`.

The real text recognizer is scored on lines drawn with Pillow (exact strings), the seeded networks
by signal-to-noise ratio against float. Latency is measured alternately, one run of each model in
turn, so that whatever else the machine does falls on all of them alike.

    python benchmarks/quality.py            all of it, about a quarter of an hour
    python benchmarks/quality.py --quick    a few minutes
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from graphs import GRAPHS, make_images, write_graph
from measure import prepare_for_peer, print_table
from onnxruntime.quantization import CalibrationMethod, QuantType, quantize_static
from text_lines import TextLine, alphabet, decode, make_lines, recognizer_path

import bitwright

Sample = dict[str, np.ndarray]
OURS = ("minmax", "percentile", "entropy", "mse")


class Reader:
    """What the peer reads its data from."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._left: Iterator[Sample] = iter(samples)

    def get_next(self) -> Sample | None:
        return next(self._left, None)


def open_model(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def quantize_ours(model: Path, output: Path, samples: Sequence[Sample], method: str) -> None:
    recipe = {"base": "int8-per-channel", "ranges": {"method": method}}
    sketches = output.parent / f"{model.stem}.sketches"
    bitwright.quantize(model, output, data=samples, recipe=recipe, sketches=sketches, holdout=False)


def quantize_peer(model: Path, output: Path, samples: Sequence[Sample], method: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        quantize_static(
            str(model),
            str(output),
            Reader(samples),
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod[method],
        )


def latencies(models: dict[str, Path], sample: Sample, rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each model, run in turn."""
    sessions = {name: open_model(path) for name, path in models.items()}
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for turn in range(rounds + 3):
        for name, session in sessions.items():
            start = time.perf_counter()
            session.run(None, sample)
            if turn >= 3:
                times[name].append(time.perf_counter() - start)
    return {name: 1e3 * float(np.median(values)) for name, values in times.items()}


def score_lines(path: Path, lines: Sequence[TextLine], characters: list[str]) -> str:
    session = open_model(path)
    right = sum(decode(session.run(None, {"x": x.array})[0], characters) == x.text for x in lines)
    return f"{100 * right / len(lines):.1f} %"


def score_noise(path: Path, reference: Path, samples: Sequence[Sample]) -> str:
    expected, actual = open_model(reference), open_model(path)
    signal = noise = 0.0
    for sample in samples:
        a, b = (s.run(None, sample)[0].astype(np.float64) for s in (expected, actual))
        signal += float(np.sum(a * a))
        noise += float(np.sum((a - b) ** 2))
    return "exact" if noise == 0 else f"{10 * np.log10(signal / noise):.1f} dB"


def compare(
    name: str,
    model: Path,
    calibration: Sequence[Sample],
    score: Callable[[Path], str],
    peer_methods: dict[str, int],
    rounds: int,
) -> list[tuple[str, ...]]:
    """Quantize with both tools, every method, and score and time the results."""
    folder = model.parent
    models = {"float": model}
    for method in OURS:
        models[f"bitwright {method}"] = folder / f"{name}-ours-{method}.onnx"
        quantize_ours(model, models[f"bitwright {method}"], calibration, method)
    peer_model = prepare_for_peer(model)
    for method, most in peer_methods.items():
        models[f"onnxruntime {method}"] = folder / f"{name}-peer-{method}.onnx"
        quantize_peer(peer_model, models[f"onnxruntime {method}"], calibration[:most], method)
    times = latencies(models, calibration[0], rounds)
    peer_time = times["onnxruntime MinMax"]
    return [
        (
            name,
            label,
            score(path),
            f"{times[label]:.1f} ms",
            f"{times[label] / peer_time:.2f}",
            f"{path.stat().st_size / 1e6:.1f} MB",
        )
        for label, path in models.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--models", nargs="*", default=["recognizer", *GRAPHS])
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    calibrating, scoring, rounds = (16, 40, 10) if options.quick else (100, 200, 40)
    # The peer's histograms take 200 MB of memory a sample here.
    peer_methods = {"MinMax": calibrating, "Percentile": min(calibrating, 40)}
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory(prefix="bitwright-bench-") as name:
        folder = Path(name)
        for model in options.models:
            if model == "recognizer":
                path = folder / "recognizer.onnx"
                shutil.copyfile(recognizer_path(), path)
                lines, characters = make_lines(scoring, seed=1), alphabet()
                data = [{"x": line.array} for line in make_lines(calibrating, seed=0)]
                rows += compare(
                    model,
                    path,
                    data,
                    lambda q, lines=lines, chars=characters: score_lines(q, lines, chars),
                    peer_methods,
                    rounds,
                )
            else:
                path = write_graph(model, folder)
                data = [{"image": image[None]} for image in make_images(32, seed=0)]
                test = [{"image": image[None]} for image in make_images(16, seed=1)]
                rows += compare(
                    model,
                    path,
                    data,
                    lambda q, path=path, test=test: score_noise(q, path, test),
                    {"MinMax": 32, "Percentile": 16},
                    rounds,
                )
    print_table(("model", "made by", "score", "latency", "/ peer MinMax", "size"), rows)


if __name__ == "__main__":
    main()
