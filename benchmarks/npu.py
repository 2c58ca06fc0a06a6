"""Quantizing for AMD's NPU, ours against `amd-quark`: accuracy, time and memory, side by side.

Both get the same model, the same samples and the same settings, each in a process of its own, one
after the other. Accuracy is the signal-to-noise ratio of all outputs against the float model, over
samples that neither has seen, both in ONNX Runtime. `time` is the wall time of the one call that
quantizes, and `import` that of the line that a program begins with: the peer loads all it needs
there, we most of it in the call, so `faster` compares their sums. `CPU` is processor time of the
call, `smaller` the peak memory of the whole process. `float` is the time to run the samples through
the float model and nothing else: no calibration can be faster, and where the peer is near to it,
neither can we be three times as fast as the peer. Each model is also given to `onnx.checker`, and
what is measured is what the stock runtime computes.

Both take 32 samples in every configuration, and 128 of the two larger models in those with the
search for the best scale: about 15 minutes on two idle cores. The last lines sum up: the worst row
of each kind.

The peer needs an environment of its own (g++ included: it compiles C++ at its first import):

    python -m venv quark
    quark/bin/pip install torch==2.13.0 onnxruntime==1.31.1 amd-quark
    quark/bin/python -c "import quark.onnx"

    python benchmarks/npu.py --peer-python quark/bin/python            all of it
    python benchmarks/npu.py --peer-python quark/bin/python --quick    few samples, some minutes
    python benchmarks/npu.py                                           ours alone
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
from graphs import SMALL_GRAPHS, make_images
from measure import Measured, print_table, run_apart
from npu_worker import CONFIGURATIONS
from text_lines import make_lines, model_path

from bitwright import graph
from bitwright.run import upgrade_opset

WORKER = "npu_worker.py"
UNSEEN = 16
FEW, MANY = 32, 128
# What is also measured with many samples: where calibrating takes the longest.
WITH_MANY = {
    (model, configuration)
    for model in ("resnet18", "mobilenetv2")
    for configuration in ("min-mse", "min-mse, equalized")
}
# Seeds of samples that are measured on, far from those that are calibrated on.
FIRST_UNSEEN = 1_000_000


def draw_page(seed: int) -> np.ndarray:
    """Return a small page of text, (1, 3, 224, 224)."""
    lines = [line.array[:, :, :, :224] for line in make_lines(4, seed)]
    border = np.repeat(lines[0][:, :, :1], 32, axis=2)
    return np.concatenate([*lines, border], axis=2)


def draw_line(seed: int) -> np.ndarray:
    """Return a piece of a line of text, (1, 3, 48, 192), upside down every other time."""
    line = make_lines(1, seed)[0].array[:, :, :, :192]
    return np.ascontiguousarray(line[:, :, ::-1, ::-1]) if seed % 2 else line


class Subject(NamedTuple):
    """A model to quantize, and how to make a sample for it."""

    load: Callable[[], onnx.ModelProto]
    sample: Callable[[int], np.ndarray]


def seeded(name: str) -> Subject:
    return Subject(SMALL_GRAPHS[name], lambda seed: make_images(1, seed))


def real(name: str, sample: Callable[[int], np.ndarray]) -> Subject:
    return Subject(lambda: onnx.load(model_path(name)), sample)


SUBJECTS = {
    "resnet18": seeded("resnet18"),
    "mobilenetv2": seeded("mobilenetv2"),
    "text detector": real("ch_PP-OCRv4_det_infer.onnx", draw_page),
    "text direction": real("ch_ppocr_mobile_v2.0_cls_infer.onnx", draw_line),
}


def write_subject(name: str, folder: Path, count: int) -> tuple[Path, Path]:
    """Write a model with its input's shape fixed, at an opset that both take, and its samples."""
    subject = SUBJECTS[name]
    stem = name.replace(" ", "-")
    proto = subject.load()
    first = proto.graph.input[0]
    shape = subject.sample(0).shape
    for dimension, size in zip(first.type.tensor_type.shape.dim, shape, strict=True):
        dimension.dim_value = size
    path = folder / f"{stem}.onnx"
    model = graph.load_model(proto)
    graph.save_model(upgrade_opset(model, max(17, graph.opset_of(model))), path)
    data = folder / f"{stem}-samples"
    data.mkdir()
    for seed in range(count):
        np.savez(data / f"{seed:04d}.npz", **{first.name: subject.sample(seed)})
    return path, data


