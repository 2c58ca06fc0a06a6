"""Trained models with real labels, quantized by each tool from the same samples, side by side.

Each tool runs in a process of its own. A row has the metric of the model's user on samples that
were not calibrated on, with a 95 % interval from 1,000 bootstrap resamples; `to float` is the
difference from float on the same resamples, and `differs` the share of decisions (classes, letters,
boxes) that are not float's, which has far less noise than labels. SQNR is that of the worst output.
Integer products are the convolutions, matrix products and recurrent layers that ONNX Runtime
computes in integers, as its profile of one run says, by count and by multiply-adds. Latency is CPU
time of one thread, the models run in turn, and 1.00 is float, with the 10th and the 90th percentile
of the turns; time is CPU time, too. What `accuracy_tasks.py` fetches and trains stays in
`benchmarks/.cache`. `peers.py` has more tools, each in an environment of its own.

    pip install torch scikit-learn scipy pillow tokenizers
    python -m venv peers && peers/bin/pip install nncf==3.4.0 onnxsim==0.8.1 onnxruntime
    python benchmarks/accuracy.py --peer-python peers/bin/python --json accuracy.json
    python benchmarks/accuracy.py --models magika --tools bitwright --samples 32

"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from accuracy_tasks import SOURCES, TASKS, Sample, Task
from accuracy_worker import TOOLS
from measure import Measured, prepare_for_peer, print_table, run_apart
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

RESAMPLES = 1000
SQNR_SAMPLES = 64
PEERS = ("nncf", "onnxsim")
"""Tools of the peers' environment; the others are in this one."""
USUAL = (
    "bitwright",
    "bitwright medium",
    "onnxruntime",
    "onnxruntime per channel",
    "nncf",
    "onnxsim",
    "onnxsim pick",
)
RUNTIME_ERRORS = (
    runtime.Fail,
    runtime.InvalidArgument,
    runtime.InvalidGraph,
    runtime.InvalidProtobuf,
    runtime.NotImplemented,
    runtime.RuntimeException,
)

# Kernel -> index of its second factor; the output has the first factor's rows.
FLOAT_PRODUCTS = {
    "Conv": 1, "FusedConv": 1, "NhwcFusedConv": 1, "ConvTranspose": 1, "MatMul": 1,
    "FusedMatMul": 1, "Gemm": 1, "FusedGemm": 1, "LSTM": 1, "GRU": 1,
}  # fmt: skip
INTEGER_PRODUCTS = {
    "QLinearConv": 3, "QLinearMatMul": 3, "QGemm": 3, "MatMulInteger": 1, "ConvInteger": 1,
    "MatMulIntegerToFloat": 1, "DynamicQuantizeMatMul": 1, "QLinearConvTranspose": 3,
    "DynamicQuantizeLSTM": 1,
}  # fmt: skip
PRODUCT = re.compile("Conv|MatMul|Gemm|LSTM|GRU|RNN|Attention|Einsum")


@dataclass(frozen=True)
class Row:
    """What is known of one model by one tool."""

    model: str
    tool: str
    error: str = ""
    metric: str = ""
    score: float = math.nan
    interval: tuple[float, float] = (math.nan, math.nan)
    difference: float = math.nan
    difference_interval: tuple[float, float] = (math.nan, math.nan)
    differs: float = math.nan
    """Share of decisions that are not those of the float model."""
    sqnr: float = math.nan
    integer_products: int = 0
    products: int = 0
    integer_work: float = 0.0
    """Share of the multiply-adds."""
    latency: float = math.nan
    """Median milliseconds."""
    latency_ratio: float = math.nan
    latency_interval: tuple[float, float] = (math.nan, math.nan)
    """The 10th and the 90th percentile of the ratio to float, turn by turn."""
    seconds: float = math.nan
    cpu_seconds: float = math.nan
    process_seconds: float = math.nan
    """CPU seconds of the whole process, imports included."""
    peak: float = math.nan
    size: float = math.nan


