"""Kill commands at many moments, fill the disk, take the rights and the memory away, and look.

    python scripts/faults.py kills --count 112     # over all long commands
    python scripts/faults.py disk                  # files end at a size (RLIMIT_FSIZE)
    python scripts/faults.py read-only             # as a user without rights (needs root)
    python scripts/faults.py memory                # 600 MB for a model of 400 MB (RLIMIT_DATA)

Each prints what was run and what broke; the exit code is the number of violations, at most 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import bitwright

sys.path.insert(0, str(Path(__file__).parents[1]))
from fuzz.__main__ import load_everything

COMMAND = (sys.executable, "-m", "bitwright")
NOBODY = 65534
ALLOWED = ("error: ", "warning: ", "progress: ")
SECONDS = 900
"""The longest that a command may take, on a machine that others use, too."""


@dataclass(frozen=True)
class Job:
    """A command, and the file or folder that it writes."""

    name: str
    words: tuple[str, ...]
    output: str | None


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
    return [
        Job(
            "quantize int8",
            ("quantize", model, "-o", "q.onnx", "--recipe", "int8", *data),
            "q.onnx",
        ),
        Job(
            "quantize int4-gptq",
            ("quantize", model, "-o", "q.onnx", "--recipe", "int4-gptq", *data),
            "q.onnx",
        ),
        Job(
            "quantize external",
            ("quantize", model, "-o", "q.onnx", "--recipe", "int8", "--external-data", *data),
            "q.onnx",
        ),
        Job("plan", ("plan", model, "-o", "p.json", "--recipe", "int8", *data), "p.json"),
        Job("apply", ("apply", model, plan, "-o", "q.onnx"), "q.onnx"),
        Job("preprocess", ("preprocess", model, "-o", "q.onnx"), "q.onnx"),
        Job("compare", ("compare", model, quantized, *data), None),
        Job("sensitivity", ("sensitivity", model, quantized, *data), None),
        Job("report", ("report", model, quantized, "-o", "r.html", *data), "r.html"),
        Job(
            "quantize medium",
            ("quantize", model, "-o", "q.onnx", "--effort", "medium", *data),
            "q.onnx",
        ),
        Job("bench", ("bench", model, quantized, "--seconds", "1"), None),
    ]


def write_inputs(folder: Path) -> None:
    """Write a model, its data, a quantized model and its plan."""
    demo = bitwright.load_demo()
    shutil.copy(demo.model_path, folder / "model.onnx")
    np.save(folder / "data.npy", demo.calibration[:16])
    result = bitwright.quantize(
        demo.model_path,
        folder / "quantized.onnx",
        data=demo.calibration[:16],
        recipe="int8",
        progress=False,
    )
    result.plan.save(folder / "plan.json")


def run(
    words: tuple[str, ...],
    folder: Path,
    before: Callable[[], None] | None = None,
    user: int | None = None,
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
        user=user,
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


def try_kills(count: int, seed: int, parent: Path) -> list[str]:
    """Kill each command at moments all over its run; what is there then is old or whole."""
    rng, inputs, broken = random.Random(seed), parent / "inputs", []
    inputs.mkdir()
    pid = os.fork()
    if pid == 0:  # sessions have threads, which a copy of this process would lack
        write_inputs(inputs)
        os._exit(0)
    os.waitpid(pid, 0)
    untouched = digest(inputs)
    jobs = long_jobs(inputs)
    load_everything()
    counts: dict[str, list[int]] = {}
    for job in jobs:
        whole_folder = parent / "whole"
        whole_folder.mkdir()
        start = time.monotonic()
        first = _end(*_start(job.words, whole_folder))
        seconds = time.monotonic() - start
        whole = digest(whole_folder)
        shutil.rmtree(whole_folder)
        if first.code:
            broken.append(f"{job.name}: does not run: {first.told[-200:]}")
            continue
        for index in range(-(-count // len(jobs))):
            number = signal.SIGTERM if index % 3 == 2 else signal.SIGKILL
            again = index % 5 == 0
            found = _kill_once(job, seconds * rng.random(), number, whole, parent, again=again)
            if digest(inputs) != untouched:
                found = "an input was changed"
            counts.setdefault(job.name, []).append(bool(found))
            if found:
                broken.append(f"{job.name}, {signal.Signals(number).name}: {found}")
                print(broken[-1], flush=True)
        print(f"{job.name}: {len(counts[job.name])} kills within {seconds:.1f} s", flush=True)
    print(
        f"{sum(map(len, counts.values()))} kills of {len(counts)} commands, "
        f"{len(broken)} violations"
    )
    return broken


def _start(words: tuple[str, ...], folder: Path) -> tuple[int, Path]:
    """Start a command in a copy of this process, which has all modules: kills then hit its work."""
    environment, log = _environment(folder), folder.with_suffix(".log")
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.environ.update(environment)
            tempfile.tempdir = None
            os.chdir(folder)
            os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            from bitwright.cli import main as command

            code = command(words)
        finally:
            os._exit(code)
    return pid, log


def _end(pid: int, log: Path) -> Ended:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    told = log.read_text(errors="replace") if log.exists() else ""
    log.unlink(missing_ok=True)
    return Ended(code, told)


def _kill_once(
    job: Job,
    moment: float,
    number: signal.Signals,
    whole: dict[str, str],
    parent: Path,
    *,
    again: bool,
) -> str:
    """Kill a command once, and look at what is there; with `again` also after a second run."""
    folder = parent / "killed"
    folder.mkdir()
    old = b"what was here before"
    if job.output is not None:
        (folder / job.output).write_bytes(old)
    try:
        pid, log = _start(job.words, folder)
        time.sleep(moment)
        os.kill(pid, number)
        ended = _end(pid, log)
        if number == signal.SIGTERM:
            if ended.code not in (0, 128 + number) or "Traceback" in ended.told:
                return f"code {ended.code}: {ended.told[-300:]}"
            if [path.name for path in folder.iterdir() if path.name.startswith(".")]:
                return f"left {sorted(path.name for path in folder.iterdir())}"
        if job.output is None:
            return ""
        # Either the old file or the whole new one; external data comes before the model.
        now = digest(folder)
        known = (hashlib.sha256(old).hexdigest(), whole[job.output])
        # A page has times in it, and so other bytes each time.
        is_page = b"</html>" in (folder / job.output).read_bytes()[-50:]
        if now.get(job.output) not in known and not is_page:
            return "the output is neither the old one nor the new one"
        if not again:
            return ""
        second = _end(*_start(job.words, folder))
        left = sorted(path.name for path in folder.iterdir() if path.name.startswith("."))
        if second.code or left:
            return f"a second run ends with {second.code}, and leaves {left}: {second.told[-200:]}"
        return ""
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(folder.parent / "killed-scratch", ignore_errors=True)


def try_disk(parent: Path) -> list[str]:
    """Let files end at a size, as they do on a full disk, at every verb that writes."""
    inputs, broken, tried = parent / "inputs", [], 0
    inputs.mkdir()
    write_inputs(inputs)
    for job in [job for job in long_jobs(inputs) if job.output is not None]:
        for size in (0, 4096, 60_000):
            tried += 1

            def limit(size: int = size) -> None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

            with _with_old_output(job, parent) as folder:
                ended = run(job.words, folder, before=limit)
                found = ended.complaint()
                if not found and ended.code and not _is_old(folder, job):
                    found = f"left {sorted(path.name for path in folder.iterdir())}"
                if found:
                    broken.append(f"{job.name}, files of at most {size} bytes: {found}")
                    print(broken[-1], flush=True)
    print(f"{tried} commands with files that end early, {len(broken)} violations")
    return broken


def try_read_only(parent: Path) -> list[str]:
    """Run each verb that writes as a user who may not write there."""
    inputs, broken, tried = parent / "inputs", [], 0
    inputs.mkdir()
    write_inputs(inputs)
    parent.chmod(0o755)
    for job in [job for job in long_jobs(inputs) if job.output is not None]:
        tried += 1
        with _with_old_output(job, parent) as folder:
            folder.chmod(0o555)
            ended = run(job.words, folder, user=NOBODY)
            found = ended.complaint()
            if not found and (ended.code != 1 or not _is_old(folder, job)):
                found = f"code {ended.code}: {sorted(path.name for path in folder.iterdir())}"
            if found:
                broken.append(f"{job.name}, read-only: {found}")
                print(broken[-1], flush=True)
    print(f"{tried} commands into a read-only folder, {len(broken)} violations")
    return broken


@contextmanager
def _with_old_output(job: Job, parent: Path) -> Iterator[Path]:
    folder = parent / "work"
    folder.mkdir()
    (folder / str(job.output)).write_bytes(b"old")
    try:
        yield folder
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def _is_old(folder: Path, job: Job) -> bool:
    names = [path.name for path in folder.iterdir()]
    return names == [job.output] and (folder / str(job.output)).read_bytes() == b"old"


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
        Job("quantize int8-dynamic", ("quantize", model, "-o", "q.onnx", "--dynamic"), "q.onnx"),
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
    kills = commands.add_parser("kills")
    kills.add_argument("--count", type=int, default=112)
    kills.add_argument("--seed", type=int, default=0)
    for name in ("disk", "read-only"):
        commands.add_parser(name)
    memory = commands.add_parser("memory")
    memory.add_argument("--megabytes", type=int, default=600)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.command == "kills":
            broken = try_kills(given.count, given.seed, Path(folder))
        elif given.command == "disk":
            broken = try_disk(Path(folder))
        elif given.command == "read-only":
            broken = try_read_only(Path(folder))
        else:
            broken = try_memory(given.megabytes, Path(folder))
    print(json.dumps(broken, indent=1))
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
