"""`bitwright demo`: a small real model quantized and measured, before and after."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bitwright.cli.groups import described
from bitwright.cli.piping import refuse_pipe
from bitwright.cli.screen import Facts, Part, Screen, Table, show_bytes

if TYPE_CHECKING:
    from bitwright.assess.clock import Clock
    from bitwright.demo import Demo
    from bitwright.jobs.result import Result


@dataclass(frozen=True, slots=True)
class Measured:
    """One model on the demo's test images."""

    accuracy: float
    bytes: int


@dataclass(frozen=True, slots=True)
class DemoReport:
    """What the demo found, and what it wrote."""

    before: Measured
    after: Measured
    single: Clock | None
    """One image; None where it takes too long to be timed."""
    batch: Clock | None
    """All test images at once."""
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
    result = quantize(float_model, model, data=demo.calibration, timing=True, progress=progress)
    result.plan.save(plan)
    before, after = (_measure(demo, path) for path in (float_model, model))
    batch = _time_batch(float_model, result, {"image": demo.images})
    return DemoReport(
        before=before,
        after=after,
        single=result.clock,
        batch=batch,
        images=len(demo.images),
        result=result,
        model=model,
        plan=plan,
        float_model=float_model,
        data=data,
    )


def _measure(demo: Demo, model: Path) -> Measured:
    import numpy as np

    from bitwright.run import Session

    answers = np.argmax(Session(model).runtime.run(None, {"image": demo.images})[0], axis=1)
    return Measured(float(np.mean(answers == demo.labels)), model.stat().st_size)


def _time_batch(float_model: Path, result: Result, images: dict[str, Any]) -> Clock | None:
    from bitwright.assess import clock
    from bitwright.jobs.timing import prepare_yardstick

    side = prepare_yardstick(float_model)
    assert side is not None  # the demo's own model
    found = clock.time_models([side.reference, result.model], [images, images])
    return None if found is None else found[0]


def _document(report: DemoReport) -> dict[str, Any]:
    return {
        "images": report.images,
        "float": asdict(report.before),
        "quantized": asdict(report.after),
        "one_image": None if report.single is None else report.single.to_dict(),
        "all_images": None if report.batch is None else report.batch.to_dict(),
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
        *(
            (f"time of {what}, {clock.where}", "1.00 (prepared)", clock.figure(), clock.interval())
            for what, clock in (("one image", report.single), ("all images at once", report.batch))
            if clock is not None
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
                ("Verdict", result.verdict.sentence),
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