def open_model(path: Path, **changes: Any) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    for name, value in changes.items():
        setattr(options, name, value)
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def count_products(path: Path, sample: Sample) -> tuple[int, int, float]:
    """Return the integer products, all products, and the integer share of the multiply-adds."""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        options.enable_profiling = True
        options.profile_file_prefix = f"{folder}/profile"
        # A packed weight has no shape in the profile.
        options.add_session_config_entry("session.disable_prepacking", "1")
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        session.run(None, sample)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    counts, work = [0, 0], [0, 0]
    for event in events:
        found = event.get("args", {})
        name = found.get("op_name")
        if not event["name"].endswith("_kernel_time"):
            continue
        if PRODUCT.search(name) and name not in FLOAT_PRODUCTS | INTEGER_PRODUCTS:
            raise SystemExit(f"{path.name} has the kernel {name}, which no table of products has")
        for kind, table in enumerate((FLOAT_PRODUCTS, INTEGER_PRODUCTS)):
            if name in table:
                counts[kind] += 1
                work[kind] += multiply_adds(name, table[name], found)
    total = sum(work)
    return counts[1], sum(counts), work[1] / total if total else 0.0


def multiply_adds(name: str, index: int, found: dict[str, Any]) -> int:
    """Return the multiply-adds of a product from the shapes in its profile."""
    shapes = [next(iter(x.values())) for x in found["input_type_shape"]]
    output = next(iter(found["output_type_shape"][0].values()))
    factor = shapes[index]
    if "LSTM" in name or name == "GRU":
        # Weights of the input and of the state, at each step.
        return int(shapes[0][0] * shapes[0][1] * (math.prod(factor) + math.prod(shapes[2])))
    if "ConvTranspose" in name:
        return math.prod(shapes[0]) * math.prod(factor[1:])
    if "Conv" in name:
        return math.prod(output) * math.prod(factor[1:])
    first = shapes[0]
    return math.prod(output) * (math.prod(first) // max(math.prod(output[:-1]), 1))


def run_all(path: Path, task: Task) -> tuple[list[Any], list[list[np.ndarray]]]:
    """Return the answers of a model, and its float outputs for the first samples."""
    session = open_model(path)
    answers, outputs = [], []
    for index, sample in enumerate(task.evaluation):
        found = session.run(None, sample)
        answers.append(task.read(found))
        if index < SQNR_SAMPLES:
            outputs.append([x for x in found if x.dtype == np.float32])
    return answers, outputs


def worst_sqnr(wanted: list[list[np.ndarray]], got: list[list[np.ndarray]]) -> float:
    worst = math.inf
    for index in range(len(wanted[0])):
        signal = noise = 0.0
        for a, b in zip(wanted, got, strict=True):
            signal += float(np.sum(np.square(a[index], dtype=np.float64)))
            noise += float(np.sum(np.square(a[index].astype(np.float64) - b[index])))
        if not math.isfinite(noise):
            return -math.inf
        worst = min(worst, 10 * math.log10(signal / noise) if noise and signal else math.inf)
    return worst


def bootstrap(task: Task, grades: np.ndarray) -> np.ndarray:
    """Return the metric of resamples, the same for every model of the task."""
    random = np.random.default_rng(0)
    draws = random.integers(0, len(grades), (RESAMPLES, len(grades)))
    return np.array([task.summary(grades[chosen]) for chosen in draws])


def middle(values: np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def path_of(folder: Path, tool: str) -> Path:
    """Return where a tool's model is written."""
    return folder / f"{tool.replace(' ', '-')}.onnx"


def files_of(path: Path) -> list[Path]:
    """Return the files of a model, external data included."""
    return sorted(path.parent.glob(f"{path.name}*"))


def quantize(tool: str, folder: Path, python: str, *, transformer: bool) -> Measured | str:
    """Run a tool apart on what lies in a folder; return what it took, or why it failed."""
    output = path_of(folder, tool)
    job = {
        "tool": tool,
        "model": str(folder / "float.onnx"),
        "prepared": str(folder / "float-for-peer.onnx"),
        "data": str(folder / "samples"),
        "output": str(output),
        "transformer": transformer,
    }
    done = run_apart("accuracy_worker.py", json.dumps(job), python=python)
    if isinstance(done, Measured) and not output.exists():
        return "wrote no model"
    return done


def time_in_turn(models: dict[str, Path], sample: Sample, seconds: float) -> dict[str, np.ndarray]:
    """Return the milliseconds of one thread for each model and turn; a turn runs all of them."""
    sessions = {name: open_model(path) for name, path in models.items()}
    times: dict[str, list[float]] = {name: [] for name in sessions}
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or len(next(iter(times.values()))) < 8:
        for name, session in sessions.items():
            start = time.thread_time()
            session.run(None, sample)
            times[name].append(time.thread_time() - start)
    return {name: 1e3 * np.array(values[2:]) for name, values in times.items()}


def time_models(models: dict[str, Path], sample: Sample, seconds: float) -> dict[str, float]:
    """Return the median milliseconds of one thread for each model, run in turn."""
    times = time_in_turn(models, sample, seconds)
    return {name: float(np.median(values)) for name, values in times.items()}


def with_latency(row: Row, times: np.ndarray, base: np.ndarray) -> Row:
    """Return a row with its latency, and its ratio to that of float in the same turns."""
    low, half, high = np.percentile(times / base, [10, 50, 90])
    return replace(
        row,
        latency=float(np.median(times)),
        latency_ratio=float(half),
        latency_interval=(float(low), float(high)),
    )


@dataclass(frozen=True)
class Reference:
    """A task as files of a folder, and what the float model makes of it."""

    name: str
    task: Task
    folder: Path
    row: Row
    draws: np.ndarray
    """The metric of resamples."""
    outputs: list[list[np.ndarray]]
    answers: list[Any]

    @property
    def model(self) -> Path:
        return self.folder / "float.onnx"


def lay_out(name: str, samples: int, folder: Path) -> Reference:
    """Write the model and its samples to a folder, and run the float model."""
    task = TASKS[name](samples)
    data = folder / "samples"
    data.mkdir(parents=True, exist_ok=True)
    for index, sample in enumerate(task.calibration):
        np.savez(data / f"{index:04d}.npz", **sample)
    model = folder / "float.onnx"
    onnx.save(task.model, model)
    prepare_for_peer(model)
    answers, outputs = run_all(model, task)
    grades = task.grade(answers)
    draws = bootstrap(task, grades)
    row = Row(
        name, "float", metric=task.metric, score=task.summary(grades), interval=middle(draws),
        products=count_products(model, task.evaluation[0])[1], size=model.stat().st_size / 1e6,
    )  # fmt: skip
    return Reference(name, task, folder, row, draws, outputs, answers)


def judge(reference: Reference, tool: str, python: str) -> tuple[Row, np.ndarray | None]:
    """Quantize by a tool; return its row, without latency, and the metric of resamples."""
    name, task = reference.name, reference.task
    done = quantize(tool, reference.folder, python, transformer=task.transformer)
    if not isinstance(done, Measured):
        return Row(name, tool, error=done), None
    path = path_of(reference.folder, tool)
    try:
        answers, got = run_all(path, task)
        integer, products, work = count_products(path, task.evaluation[0])
    except RUNTIME_ERRORS as error:
        return Row(name, tool, error=str(error).splitlines()[0][:160]), None
    grades = task.grade(answers)
    draws, score = bootstrap(task, grades), task.summary(grades)
    pairs = zip(answers, reference.answers, strict=True)
    row = Row(
        name, tool, metric=task.metric, score=score, interval=middle(draws),
        difference=score - reference.row.score,
        difference_interval=middle(draws - reference.draws),
        differs=float(np.mean([task.differ(found, wanted) for found, wanted in pairs])),
        sqnr=worst_sqnr(reference.outputs, got), integer_products=integer, products=products,
        integer_work=work, seconds=done.seconds, cpu_seconds=done.extra["cpu"],
        process_seconds=done.extra["whole"], peak=done.peak,
        size=sum(x.stat().st_size for x in files_of(path)) / 1e6,
    )  # fmt: skip
    return row, draws


def measure(name: str, options: argparse.Namespace) -> list[Row]:
    """Return the rows of a model: float, then each tool."""
    with tempfile.TemporaryDirectory(prefix="bitwright-bench-") as place:
        reference = lay_out(name, options.samples, Path(place))
        rows, models = {"float": reference.row}, {"float": reference.model}
        for tool in options.tools:
            python = options.peer_python if tool.split()[0] in PEERS else sys.executable
            if python is None:
                continue
            rows[tool], _ = judge(reference, tool, python)
            if not rows[tool].error:
                models[tool] = path_of(reference.folder, tool)
                print(" | ".join(cells(rows[tool])), flush=True)
        times = time_in_turn(models, reference.task.evaluation[0], options.latency_seconds)
    for tool, taken in times.items():
        rows[tool] = with_latency(rows[tool], taken, times["float"])
    return list(rows.values())


HEADER = (
    "model", "tool", "metric", "95 %", "to float", "95 %", "differs", "SQNR", "integer products",
    "multiply-adds", "latency", "time", "peak memory",
)  # fmt: skip


def latency_cell(row: Row) -> str:
    """Return the ratio to float's latency, with its spread."""
    low, high = row.latency_interval
    return f"{row.latency_ratio:.2f} ({low:.2f} to {high:.2f})"


def cells(row: Row) -> tuple[str, ...]:
    """Return a row as text."""
    if row.error:
        return (row.model, row.tool, row.error, *[""] * (len(HEADER) - 3))
    low, high = row.interval
    score = f"{100 * row.score:.2f}", f"{100 * low:.1f} to {100 * high:.1f}"
    if row.tool == "float":
        end = "", "", "", "", f"0 of {row.products}", "", "1.00", "", ""
        return (row.model, row.tool, f"{score[0]} {row.metric}", score[1], *end)
    low, high = row.difference_interval
    return (
        row.model, row.tool, *score, f"{100 * row.difference:+.2f}",
        f"{100 * low:+.1f} to {100 * high:+.1f}", f"{100 * row.differs:.2f} %",
        f"{row.sqnr:.1f} dB",
        f"{row.integer_products} of {row.products}", f"{row.integer_work:.0%}",
        latency_cell(row), f"{row.cpu_seconds:.1f} s", f"{row.peak:.0f} MB",
    )  # fmt: skip


def main() -> None:
    """Measure, print the table, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=[*TASKS], choices=[*TASKS])
    parser.add_argument("--tools", nargs="*", default=[*USUAL], choices=[*TOOLS])
    parser.add_argument("--samples", type=int, default=64, help="to calibrate on")
    parser.add_argument("--peer-python", help="the interpreter of an environment with the peers")
    parser.add_argument("--latency-seconds", type=float, default=10, help="for each model's row")
    parser.add_argument("--json", type=Path, help="write the table here, after each model")
    options = parser.parse_args()
    onnxruntime.set_default_logger_severity(4)
    if options.peer_python is None and any(t.split()[0] in PEERS for t in options.tools):
        print(f"without --peer-python there are no rows of {' and '.join(PEERS)}", file=sys.stderr)
    rows: list[Row] = []
    for name in options.models:
        rows += measure(name, options)
        if options.json is not None:
            found = {
                "samples": options.samples,
                "sources": {x: asdict(SOURCES[x]) for x in options.models},
                "rows": [asdict(row) for row in rows],
            }
            options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print_table(HEADER, [cells(row) for row in rows])


if __name__ == "__main__":
    main()
