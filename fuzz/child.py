"""Run one case in a process of its own, within limits, and judge how it ends."""

from __future__ import annotations

import hashlib
import os
import random
import re
import resource
import signal
import sys
import time
import traceback
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from bitwright.assess import clock
from bitwright.cli import main
from bitwright.errors import ModelError
from bitwright.graph import shapes
from bitwright.support.processes import WorkerError, model_worker, trial

MEMORY = 6 << 30
CPU_SECONDS = 60
SECONDS = 300
"""The machine may be shared, so that a case waits for the processor."""

SPAWNED = 0.05
"""The share of cases that try models in a new Python, as users do, and not in a fork."""
RUN_TWICE = 4
"""One of so many results is made a second time."""

LEAST_SQNR = 3.0
"""Decibels that 8 bits reach on a graph whose operators do not enlarge errors."""

LEAST_VALUES = 4
"""Of an output: one that happens to be near zero says nothing of the range that it comes from."""

LEAST_POWER = 1e-12
"""Of an output: what is smaller comes from subtracting equal numbers."""

_WARNING = "do not use this model"
"""What a command says of a result that lost its answers."""

_ACTED_ON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e]|^error: forged", re.MULTILINE)
"""What a terminal acts on, and a line that only a name can have forged."""

_LINES = ("error: ", "warning: ", "progress: ")


@dataclass(frozen=True)
class Verdict:
    """How a case ended: "done", "refused", "skipped", or a violation with its reason."""

    kind: str
    reason: str = ""
    seconds: float = 0.0
    """Of the processors, in the child and in what it started."""


