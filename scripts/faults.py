"""Fill the disk of commands, take their rights and their memory away, and look at what they leave.

    python scripts/faults.py disk         # files end at a size, and a full disk (root mounts it)
    python scripts/faults.py read-only    # a disk that is mounted so (by root)
    python scripts/faults.py memory       # 600 MB for a model of 400 MB (RLIMIT_DATA)

Each prints what was run and what broke; the exit code is the number of violations, at most 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import bitwright

COMMAND = (sys.executable, "-m", "bitwright")
ALLOWED = ("error: ", "warning: ", "progress: ")
SECONDS = 900
"""The longest that a command may take, on a machine that others use, too."""


@dataclass(frozen=True)
class Job:
    """A command, and the file or folder that it writes."""

    name: str
    words: tuple[str, ...]
    output: str | None
    codes: tuple[int, ...] = (0,)
    """Exit codes of a run that nobody stops."""
    same_bytes: bool = True
    """Whether each run writes the same output; times in it, or choices by them, change it."""
    beside: tuple[str, ...] = ()
    """Files that belong to the output, and are there before it."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    told: str

    @property
    def lines(self) -> list[str]:
        """What it said on standard error, line by line."""
        return [line for line in self.told.splitlines() if line.strip()]

    def complaint(self) -> str:
        """Return what is wrong with how a refusal was told; nothing where all is right."""
        if self.code < 0:
            return f"ended by {signal.Signals(-self.code).name}: {self.told[-200:]}"
        if "this is a bug" in self.told or "Traceback" in self.told:
            return self.told[-300:]
        odd = [line for line in self.lines if not line.startswith(ALLOWED)]
        if odd:
            return f"foreign line: {odd[0][:200]}"
        if self.code and sum(line.startswith("error: ") for line in self.lines) != 1:
            return f"code {self.code} without one sentence: {self.told[-200:]}"
        return ""


def long_jobs(inputs: Path) -> list[Job]:
    """Return every command that takes long, on a small model."""
    model, data = str(inputs / "model.onnx"), ("--data", str(inputs / "data.npy"))
    quantized, plan = str(inputs / "quantized.onnx"), str(inputs / "plan.json")

    def quantize(name: str, *words: str, beside: tuple[str, ...] = ()) -> Job:
        return Job(
            f"quantize {name}", ("quantize", model, "-o", "q.onnx", *words), "q.onnx", beside=beside
        )

    corrected = ("--equalize", "--bias-correction", "sequential", "--set", "smooth={}")
    learned = ("--fine-tune", "adaround", "--iterations", "100", "--work", "work")
    stored = ("--sketches", "s.sketches", "--plan-out", "p.json")
    tuned = ("--for", "size", "--metric", "agreement", "--drop", "5%", "--work", "work")
    return [
        quantize("int8", "--recipe", "int8", *data),
        quantize("npu-cnn", "--recipe", "npu-cnn", *data),
        quantize("int8-dynamic", "--dynamic", "--force-dynamic"),
        quantize("int4-gptq", "--recipe", "int4-gptq", *data),
        quantize("external", "--recipe", "int8", "--external-data", *data, beside=("q.onnx.data",)),
        quantize("corrected", "--recipe", "int8", *corrected, *data),
        quantize("sketches", "--recipe", "int8", *stored, *data, beside=("s.sketches",)),
        quantize("adaround", "--recipe", "int8", *learned, *data),
        quantize("medium", "--effort", "medium", *data),
        Job(
            "tune",
            ("tune", model, "-o", "q.onnx", "-q", *tuned, *data),
            "q.onnx",
            codes=(0, 3),
            same_bytes=False,
        ),
        Job("plan", ("plan", model, "-o", "p.json", "--recipe", "int8", *data), "p.json"),
        Job("apply", ("apply", plan, model, "-o", "q.onnx", *data), "q.onnx"),
        Job("preprocess", ("preprocess", model, "-o", "q.onnx"), "q.onnx"),
        Job("compare", ("compare", model, quantized, *data), None),
        Job(
            "sensitivity",
            ("sensitivity", model, "--plan", plan, "-o", "p.json", *data),
            "p.json",
        ),
        Job(
            "report",
            ("report", model, quantized, "-o", "r.html", *data),
            "r.html",
            same_bytes=False,
        ),
        Job(
            "retarget",
            ("retarget", quantized, "--to", "cpu", "--format", "qoperator", "-o", "q.onnx"),
            "q.onnx",
        ),
        Job("verify", ("verify", quantized), None),
        Job("bench", ("bench", model, quantized, "--seconds", "1"), None),
    ]