def unseen(name: str, model: Path) -> list[dict[str, np.ndarray]]:
    label = onnx.load(model, load_external_data=False).graph.input[0].name
    return [{label: SUBJECTS[name].sample(FIRST_UNSEEN + i)} for i in range(UNSEEN)]


def outputs(model: Path, samples: list[dict[str, np.ndarray]]) -> Iterator[list[np.ndarray]]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    for sample in samples:
        yield session.run(None, sample)


def sqnr(exact: list[list[np.ndarray]], model: Path, samples: list[dict[str, np.ndarray]]) -> float:
    """Return the signal-to-noise ratio of a model's outputs in dB."""
    signal = noise = 0.0
    for wanted, got in zip(exact, outputs(model, samples), strict=True):
        for a, b in zip(wanted, got, strict=True):
            signal += float(np.sum(np.square(a, dtype=np.float64)))
            noise += float(np.sum(np.square(a.astype(np.float64) - b)))
    return 10 * math.log10(signal / noise) if noise else math.inf


def verdict(model: Path) -> str:
    """Return whether a model passes onnx.checker."""
    try:
        onnx.checker.check_model(str(model), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return "no"
    return "yes"


class Side(NamedTuple):
    """What one tool made of a model, and what that took."""

    measured: Measured
    quality: float
    passes: str

    @property
    def whole(self) -> float:
        """What a program that does nothing else takes."""
        return self.measured.seconds + self.measured.extra["imported"]


def best_of(count: int, python: str | None, *arguments: object) -> Measured | str:
    """Repeat and keep the fastest: other work on the machine only ever adds time."""
    chosen = {} if python is None else {"python": python}
    results = [run_apart(WORKER, *arguments, **chosen) for _ in range(count)]
    good = [result for result in results if isinstance(result, Measured)]
    return min(good, key=lambda result: result.seconds) if good else results[0]


def measure_side(
    who: str,
    configuration: str,
    paths: tuple[Path, Path],
    exact: list[list[np.ndarray]],
    samples: list[dict[str, np.ndarray]],
    count: int,
    options: argparse.Namespace,
) -> Side | str:
    model, data = paths
    output = model.with_name(f"{who}.onnx")
    output.unlink(missing_ok=True)
    python = options.peer_python if who == "peer" else None
    done = best_of(options.repeat, python, who, configuration, model, data, count, output)
    if isinstance(done, str):
        return done
    if not output.exists():
        return "wrote no model"
    try:
        return Side(done, sqnr(exact, output, samples), verdict(output))
    except onnxruntime.capi.onnxruntime_pybind11_state.Fail as error:
        return f"does not load: {str(error)[:80]}"


def float_run(paths: tuple[Path, Path], count: int, options: argparse.Namespace) -> str:
    """Return how long the float model alone takes for the samples."""
    model, data = paths
    done = best_of(options.repeat, None, "float", "-", model, data, count, "-")
    if isinstance(done, str):
        raise SystemExit(f"{model.name} does not run: {done}")
    return f"{done.seconds:.2f} s"


HEADER = (
    "model", "samples", "configuration", "SQNR", "peer", "float", "time", "peer", "faster", "CPU",
    "peak", "peer", "smaller", "import", "peer", "checker", "peer",
)  # fmt: skip


def row(
    name: str, count: int, configuration: str, floor: str, ours: Side, peer: Side | str
) -> tuple[str, ...]:
    def cells(side: Side) -> tuple[str, str, str, str, str]:
        found = side.measured
        return (
            f"{side.quality:.2f} dB",
            f"{found.seconds:.2f} s",
            f"{found.peak:.0f} MB",
            f"{found.extra['imported']:.2f} s",
            side.passes,
        )

    mine = cells(ours)
    if isinstance(peer, str):
        theirs, ratios = (peer, "-", "-", "-", "-"), ("-", "-", "-")
    else:
        theirs = cells(peer)
        ratios = (
            f"{peer.whole / ours.whole:.1f}x",
            f"{peer.measured.extra['cpu'] / ours.measured.extra['cpu']:.1f}x",
            f"{peer.measured.peak / ours.measured.peak:.1f}x",
        )
    return (
        name, str(count), configuration, mine[0], theirs[0], floor, mine[1], theirs[1], ratios[0],
        ratios[1], mine[2], theirs[2], ratios[2], mine[3], theirs[3], mine[4], theirs[4],
    )  # fmt: skip


def counts_for(name: str, configuration: str, options: argparse.Namespace) -> list[int]:
    """Return how many samples a configuration of a model is measured with, one after the other."""
    if options.quick:
        return [4]
    if options.samples:
        return list(options.samples)
    return [FEW, MANY] if (name, configuration) in WITH_MANY else [FEW]


def print_worst(pairs: list[tuple[Side, Side]]) -> None:
    """Print the least that any row gains over the peer."""
    if not pairs:
        return
    gains = {
        "dB more": min(ours.quality - peer.quality for ours, peer in pairs),
        "x faster": min(peer.whole / ours.whole for ours, peer in pairs),
        "x less processor time": min(
            peer.measured.extra["cpu"] / ours.measured.extra["cpu"] for ours, peer in pairs
        ),
        "x less memory": min(peer.measured.peak / ours.measured.peak for ours, peer in pairs),
    }
    print("\nAt least " + ", ".join(f"{value:.2f} {what}" for what, value in gains.items()))
    slowest = max(ours.measured.extra["imported"] for ours, _ in pairs)
    passing = all(ours.passes == "yes" for ours, _ in pairs)
    print(f"Import {slowest:.2f} s at most; onnx.checker passes all of ours: {passing}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", help="the interpreter of an environment with amd-quark")
    parser.add_argument("--samples", type=int, nargs="*", help="instead of 32 and 128")
    parser.add_argument("--models", nargs="*", default=[*SUBJECTS], choices=[*SUBJECTS])
    parser.add_argument(
        "--configurations", nargs="*", default=[*CONFIGURATIONS], choices=[*CONFIGURATIONS]
    )
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="4 samples")
    options = parser.parse_args()
    rows: list[tuple[str, ...]] = []
    pairs: list[tuple[Side, Side]] = []
    with tempfile.TemporaryDirectory(prefix="bitwright-bench-") as place:
        for name in options.models:
            wanted = [
                (count, configuration)
                for configuration in options.configurations
                for count in counts_for(name, configuration, options)
            ]
            paths = write_subject(name, Path(place), max(count for count, _ in wanted))
            samples = unseen(name, paths[0])
            exact = list(outputs(paths[0], samples))
            floors = {count: float_run(paths, count, options) for count, _ in wanted}
            for count, configuration in sorted(wanted, key=lambda pair: pair[0]):
                arguments = (configuration, paths, exact, samples, count, options)
                ours = measure_side("ours", *arguments)
                if isinstance(ours, str):
                    raise SystemExit(f"{name}, {configuration}: {ours}")
                peer = measure_side("peer", *arguments) if options.peer_python else "not run"
                if isinstance(peer, Side):
                    pairs.append((ours, peer))
                rows.append(row(name, count, configuration, floors[count], ours, peer))
                print(" | ".join(rows[-1]), flush=True)
    print()
    print_table(HEADER, rows)
    print_worst(pairs)


if __name__ == "__main__":
    main()