def judge(prepare: Callable[[Path], list[str]], folder: Path, *, valid: bool) -> Verdict:
    """Make a case and run it in a child process; a valid graph must also keep its outputs."""
    folder.mkdir(parents=True)
    log = folder.with_suffix(".log")
    start = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _run(prepare, folder, log, valid)
    signalled = ""
    while True:
        done, status, used = os.wait4(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() - start > SECONDS:
            os.kill(pid, signal.SIGKILL)
            signalled = f"ran longer than {SECONDS} s"
        time.sleep(0.005)
    seconds = used.ru_utime + used.ru_stime
    code = os.waitstatus_to_exitcode(status)
    text = log.read_text(errors="replace")
    started, _, rest = text.partition("\nSTARTED\n")
    if "\nSTARTED\n" not in text:
        return Verdict("skipped", started[-300:], seconds)
    told, _, found = rest.partition("\nFOUND ")
    if signalled or code < 0:
        name = signalled or f"ended by {signal.Signals(-code).name}"
        return Verdict("violation", f"{name}: {told[-300:]}", seconds)
    if found.strip():
        return Verdict("violation", found.strip(), seconds)
    return Verdict("done" if code == 0 else "refused", told.strip()[-300:], seconds)


def _run(prepare: Callable[[Path], list[str]], folder: Path, log: Path, valid: bool) -> None:
    """Run in the child, and never return."""
    code, telling = 99, log.open("a")
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(telling.fileno(), 2)
        os.dup2(os.open(_summary(folder), os.O_CREAT | os.O_WRONLY | os.O_APPEND), 1)
        words = prepare(folder)
        os.chdir(folder)
        _spare_processes(words)
        before = _hashes(folder)
        print("\nSTARTED", file=telling, flush=True)
        words, lost = redirect(words)
        code = main(words)
        if lost:
            found = _violation_beside(words, folder, before, code, lost)
        else:
            found = _violation(words, folder, before, code, log, valid)
        print(f"\nFOUND {found}", file=telling, flush=True)
    except BaseException:  # noqa: BLE001 (in the child, whatever it is, it is told)
        traceback.print_exc(file=telling)
        if "\nSTARTED\n" in log.read_text(errors="replace"):
            print(f"\nFOUND escaped: {traceback.format_exc()[-300:]}", file=telling, flush=True)
    finally:
        os._exit(code & 0x7F)


def redirect(words: list[str]) -> tuple[list[str], dict[int, str]]:
    """Close, fill or break the streams that words such as `1>closed` name; return the others."""
    lost = {int(word[0]): word[2:] for word in words if word[:2] in ("1>", "2>")}
    for number, kind in lost.items():
        if kind == "closed":
            os.close(number)
            stream = None
        else:
            read, write = os.pipe()
            os.close(read)
            os.dup2(os.open("/dev/full", os.O_WRONLY) if kind == "full" else write, number)
            stream = open(number, "w", buffering=1 if number == 2 else -1, closefd=False)  # noqa: SIM115
        setattr(sys, "stdout" if number == 1 else "stderr", stream)
    return [word for word in words if word[:2] not in ("1>", "2>")], lost


def _spare_processes(words: list[str]) -> None:
    """Let most cases try models in a fork, and time them once: another Python takes half a case."""
    rng = random.Random(" ".join(words))
    clock.MIN_ROUNDS = clock.FEWEST_ROUNDS = clock.MAX_ROUNDS = 1
    if rng.random() < SPAWNED:
        return
    worker = model_worker.Worker()

    def call(method: str, path: Path, name: str | None = None, **arguments: object) -> None:
        pid = os.fork()
        if pid == 0:
            code = 0
            try:
                signal.alarm(CPU_SECONDS)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                getattr(worker, method)(model=str(path.absolute()), **arguments)
            except Exception as error:  # noqa: BLE001 (the runtime refuses it)
                path.with_suffix(".refused").write_text(str(error))
                code = 1
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        told = path.with_suffix(".refused")
        if code in trial.CRASHES:
            raise ModelError(f"ONNX Runtime crashes when it opens {name or repr(str(path))}.")
        if code:
            reason = told.read_text()
            told.unlink()
            raise WorkerError(reason)

    trial.call_worker = shapes.call_worker = call


def _summary(folder: Path) -> Path:
    """Return where a command's standard output is kept."""
    return folder.with_suffix(".out")


def _hashes(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.is_file()
    }


def _violation(
    words: list[str], folder: Path, before: dict[str, str], code: int, log: Path, valid: bool
) -> str:
    """Return what is wrong with how a command ended; nothing where all is right."""
    sys.stderr.flush()
    told = log.read_text(errors="replace").partition("\nSTARTED\n")[2]
    if "this is a bug in bitwright" in told:
        return told[told.index("this is a bug") :][:400]
    foreign = [line for line in told.splitlines() if line and not line.startswith(_LINES)]
    if foreign:
        return f"foreign line: {foreign[0][:300]}"
    if code not in (0, 1, 2):
        return f"exit code {code}"
    shown = _ACTED_ON.search(told + _summary(folder).read_text(errors="replace"))
    if shown:
        return f"showed {shown.group()!r} raw"
    errors = [line for line in told.splitlines() if line.startswith("error: ")]
    if (code == 2 and not errors) or len(errors) > 1:
        return f"{len(errors)} error lines with code {code}"
    if any(not line.rstrip().endswith((".", "?", "…")) for line in errors):
        return f"no sentence: {errors[0][:300]}"
    after = _hashes(folder)
    if any(after.get(name) != value for name, value in before.items()):
        return "an input was changed"
    new = set(after) - set(before)
    if any(name.startswith(".") for name in new):
        return f"left {sorted(new)}"
    outputs = {words[place + 1] for place, word in enumerate(words[:-1]) if word == "-o"}
    if new - outputs - {"s"}:
        return f"wrote {sorted(new - outputs)}"
    if code == 1 and words[0] != "verify" and new & outputs:
        return f"failed and wrote {sorted(new & outputs)}"
    if code == 0 and words[0] == "quantize":
        return _check_output(words, folder, valid)
    return ""


def _violation_beside(
    words: list[str], folder: Path, before: dict[str, str], code: int, lost: dict[int, str]
) -> str:
    """Return what is wrong with how a command ended whose streams were taken away."""
    works = Path(words[1]).exists() and "--recipee" not in words
    after = _hashes(folder)
    outputs = {words[place + 1] for place, word in enumerate(words[:-1]) if word == "-o"}
    made = set(after) - set(before)
    if any(after.get(name) != value for name, value in before.items()):
        return "an input was changed"
    if made != (outputs if works else set()):
        return f"wrote {sorted(made)} with {lost}"
    silent = "-q" in words or 1 not in lost or lost[1] != "full"
    wanted = {0} if works and silent else {0, 1} if works else {1, 2}
    if code not in wanted:
        return f"exit code {code} with {lost}"
    for name in made:
        if name.endswith(".onnx"):
            _open(folder / name)
    return ""


def _check_output(words: list[str], folder: Path, valid: bool) -> str:
    """Hold a quantized model against the float one, and against a second run."""
    result = folder / "q.onnx"
    first = result.read_bytes()
    if zlib.crc32(first) % RUN_TWICE == 0:
        result.unlink()
        if main(words) != 0 or result.read_bytes() != first:
            return "a second run gave another result"
    source = next(Path(word) for word in words if word.endswith(".onnx"))
    if not valid:
        return ""
    before, after = _open(source), _open(result)
    for side in ("get_inputs", "get_outputs"):
        old = [(x.name, x.type, x.shape) for x in getattr(before, side)()]
        new = [(x.name, x.type, x.shape) for x in getattr(after, side)()]
        if len(old) != len(new) or not all(map(_is_kept, old, new)):
            return f"other {side[4:]}: {old} became {new}"
    rng = np.random.default_rng(0)
    feeds = {
        x.name: rng.random([s if isinstance(s, int) else 16 for s in x.shape], np.float32)
        for x in before.get_inputs()
    }
    expected, actual = before.run(None, feeds), after.run(None, feeds)
    warned = _WARNING in _summary(folder).read_text(errors="replace")
    for info, wanted, found in zip(before.get_outputs(), expected, actual, strict=True):
        promised = all(isinstance(size, int) for size in info.shape)
        if wanted.ndim != found.ndim or (promised and wanted.shape != found.shape):
            return f"an output of {wanted.shape} became {found.shape}"
        if wanted.dtype != found.dtype:
            return f"an output of {wanted.dtype} became {found.dtype}"
        lost = wanted.dtype.kind == "f" and np.isfinite(wanted).all()
        if lost and not np.isfinite(found).all() and not warned:
            return "an output has values that are no numbers, without a word"
    return _check_error(source, words, expected, actual)


def _is_kept(old: tuple[str, str, list], new: tuple[str, str, list]) -> bool:
    """Whether an input or output has its name, type and sizes; an open size may become known."""
    if old[:2] != new[:2] or len(old[2]) != len(new[2]):
        return False
    pairs = zip(old[2], new[2], strict=True)
    return all(now == before or (before is None and isinstance(now, int)) for before, now in pairs)


def _check_error(source: Path, words: list[str], expected: list, actual: list) -> str:
    from bitwright import load_recipe
    from fuzz.graphs import CHAOTIC

    recipe = load_recipe(words[words.index("--recipe") + 1])
    operators = {node.op_type for node in onnx.load(source).graph.node}
    narrow = re.search(r"4|mx|bfp", words[words.index("--recipe") + 1])
    if operators & CHAOTIC or narrow or recipe.weight.bits < 8 or "--set" in words:
        return ""
    for wanted, found in zip(expected, actual, strict=True):
        signal_power = float(np.square(wanted, dtype=np.float64).mean())
        noise = float(np.square(np.subtract(wanted, found, dtype=np.float64)).mean())
        if wanted.size < LEAST_VALUES or wanted.dtype.kind != "f":
            continue
        if _are_small_shares(wanted):
            continue
        if signal_power > LEAST_POWER and noise:
            sqnr = 10 * np.log10(signal_power / noise)
            if sqnr < LEAST_SQNR:
                return f"an output has an SQNR of {sqnr:.1f} dB"
    return ""


def _are_small_shares(values: np.ndarray) -> bool:
    """Whether these are probabilities of a few 256ths: 8 bits from 0 to 1 hardly tell them."""
    return bool(values.min() >= 0 and values.max() < 5 / 256) and np.allclose(values.sum(-1), 1)


def _open(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
