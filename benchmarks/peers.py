"""Every peer beside us on the models of `accuracy.py`, each tool in an environment of its own.

    python benchmarks/peers.py run      what is missing: environments, quantized models, figures
    python benchmarks/peers.py table    docs/reference/results.md from the figures

Environments are made from the pinned files of `benchmarks/requirements`. Everything stays under
`build/peers`, a file for each tool and model, and a run that was stopped goes on where it was;
`--again TOOL` measures a tool once more. All tools calibrate on the same samples. Figures of the
page are kept beside this file (`peers.jsonl.gz`, written by `table`): a fresh clone goes on from
them, and only our own rows have to be measured again when our code changes:

    python benchmarks/peers.py run --again bitwright "bitwright medium"
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import hashlib
import json
import os
import platform
import subprocess
import sys
import venv
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from accuracy import (
    Reference,
    Row,
    files_of,
    judge,
    lay_out,
    path_of,
    time_in_turn,
    with_latency,
)
from accuracy_tasks import TASKS
from accuracy_worker import MODULES
from measure import HERE
from peers_page import TOOLS, write_page

BUILD = HERE.parent / "build" / "peers"
PAGE = HERE.parent / "docs" / "reference" / "results.md"
KEPT = HERE / "peers.jsonl.gz"
REQUIREMENTS = HERE / "requirements"
CHEAP_FIRST = (
    "diamonds", "magika", "silero-vad", "direction", "sentences", "fashion-mobilenet",
    "fashion-vit", "recognizer", "orientation", "yolov8n", "detector",
)  # fmt: skip
VERSIONS = """
import importlib.metadata as m, json, sys
names = {"onnx", "onnxruntime", "onnxruntime-gpu", "numpy", "torch", "numba", sys.argv[1]}
found = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in m.distributions()}
print(json.dumps({name: found[name] for name in names & found.keys()}))
"""


def make_environment(package: str) -> str:
    """Return the interpreter of a peer's environment, which is made where it is not there."""
    requirements = REQUIREMENTS / f"{package}.txt"
    folder = BUILD / "environments" / package
    python, stamp = folder / "bin" / "python", folder / "requirements.sha256"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text(encoding="ascii") == wanted:
        return str(python)
    print(f"installing {package}", flush=True)
    venv.create(folder, clear=True, with_pip=True)
    command = [python, "-m", "pip", "install", "--quiet", "--requirement", requirements]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [x for x in done.stderr.splitlines() if x.startswith("ERROR")] or ["no reason"]
        raise LookupError(f"does not install: {lines[-1].removeprefix('ERROR: ')[:200]}")
    # What compiles at its first import is not timed; an import that fails will say so later.
    subprocess.run(
        [python, "-c", f"import {MODULES.get(package, package)}"], capture_output=True, check=False
    )
    stamp.write_text(wanted, encoding="ascii")
    return str(python)


def versions(python: str, package: str) -> dict[str, str]:
    command = [python, "-c", VERSIONS, package]
    found: dict[str, str] = json.loads(subprocess.check_output(command, text=True))
    return dict(sorted(found.items()))


def describe_machine() -> str:
    """Return the processor in words."""
    try:
        facts = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        facts = ""
    kinds = ("avx512_vnni", "AVX-512 VNNI"), ("avx_vnni", "AVX VNNI"), ("avx2", "AVX2")
    kind = next((words for flag, words in kinds if flag in facts), "")
    with_kind = f" with {kind}" if kind else ""
    return f"{os.cpu_count()} shared cores of {platform.machine()}{with_kind}"


def result_path(model: str, tool: str) -> Path:
    return BUILD / "results" / model / f"{tool.replace(' ', '-')}.json"


def keep(row: Row, draws: np.ndarray | None, **facts: Any) -> None:
    """Write a result, whole or not at all."""
    path = result_path(row.model, row.tool)
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {
        "row": asdict(row),
        "draws": None if draws is None else [round(float(x), 5) for x in draws],
        "machine": describe_machine(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **facts,
    }
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(found), encoding="utf-8")
    partial.replace(path)


