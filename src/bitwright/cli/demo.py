"""`bitwright demo`: a small real model quantized and measured, before and after."""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bitwright.cli.groups import described
from bitwright.cli.piping import refuse_pipe
from bitwright.cli.screen import Facts, Part, Screen, Table, show_bytes, show_ratio

if TYPE_CHECKING:
    from bitwright.demo import Demo
    from bitwright.jobs.result import Result

__all__ = ["DemoReport", "Measured", "demo_command", "run_demo"]

SINGLE_RUNS, BATCH_RUNS = 200, 30


@dataclass(frozen=True, slots=True)
class Measured:
    """One model on the demo's test images."""

    accuracy: float
    bytes: int
    single_ms: float
    """Median time of one image."""
    single_spread: tuple[float, float]
    """Milliseconds that one run in ten is below, and one in ten above."""
    batch_ms: float
    """Median time of all test images at once."""
    batch_spread: tuple[float, float]


@dataclass(frozen=True, slots=True)
class DemoReport:
    """What the demo found, and what it wrote."""

    before: Measured
    after: Measured
    images: int
    result: Result
    model: Path
    plan: Path
    float_model: Path
    data: Path


def demo_command(
    *,
    output: Annotated[
        Path, described("DIR", "Where to write the results.", "--output", "-o")
    ] = Path("bitwright-demo"),
    screen: Screen,
) -> None:
    """Quantize a shipped digit classifier, and compare both."""
    refuse_pipe(output, "it writes a folder")
    report = run_demo(output, progress=screen.wants_progress)
    screen.show(_document(report), _parts(report))


def run_demo(folder: Path, *, progress: bool = False) -> DemoReport:
    """Quantize the shipped digits CNN with its calibration images and measure both models.

    Accuracy is top-1 on the labelled images, which neither training nor calibration saw.
    """
    import numpy as np

    from bitwright.api import quantize
    from bitwright.demo import load_demo
    from bitwright.support.files import make_folder, write_file

    demo = load_demo()
    make_folder(folder)
    float_model, data = folder / "digits.onnx", folder / "calibration.npy"
    model, plan = folder / "digits-int8.onnx", folder / "digits-int8.plan.json"
    # The inputs go along, so that what the demo suggests next can be typed as it stands.
    write_file(float_model, demo.model_path.read_bytes())
    stack = io.BytesIO()
    np.save(stack, demo.calibration, allow_pickle=False)
    write_file(data, stack.getvalue())
    result = quantize(float_model, model, data=demo.calibration, progress=progress)
    result.plan.save(plan)
    before, after = _measure(demo, float_model, model)
    return DemoReport(before, after, len(demo.images), result, model, plan, float_model, data)


def _measure(demo: Demo, *models: Path) -> list[Measured]:
    import numpy as np

    from bitwright.run import open_session

    sessions = [open_session(model, memory_arena=True) for model in models]
    everything, one = {"image": demo.images}, {"image": demo.images[:1]}
    correct = [
        float(np.mean(np.argmax(session.run(None, everything)[0], axis=1) == demo.labels))
        for session in sessions
    ]
    singles = _time([partial(session.run, None, one) for session in sessions], SINGLE_RUNS)
    batches = _time([partial(session.run, None, everything) for session in sessions], BATCH_RUNS)
    return [
        Measured(right, model.stat().st_size, *single, *batch)
        for right, model, single, batch in zip(correct, models, singles, batches, strict=True)
    ]


def _time(jobs: list[Callable[[], Any]], runs: int) -> list[tuple[float, tuple[float, float]]]:
    """Return each job's median and spread in milliseconds.

    They take turns, so that a busy moment hits all.
    """
    times: list[list[float]] = [[] for _ in jobs]
    for turn in range(runs + runs // 10):
        for job, taken in zip(jobs, times, strict=True):
            start = time.perf_counter()
            job()
            if turn >= runs // 10:  # the first turns warm up
                taken.append(1e3 * (time.perf_counter() - start))
    tenths = [statistics.quantiles(taken, n=10) for taken in times]
    return [(found[4], (found[0], found[-1])) for found in tenths]


def _show_time(milliseconds: float, spread: tuple[float, float]) -> str:
    return f"{milliseconds:.3g} ms ({spread[0]:.3g} to {spread[1]:.3g})"


def _document(report: DemoReport) -> dict[str, Any]:
    return {
        "images": report.images,
        "float": asdict(report.before),
        "quantized": asdict(report.after),
        "summary": report.result.to_dict(),
        "files": {
            name: str(getattr(report, name)) for name in ("model", "plan", "float_model", "data")
        },
    }


def _parts(report: DemoReport) -> list[Part]:
    before, after, result = report.before, report.after, report.result
    rows = [
        (
            f"accuracy ({report.images} unseen images)",
            f"{before.accuracy:.2%}",
            f"{after.accuracy:.2%}",
            f"{100 * (after.accuracy - before.accuracy):+.2f} points",
        ),
        (
            "size",
            show_bytes(before.bytes),
            show_bytes(after.bytes),
            f"{before.bytes / after.bytes:.2f}x smaller",
        ),
        (
            f"one image (median and 8 of 10 of {SINGLE_RUNS} runs)",
            _show_time(before.single_ms, before.single_spread),
            _show_time(after.single_ms, after.single_spread),
            show_ratio(before.single_ms / after.single_ms, "faster", "slower"),
        ),
        (
            f"{report.images} images at once ({BATCH_RUNS} runs)",
            _show_time(before.batch_ms, before.batch_spread),
            _show_time(after.batch_ms, after.batch_spread),
            show_ratio(before.batch_ms / after.batch_ms, "faster", "slower"),
        ),
    ]
    plan = result.plan
    done = sum(node.quantized for node in plan.nodes.values())
    folder = report.model.parent
    return [
        "A small convolutional network that reads handwritten digits, quantized to 8 bits.",
        Table("Before and after", ("", "float", "quantized", "change"), rows),
        Facts(
            [
                ("Recipe", f"{plan.recipe.name}, calibrated on {result.data}"),
                ("Nodes", f"{done} of {len(plan.nodes)} quantized"),
                *(("Note", note) for note in plan.notes),
                ("Model", str(report.model)),
                ("Plan", str(report.plan)),
            ]
        ),
        "Try next:\n"
        f"  bitwright inspect {report.model}\n"
        f"  bitwright quantize {report.float_model} -o {folder / 'digits-mse.onnx'} "
        f"--data {report.data} --ranges mse\n"
        f"  bitwright apply {report.plan} {report.float_model} "
        f"-o {folder / 'digits-edited.onnx'}   (after editing the plan)",
    ]