def write_inputs(folder: Path) -> None:
    """Write a model, its data, a quantized model and its plan."""
    demo = bitwright.load_demo()
    shutil.copy(demo.model_path, folder / "model.onnx")
    np.save(folder / "data.npy", demo.calibration[:48])
    result = bitwright.quantize(
        demo.model_path,
        folder / "quantized.onnx",
        data=demo.calibration[:48],
        recipe="int8",
        progress=False,
    )
    result.plan.save(folder / "plan.json")


def run(
    words: tuple[str, ...],
    folder: Path,
    before: Callable[[], None] | None = None,
) -> Ended:
    """Run a command in a folder."""
    done = subprocess.run(
        [*COMMAND, *words],
        cwd=folder,
        env=_environment(folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        timeout=SECONDS,
        preexec_fn=before,
        check=False,
    )
    return Ended(done.returncode, done.stderr)


def _environment(folder: Path) -> dict[str, str]:
    scratch = folder.parent / f"{folder.name}-scratch"
    scratch.mkdir(exist_ok=True)
    scratch.chmod(0o777)
    return {**os.environ, "TMPDIR": str(scratch), "OMP_NUM_THREADS": "1"}


def digest(folder: Path) -> dict[str, str]:
    """Return the hash of each file below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def try_disk(parent: Path) -> list[str]:
    """Run each verb that writes where files end at a size, and on a disk that is full."""
    inputs, broken, tried = parent / "inputs", [], 0
    inputs.mkdir()
    write_inputs(inputs)
    for job in [job for job in long_jobs(inputs) if job.output is not None]:
        for how, full in (("files of at most 4 KB", _ending_early), ("a full disk", _full_disk)):
            tried += 1
            with full(job, parent) as (folder, before):
                ended = run(job.words, folder, before=before)
                found = ended.complaint()
                if not found and ended.code and (left := _left(folder, job)):
                    found = left
            _print_case(f"{job.name}, {how}", ended, found)
            broken += [f"{job.name}, {how}: {found}"] if found else []
    print(f"{tried} commands where files end early, {len(broken)} violations")
    return broken


def try_read_only(parent: Path) -> list[str]:
    """Run each verb that writes on a disk that is mounted read-only."""
    inputs, broken, tried = parent / "inputs", [], 0
    inputs.mkdir()
    write_inputs(inputs)
    for job in [job for job in long_jobs(inputs) if job.output is not None]:
        tried += 1
        with _mounted(job, parent, "1m") as folder:
            subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
            ended = run(job.words, folder)
            found = ended.complaint()
            if not found and (ended.code != 1 or _left(folder, job)):
                found = f"code {ended.code}: {sorted(path.name for path in folder.iterdir())}"
        _print_case(job.name, ended, found)
        broken += [f"{job.name}, read-only: {found}"] if found else []
    print(f"{tried} commands on a read-only disk, {len(broken)} violations")
    return broken


def _print_case(name: str, ended: Ended, found: str) -> None:
    how = "done" if not ended.code else (ended.lines or ["no line"])[-1][:160]
    print(f"{name}: {how}" + (f"  VIOLATION {found}" if found else ""), flush=True)


@contextmanager
def _ending_early(job: Job, parent: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    folder = parent / "work"
    folder.mkdir()
    (folder / str(job.output)).write_bytes(b"old")
    try:
        yield folder, limit
    finally:
        shutil.rmtree(folder)


@contextmanager
def _full_disk(job: Job, parent: Path) -> Iterator[tuple[Path, None]]:
    with _mounted(job, parent, "64k") as folder:
        (folder / "filler").write_bytes(bytes(40_000))
        yield folder, None


@contextmanager
def _mounted(job: Job, parent: Path, size: str) -> Iterator[Path]:
    """Give a small disk in memory with an old output on it."""
    folder = parent / "mounted"
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        (folder / str(job.output)).write_bytes(b"old")
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


ALLOWED_FILES = ("filler", "work", "s.sketches")
"""What may be beside the output: a journal, and sketches that were whole before."""


def _left(folder: Path, job: Job) -> str:
    """Return what is wrong where the old output is not all that is there."""
    names = [path.name for path in folder.iterdir() if path.name not in ALLOWED_FILES]
    is_old = names == [job.output] and (folder / str(job.output)).read_bytes() == b"old"
    return "" if is_old else f"left {sorted(names)}"


def try_memory(megabytes: int, parent: Path) -> list[str]:
    """Run verbs on a model of 400 MB in a process that may have 600 MB of its own."""
    write_large_model(parent / "large.onnx")
    model, broken = str(parent / "large.onnx"), []
    size = (parent / "large.onnx").stat().st_size / 1e6
    random_data = ("--random-data", "2")
    jobs = [
        Job("inspect", ("inspect", model), None),
        Job(
            "quantize int4-rtn",
            ("quantize", model, "-o", "q.onnx", "--recipe", "int4-rtn"),
            "q.onnx",
        ),
        Job(
            "quantize int8-dynamic",
            ("quantize", model, "-o", "q.onnx", "--dynamic", "--force-dynamic"),
            "q.onnx",
        ),
        Job(
            "quantize int8",
            ("quantize", model, "-o", "q.onnx", "--recipe", "int8", *random_data),
            "q.onnx",
        ),
        Job(
            "quantize int4-gptq",
            ("quantize", model, "-o", "q.onnx", "--recipe", "int4-gptq", *random_data),
            "q.onnx",
        ),
        Job(
            "plan int8", ("plan", model, "-o", "p.json", "--recipe", "int8", *random_data), "p.json"
        ),
        Job("preprocess", ("preprocess", model, "-o", "q.onnx"), "q.onnx"),
        Job("compare", ("compare", model, model, *random_data), None),
        Job("verify", ("verify", model), None),
    ]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (megabytes << 20, megabytes << 20))

    for job in jobs:
        folder = parent / "work"
        folder.mkdir()
        ended = run(job.words, folder, before=limit)
        names = sorted(path.name for path in folder.iterdir())
        found = ended.complaint() if job.name != "verify" or ended.code < 0 else ""
        if not found and ended.code and names:
            found = f"left {names}"
        shutil.rmtree(folder)
        if found:
            broken.append(f"{job.name}: {found}")
        how = "done" if not ended.code else (ended.lines or ["findings"])[-1][:160]
        print(f"{job.name}: {how}" + (f"  VIOLATION {found}" if found else ""), flush=True)
    print(
        f"{len(jobs)} commands with {megabytes} MB on a model of {size:.0f} MB, "
        f"{len(broken)} violations"
    )
    return broken


def write_large_model(path: Path) -> None:
    """Write a chain of 24 products with weights of 16.8 MB each."""
    rng, width, count = np.random.default_rng(0), 2048, 24
    base = rng.standard_normal((width, width), np.float32) / np.float32(width**0.5)
    nodes = [
        helper.make_node("MatMul", [f"h{index}", f"w{index}"], [f"h{index + 1}"], name=f"n{index}")
        for index in range(count)
    ]
    tensors = [
        numpy_helper.from_array(np.roll(base, index, 0), f"w{index}") for index in range(count)
    ]
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("h0", TensorProto.FLOAT, [1, width])],
        [helper.make_tensor_value_info(f"h{count}", TensorProto.FLOAT, [1, width])],
        tensors,
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path
    )


def main() -> int:
    """Run what the words ask for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("disk", "read-only"):
        commands.add_parser(name)
    memory = commands.add_parser("memory")
    memory.add_argument("--megabytes", type=int, default=600)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.command == "disk":
            broken = try_disk(Path(folder))
        elif given.command == "read-only":
            broken = try_read_only(Path(folder))
        else:
            broken = try_memory(given.megabytes, Path(folder))
    print(json.dumps(broken, indent=1))
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