def describe_commit() -> str:
    """Return the commit of our code, or nothing where that is not known or was changed since."""
    git = ["git", "-C", str(HERE)]
    source = ["--", str(HERE.parent / "src")]
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", *source], check=False).returncode
    command = [*git, "log", "-1", "--format=%h", *source]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if changed else found.stdout.strip()


def restore() -> None:
    """Lay out the figures that are kept beside this file, where none were measured since."""
    if not KEPT.exists():
        return
    for line in gzip.decompress(KEPT.read_bytes()).decode().splitlines():
        row = json.loads(line)["row"]
        path = result_path(row["model"], row["tool"])
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(line, encoding="utf-8")


def drop_other_samples(reference: Reference) -> None:
    """Remove rows whose float model had other scores: resamples are compared one by one."""
    path = result_path(reference.name, "float")
    if not path.exists():
        return
    then = np.array(json.loads(path.read_text(encoding="utf-8"))["draws"])
    if not np.allclose(then, reference.draws, atol=1e-5):
        print(f"{reference.name}: float differs from what is kept, all rows are measured again")
        for other in path.parent.glob("*.json"):
            other.unlink()


def measure(model: str, tools: list[str], options: argparse.Namespace) -> None:
    """Quantize, judge and time a model by the tools whose results are missing."""
    missing = [tool for tool in tools if not result_path(model, tool).exists()]
    if not missing:
        return
    reference = lay_out(model, options.samples, BUILD / "models" / model)
    drop_other_samples(reference)
    missing = [tool for tool in tools if not result_path(model, tool).exists()]
    keep(reference.row, reference.draws, samples=options.samples)
    sample = reference.task.evaluation[0]
    for tool in missing:
        package = TOOLS[tool].package
        try:
            python = make_environment(package) if package != "bitwright" else sys.executable
        except LookupError as error:
            keep(Row(model, tool, error=str(error)), None, versions={})
            continue
        for path in files_of(path_of(reference.folder, tool)):
            path.unlink()
        row, draws = judge(reference, tool, python)
        if not row.error:
            models = {"float": reference.model, tool: path_of(reference.folder, tool)}
            times = time_in_turn(models, sample, options.latency_seconds)
            row = with_latency(row, times[tool], times["float"])
        commit = {"commit": describe_commit()} if package == "bitwright" else {}
        keep(row, draws, versions=versions(python, package), **commit)
        print(f"{model}, {tool}: {row.error or f'{100 * row.score:.2f}'}", flush=True)


def main() -> None:
    """Measure what is missing, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--models", nargs="*", default=[*CHEAP_FIRST], choices=[*TASKS])
    parser.add_argument("--tools", nargs="*", default=[*TOOLS], choices=[*TOOLS])
    parser.add_argument("--again", nargs="*", default=[], choices=[*TOOLS])
    parser.add_argument("--samples", type=int, default=32, help="to calibrate on")
    parser.add_argument("--latency-seconds", type=float, default=4, help="for each model and tool")
    options = parser.parse_args()
    restore()
    if options.what == "table":
        rows = [
            json.loads(path.read_text(encoding="utf-8"))
            for model in options.models
            for path in sorted((BUILD / "results" / model).glob("*.json"))
        ]
        PAGE.write_text(write_page(rows), encoding="utf-8")
        lines = "\n".join(json.dumps(row) for row in rows)
        KEPT.write_bytes(gzip.compress(lines.encode(), mtime=0))
        return
    # One thread: CPU seconds of threads that wait for each other say nothing.
    os.environ["OMP_NUM_THREADS"] = "1"
    onnxruntime.set_default_logger_severity(4)
    for tool in options.again:
        for model in options.models:
            result_path(model, tool).unlink(missing_ok=True)
    for model in options.models:
        measure(model, options.tools, options)


if __name__ == "__main__":
    main()
