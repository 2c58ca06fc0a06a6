"""`bitwright demo`: a small real model quantized and measured, before and after."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bitwright.cli.groups import described
from bitwright.cli.piping import refuse_pipe
from bitwright.cli.screen import Facts, Part, Screen, Table, show_bytes

if TYPE_CHECKING:
    from bitwright.assess.clock import Clock
    from bitwright.demo import Demo
    from bitwright.jobs.result import Result


def demo_command(
    *,
    output: Annotated[
        Path, described("DIR", "Where to write the results.", "--output", "-o")
    ] = Path("bitwright-demo"),
    screen: Screen,
) -> None:
    """Quantize a shipped digit classifier, and compare both."""
    refuse_pipe(output, "it writes a folder")
    import numpy as np

    from bitwright.api import quantize
    from bitwright.demo import load_demo
    from bitwright.support.files import make_folder, write_file

    demo, stack = load_demo(), io.BytesIO()
    make_folder(output)
    names = {"model": "digits-int8.onnx", "plan": "digits-int8.plan.json"}
    names |= {"float_model": "digits.onnx", "data": "calibration.npy"}
    files = {what: output / name for what, name in names.items()}
    # The inputs go along, so that what the demo suggests next can be typed as it stands.
    write_file(files["float_model"], demo.model_path.read_bytes())
    np.save(stack, demo.calibration, allow_pickle=False)
    write_file(files["data"], stack.getvalue())
    result = quantize(
        files["float_model"],
        files["model"],
        data=demo.calibration,
        timing=True,
        progress=screen.wants_progress,
    )
    result.plan.save(files["plan"])
    sides = {
        name: _measure(demo, files[what])
        for name, what in (("float", "float_model"), ("quantized", "model"))
    }
    clocks = {"one_image": result.clock, "all_images": _time_batch(result, demo)}
    document = {
        "images": len(demo.images),
        **sides,
        **{name: clock and clock.to_dict() for name, clock in clocks.items()},
        "summary": result.to_dict(),
        "files": {name: str(path) for name, path in files.items()},
    }
    screen.show(document, _parts(document, result, clocks, files))


def _measure(demo: Demo, model: Path) -> dict[str, Any]:
    """Return the accuracy on images that neither training nor calibration saw, and the size."""
    import numpy as np

    from bitwright.run import Session

    answers = np.argmax(Session(model).runtime.run(None, {"image": demo.images})[0], axis=1)
    return {"accuracy": float(np.mean(answers == demo.labels)), "bytes": model.stat().st_size}


def _time_batch(result: Result, demo: Demo) -> Clock | None:
    from bitwright.assess import clock
    from bitwright.jobs.timing import prepare_yardstick

    side, images = prepare_yardstick(demo.model_path), {"image": demo.images}
    assert side is not None  # the demo's own model
    found = clock.time_models([side.reference, result.model], [images, images])
    return None if found is None else found[0]


def _parts(
    document: Mapping[str, Any],
    result: Result,
    clocks: Mapping[str, Clock | None],
    files: Mapping[str, Path],
) -> list[Part]:
    before, after, plan = document["float"], document["quantized"], result.plan
    gain = 100 * (after["accuracy"] - before["accuracy"])
    rows = [
        (
            f"accuracy ({document['images']} unseen images)",
            f"{before['accuracy']:.2%}",
            f"{after['accuracy']:.2%}",
            f"{gain:+.2f} points",
        ),
        ("size", show_bytes(before["bytes"]), show_bytes(after["bytes"]), result.shrinkage),
    ]
    for name, what in (("one_image", "one image"), ("all_images", "all images at once")):
        clock = clocks[name]
        if clock is not None:
            told = f"time of {what}, {clock.where}"
            rows.append((told, "1.00 (prepared)", clock.figure(), clock.interval()))
    done = sum(node.quantized for node in plan.nodes.values())
    return [
        "A small convolutional network that reads handwritten digits, quantized to 8 bits.",
        Table("Before and after", ("", "float", "quantized", "change"), rows),
        Facts(
            [
                ("Recipe", f"{plan.recipe.name}, calibrated on {result.data}"),
                ("Nodes", f"{done} of {len(plan.nodes)} quantized"),
                *(("Note", note) for note in plan.notes),
                ("Verdict", result.verdict.sentence),
                ("Model", str(files["model"])),
                ("Plan", str(files["plan"])),
            ]
        ),
        "Try next:\n"
        f"  bitwright inspect {files['model']}\n"
        f"  bitwright quantize {files['float_model']} "
        f"-o {files['model'].with_name('digits-mse.onnx')} --data {files['data']} --ranges mse\n"
        f"  bitwright apply {files['plan']} {files['float_model']} "
        f"-o {files['model'].with_name('digits-edited.onnx')}   (after editing the plan)",
    ]
