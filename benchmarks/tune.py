"""Tuning to a metric beside nncf's accuracy control: trained models with real labels.

Both calibrate on the same samples, search with the same labelled samples, and are scored on others
that neither has seen. Each runs in a process of its own. `kept` is the share of the speed-up of
plain int8 (`bitwright.quantize`) over the prepared float model that the tuned model keeps, in CPU
time of one thread. A second run with twice the drop, in the same folder, shows what the journal
saves; a third is killed half way and run again, and shows what is lost by that.

    pip install torch scikit-learn scipy pillow tokenizers
    python -m venv peers && peers/bin/pip install nncf==3.4.0 onnxruntime
    python benchmarks/tune.py --peer-python peers/bin/python --json tune.json

"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from accuracy import open_model, time_models
from accuracy_tasks import (
    EXAMPLES,
    MAGIKA,
    MORE_EXAMPLES,
    NUDENET,
    RAPIDOCR,
    SPEECH,
    TASKS,
    WHISPER,
    Sample,
    Task,
    crop_photographs,
    find_direction,
    find_orientation,
    mix_speech,
    recognize_files,
    recordings,
)
from boxes import found_objects
from measure import HERE, Measured, prepare_for_peer, print_table, run_apart
from packages import find
from text_lines import alphabet, make_lines
from tune_worker import SCORES, SET_SCORES

import bitwright
from bitwright.graph import save_model
from bitwright.jobs.improve.journal import FIGURES
from bitwright.jobs.timing import prepare_yardstick
from bitwright.jobs.tuning.request import split_parts
from bitwright.support.store import read_part

PEER_SECONDS = 1800
RAPIDOCR_V3 = "rapidocr-onnxruntime==1.2.3"
MAX_PHOTOGRAPHS = 200
"""Crops of so few photographs are not worth more."""


@dataclass(frozen=True)
class Labelled:
    """A float model, samples to calibrate with, and samples with labels."""

    model: onnx.ModelProto
    calibration: list[Sample]
    labelled: list[Sample]
    transformer: bool = False
    score: str = "classes"
    """What samples are scored by, of `tune_worker.SCORES` or its `SET_SCORES`."""


def recognizer(package: str, name: str) -> Callable[[int, int], Labelled]:
    def make(samples: int, most: int) -> Labelled:
        path = find(package, name)
        number = {character: index for index, character in enumerate(alphabet(path))}
        labelled = [
            {"x": line.array, "label": np.array([number[c] for c in line.text])}
            for line in make_lines(most, seed=1)
        ]
        calibration = [{"x": line.array} for line in make_lines(samples, seed=0)]
        return Labelled(onnx.load(path), calibration, labelled)

    return make


def classifier(
    make_task: Callable[[int, int], Task], answers: Callable[[], Sequence[Any]]
) -> Callable[[int, int], Labelled]:
    def make(samples: int, most: int) -> Labelled:
        task = make_task(samples, most)
        # The class for which the task's own grading says that a sample is right.
        grades = [task.grade([answer] * len(task.evaluation)) for answer in answers()]
        labels = np.argmax(grades, axis=0)
        labelled = [
            {**sample, "label": label}
            for sample, label in zip(task.evaluation, labels, strict=True)
        ]
        random.Random(0).shuffle(labelled)  # files come kind by kind
        return Labelled(task.model, task.calibration, labelled[:most], task.transformer)

    return make


def recognize_many_files(samples: int, most: int) -> Task:
    del most  # as many as the packages have
    return recognize_files(samples, (*MORE_EXAMPLES, EXAMPLES, SPEECH), per_kind=90)


def clothes(name: str) -> Callable[[int, int], Task]:
    return lambda samples, most: TASKS[name](samples)  # 2,000 are judged


def kinds_of_files() -> list[str]:
    settings = json.loads(find(MAGIKA, "config.min.json").read_text(encoding="utf-8"))
    return list(settings["target_labels_space"])


def yolov8n(samples: int, most: int) -> Labelled:
    """Return a detector and photographs without labels: what float finds is what shall be found."""
    path = find(NUDENET, "320n.onnx")
    session = open_model(path)
    labelled = [
        {**sample, "label": np.array(found_objects(session.run(None, sample)), np.float32)}
        for sample in crop_photographs(min(most, MAX_PHOTOGRAPHS), 1, scored=True)
    ]
    calibration = crop_photographs(samples, 0, scored=False)
    return Labelled(onnx.load(path), calibration, labelled, score="objects")


def silero_vad(samples: int, most: int) -> Labelled:
    spoken = recordings()
    found, labels = mix_speech(most, 1, spoken[1::2])
    return Labelled(
        onnx.load(find(WHISPER, "silero_vad_v6.onnx")),
        mix_speech(samples, 0, spoken[::2])[0],
        [{**sample, "label": label} for sample, label in zip(found, labels, strict=True)],
        score="windows",
    )


MODELS = {
    "magika": classifier(recognize_many_files, kinds_of_files),
    "recognizer": recognizer(RAPIDOCR, "ch_PP-OCRv4_rec_infer.onnx"),
    "recognizer-v3": recognizer(RAPIDOCR_V3, "ch_PP-OCRv3_rec_infer.onnx"),
    "direction": classifier(find_direction, lambda: range(2)),
    "orientation": classifier(find_orientation, lambda: range(4)),
    "fashion-mobilenet": classifier(clothes("fashion-mobilenet"), lambda: range(10)),
    "fashion-vit": classifier(clothes("fashion-vit"), lambda: range(10)),
    "silero-vad": silero_vad,
    "yolov8n": yolov8n,
}


@dataclass
class Row:
    """What is known of one model by one tool."""

    model: str
    tool: str
    error: str = ""
    drop: float = math.nan
    """On samples of the search."""
    unseen: float = math.nan
    """On samples that the search has not seen."""
    met: bool = False
    evaluations: float = math.nan
    seconds: float = math.nan
    cpu_seconds: float = math.nan
    latency: float = math.nan
    """Milliseconds of one thread."""
    kept: float = math.nan
    second_drop: float = math.nan
    """CPU seconds of a run with twice the drop in the same folder."""
    lost: float = math.nan
    """Evaluations that were made twice in a run which was killed half way."""


def score_of(path: Path, samples: list[Sample], kind: str) -> float:
    session = open_model(path)
    outputs, labels = [], [sample["label"] for sample in samples]
    for sample in samples:
        feeds = {name: array for name, array in sample.items() if name != "label"}
        outputs.append(session.run(None, feeds)[0])
    if kind in SET_SCORES:
        return SET_SCORES[kind](outputs, labels)
    return float(np.mean([SCORES[kind](*pair) for pair in zip(outputs, labels, strict=True)]))


def write(samples: list[Sample], folder: Path) -> str:
    folder.mkdir()
    for index, sample in enumerate(samples):
        np.savez(folder / f"{index:05d}.npz", **sample)
    return str(folder)


def scores(work: Path) -> Counter[str]:
    """Return how many scores of each model the journal in a folder has."""
    found: Counter[str] = Counter()
    for path in (work / FIGURES).glob("*.safetensors"):
        notes = read_part(path).notes
        part, _, model = notes["name"].partition("/")
        if part == "eval" and not model.startswith("float"):
            found[model] += len(json.loads(notes["value"]))
    return found


def kill_and_resume(job: dict) -> float:
    """Kill a run half way, run it again, and return how many evaluations were lost.

    Those are the one that was cut off, and any that ran again and told nothing new.
    """
    work = Path(job["work"]).with_name("killed")
    job = {**job, "work": str(work), "output": str(work.with_suffix(".onnx"))}
    wanted = scores(Path(job["work"]).with_name("work")).total() // 2
    command = [sys.executable, str(HERE / "tune_worker.py"), json.dumps(job)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and scores(work).total() < wanted:
        time.sleep(0.1)
    process.kill()
    if process.wait() == 0:
        return 0
    before = scores(work)
    done = run_apart("tune_worker.py", json.dumps(job))
    if not isinstance(done, Measured):
        return math.nan
    after = scores(work)
    told = sum(after[name] > before[name] for name in after)
    return 1 + done.extra["evaluations"] - told


def write_prepared(model: Path, output: Path) -> Path:
    """Write the prepared float model, which times are beside."""
    side = prepare_yardstick(model)
    assert side is not None  # it is a float model
    save_model(side.reference, output)
    return output


def measure(name: str, options: argparse.Namespace) -> list[Row]:
    """Return the rows of a model: float, plain int8, and each tool."""
    task = MODELS[name](options.samples, options.evaluate)
    parts = split_parts(len(task.labelled), calibrates=False)
    searched = [task.labelled[index] for index in parts.evaluation]
    unseen = [task.labelled[index] for index in parts.final]
    with tempfile.TemporaryDirectory(prefix="bitwright-bench-") as place:
        folder = Path(place)
        model = folder / "float.onnx"
        onnx.save(task.model, model)
        job = {
            "model": str(model),
            "prepared": str(prepare_for_peer(model)),
            "data": write(task.calibration, folder / "calibration"),
            "labelled": write(task.labelled, folder / "labelled"),
            "evaluation": list(parts.evaluation),
            "work": str(folder / "work"),
            "drop": options.drop,
            "transformer": task.transformer,
            "score": task.score,
        }
        plain = folder / "int8.onnx"
        bitwright.quantize(model, plain, data=task.calibration, progress=False)
        base = score_of(model, searched, task.score), score_of(model, unseen, task.score)
        models = {"float": model, "plain int8": plain}
        rows = {"float": Row(name, "float"), "plain int8": Row(name, "plain int8")}
        for tool in ("bitwright", "nncf"):
            python = options.peer_python if tool == "nncf" else sys.executable
            if python is None:
                continue
            output = folder / f"{tool}.onnx"
            given = {**job, "tool": tool, "output": str(output)}
            done = run_apart(
                "tune_worker.py", json.dumps(given), python=python, timeout=options.peer_seconds
            )
            rows[tool] = row = Row(name, tool)
            if not isinstance(done, Measured):
                row.error = done
                continue
            models[tool] = output
            row.seconds, row.cpu_seconds = done.seconds, done.extra["cpu"]
            row.evaluations = done.extra["evaluations"]
            if tool == "bitwright":
                looser = {**given, "drop": 2 * options.drop, "output": str(folder / "second.onnx")}
                second = run_apart("tune_worker.py", json.dumps(looser))
                if isinstance(second, Measured):
                    row.second_drop = second.extra["cpu"]
                if options.kill:
                    row.lost = kill_and_resume(given)
            print(row, flush=True)
        for tool, path in models.items():
            rows[tool].drop = base[0] - score_of(path, searched, task.score)
            rows[tool].unseen = base[1] - score_of(path, unseen, task.score)
            rows[tool].met = rows[tool].drop <= options.drop + 1e-9
        feeds = {n: a for n, a in task.labelled[0].items() if n != "label"}
        models["float"] = write_prepared(model, folder / "prepared.onnx")
        times = time_models(models, feeds, options.latency_seconds)
    gained = times["float"] - times["plain int8"]
    for tool, milliseconds in times.items():
        rows[tool].latency = milliseconds
        rows[tool].kept = (times["float"] - milliseconds) / gained if gained > 0 else math.nan
    return list(rows.values())


HEADER = (
    "model", "tool", "goal", "drop", "unseen", "evaluations", "time", "CPU time", "latency",
    "kept", "second drop", "lost by a kill",
)  # fmt: skip


def cells(row: Row) -> tuple[str, ...]:
    """Return a row as text."""
    if row.error:
        return (row.model, row.tool, row.error, *[""] * (len(HEADER) - 3))

    def show(value: float, form: str) -> str:
        return "" if math.isnan(value) else form.format(value)

    return (
        row.model, row.tool, "met" if row.met else "missed", show(100 * row.drop, "{:.2f}"),
        show(100 * row.unseen, "{:.2f}"), show(row.evaluations, "{:.0f}"),
        show(row.seconds, "{:.0f} s"), show(row.cpu_seconds, "{:.0f} s"),
        show(row.latency, "{:.2f} ms"), show(row.kept, "{:.0%}"),
        show(row.second_drop, "{:.1f} s"), show(row.lost, "{:.0f}"),
    )  # fmt: skip


def main() -> None:
    """Measure, print the table, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=[*MODELS], choices=[*MODELS])
    parser.add_argument("--samples", type=int, default=64, help="to calibrate on")
    parser.add_argument("--evaluate", type=int, default=1000, help="labelled samples at most")
    parser.add_argument("--drop", type=float, default=0.005, help="that is allowed")
    parser.add_argument("--peer-python", help="the interpreter of an environment with nncf")
    parser.add_argument("--peer-seconds", type=int, default=PEER_SECONDS)
    parser.add_argument("--no-kill", dest="kill", action="store_false")
    parser.add_argument("--latency-seconds", type=float, default=10)
    parser.add_argument("--json", type=Path, help="write the table here, after each model")
    options = parser.parse_args()
    onnxruntime.set_default_logger_severity(4)
    rows: list[Row] = []
    for name in options.models:
        rows += measure(name, options)
        if options.json is not None:
            options.json.write_text(json.dumps([asdict(r) for r in rows], indent=1))
    print_table(HEADER, [cells(row) for row in rows])


if __name__ == "__main__":
    main()
