"""Kill commands at random moments, and look at what they leave.

    python scripts/kills.py [--count 133] [--state build/kills]    # goes on where it stopped
    python scripts/kills.py --table                                # counts, from what was run

Over all commands that take long, by SIGKILL, SIGTERM and SIGINT in turn, at moments all over their
run. A violation is an input that changed, an output that is neither the old one nor a whole new
one, a process that lives on, and, where the signal can be answered (SIGTERM, SIGINT), another exit
code than 143 or 130, another last line than the one that says so, or any file left: a temporary one
beside the output, or one in the temporary folder. After SIGKILL, which nobody can answer, what is
left has to be gone after the next run.

Each command is a copy of this process, which has all modules loaded: so kills hit its work, not its
imports, which `tests/cli/test_stopping.py` does.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import onnx
from faults import Ended, Job, digest, long_jobs, write_inputs

sys.path.insert(0, str(Path(__file__).parents[1]))
from fuzz.__main__ import load_everything

ROOT = Path(__file__).parents[1]
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
OLD = b"what was here before"
ENDINGS = {
    signal.SIGTERM: (143, "error: terminated"),
    signal.SIGINT: (130, "error: interrupted"),
}
ORPHAN_SECONDS = 5.0
"""In which a process whose starter was killed has to notice it."""


@dataclass(frozen=True)
class Whole:
    """A command that nobody stopped: what it takes, and what it writes."""

    seconds: float
    files: dict[str, str]


@dataclass(frozen=True)
class Found:
    """What one kill left."""

    ended: str
    violation: str


def try_kills(count: int, seed: int, state: Path, only: str) -> None:
    """Run the kills that the state does not have yet."""
    inputs, results = state / "inputs", state / "kills.jsonl"
    if not inputs.exists():
        made = state / "inputs.new"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        _in_child(made)
        made.rename(inputs)
    known = digest(inputs)
    jobs = long_jobs(inputs)
    rows = (
        [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    )
    done = {(row["job"], row["index"]) for row in rows if row["seed"] == seed}
    load_everything()
    for module in ("torch", "bitwright.learning.adaround", "bitwright.jobs.fine_tuning.sequence"):
        importlib.import_module(module)
    each = -(-count // len(jobs))
    # Not a TemporaryDirectory: each copy of this process would remove it at its end.
    place = tempfile.mkdtemp()
    with results.open("a") as file:
        for index in range(each):
            for job in jobs:
                if (job.name, index) in done or only not in job.name:
                    continue
                whole = _whole_run(job, state, Path(place))
                rng = random.Random(f"{seed} {job.name} {index}")
                moment, number = whole.seconds * rng.random(), SIGNALS[(index + seed) % 3]
                found = _kill_once(job, moment, number, whole, Path(place))
                violation = found.violation
                if digest(inputs) != known:
                    violation = "an input was changed"
                    shutil.rmtree(inputs)
                row = {"seed": seed, "job": job.name, "index": index, "signal": number.name}
                row |= {"moment": round(moment, 3), "seconds": round(whole.seconds, 3)}
                row |= {"ended": found.ended, "violation": violation}
                file.write(json.dumps(row) + "\n")
                file.flush()
                if violation:
                    print(f"{job.name}, {index}, {number.name}: {violation}", flush=True)
                if not inputs.exists():
                    raise SystemExit("the inputs are made anew by the next run")
    shutil.rmtree(place)


def show_table(state: Path) -> int:
    """Print how many kills each command took, and how it ended; return the violations."""
    rows = [json.loads(line) for line in (state / "kills.jsonl").read_text().splitlines()]
    print("| command | kills | killed | had ended before | violations |")
    print("|---|---|---|---|---|")
    for name in dict.fromkeys(row["job"] for row in rows):
        mine = [row for row in rows if row["job"] == name]
        ended = Counter(row["ended"] for row in mine)
        broken = sum(bool(row["violation"]) for row in mine)
        print(f"| {name} | {len(mine)} | {ended['killed']} | {ended['done']} | {broken} |")
    broken = sum(bool(row["violation"]) for row in rows)
    signals = Counter(row["signal"] for row in rows)
    counts = ", ".join(f"{count} {name}" for name, count in signals.items())
    print(f"{len(rows)} kills ({counts}), {broken} violations")
    return broken


def _in_child(folder: Path) -> None:
    """Write the inputs in another process: sessions have threads, which a copy would lack."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            write_inputs(folder)
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(pid, 0)[1]:
        raise SystemExit("the inputs could not be written")


def _whole_run(job: Job, state: Path, place: Path) -> Whole:
    """Run a command to its end, once for all times that the state is read."""
    kept = state / "whole" / f"{job.name.replace(' ', '-')}.json"
    if kept.exists():
        return Whole(**json.loads(kept.read_text()))
    folder = place / "whole"
    folder.mkdir()
    start = time.monotonic()
    ended = _end(*_start(job.words, folder))
    seconds = time.monotonic() - start
    if ended.code not in job.codes:
        raise SystemExit(f"{job.name} does not run: {ended.told[-500:]}")
    whole = Whole(seconds, digest(folder))
    shutil.rmtree(folder)
    shutil.rmtree(place / "whole-scratch")
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(json.dumps({"seconds": whole.seconds, "files": whole.files}))
    print(f"{job.name}: {seconds:.1f} s", flush=True)
    return whole


def _start(words: tuple[str, ...], folder: Path) -> tuple[int, Path]:
    """Start a command in a copy of this process, with a group of processes of its own."""
    scratch, log = folder.with_name(f"{folder.name}-scratch"), folder.with_suffix(".log")
    scratch.mkdir(exist_ok=True)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.setpgid(0, 0)
            os.environ.update({"TMPDIR": str(scratch), "OMP_NUM_THREADS": "1"})
            tempfile.tempdir = None
            os.chdir(folder)
            os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            # A job in the background is deaf to Ctrl-C, and its copies with it.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            from bitwright.cli import main as command

            _tell_when_entered(writing)
            code = command(words)
            # As the interpreter does when it ends: what is still held is closed.
            import atexit

            atexit._run_exitfuncs()
        finally:
            os._exit(code)
    os.close(writing)
    os.read(reading, 1)
    os.close(reading)
    return pid, log


def _tell_when_entered(descriptor: int) -> None:
    """Let the command tell when it hears signals: before, they would hit this script."""
    from bitwright.cli.stopping import Stopping

    enter = Stopping.__enter__

    def entered(self: Stopping) -> Stopping:
        result = enter(self)
        os.write(descriptor, b"1")
        return result

    Stopping.__enter__ = entered


def _end(pid: int, log: Path) -> Ended:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    told = log.read_text(errors="replace") if log.exists() else ""
    log.unlink(missing_ok=True)
    return Ended(code, told)


def _kill_once(job: Job, moment: float, number: signal.Signals, whole: Whole, place: Path) -> Found:
    folder, scratch = place / "killed", place / "killed-scratch"
    folder.mkdir()
    if job.output is not None:
        (folder / job.output).write_bytes(OLD)
    try:
        pid, log = _start(job.words, folder)
        time.sleep(moment)
        os.kill(pid, number)
        ended = _end(pid, log)
        was_killed = ended.code not in job.codes
        how = "killed" if was_killed else "done"
        if orphans := _outlive(pid):
            return Found(how, orphans)
        if number != signal.SIGKILL and (wrong := _wrong_ending(job, ended, number)):
            return Found(how, wrong)
        if wrong := _wrong_output(job, folder, whole):
            return Found(how, wrong)
        left = _left_files(folder, scratch)
        if left and (number != signal.SIGKILL or not was_killed):
            return Found(how, f"left {left}")
        if left and (wrong := _wrong_after(job, folder, scratch)):
            return Found(how, wrong)
        return Found(how, "")
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(scratch, ignore_errors=True)


def _outlive(group: int) -> str:
    """Return what is wrong where processes that the command started live on."""
    end = time.monotonic() + ORPHAN_SECONDS
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return ""
        time.sleep(0.02)
    os.killpg(group, signal.SIGKILL)
    return "a process that it started lives on"


def _wrong_ending(job: Job, ended: Ended, number: signal.Signals) -> str:
    code, line = ENDINGS[number]
    # The signal itself ends what has done its work and leaves: shells give the same code for it.
    if ended.code not in (*job.codes, code, -number):
        return f"code {ended.code}: {ended.told[-300:]}"
    told = [one for one in ended.lines if one.startswith("error: ")]
    last = ended.lines[-1] if ended.lines else ""
    if ended.code == code and (len(told) != 1 or not last.startswith(line)):
        return f"says {ended.told[-300:]}"
    return ""


def _wrong_output(job: Job, folder: Path, whole: Whole) -> str:
    if job.output is None:
        return ""
    path = folder / job.output
    if not path.exists():
        return "the old output is gone"
    content = path.read_bytes()
    if content == OLD:
        return ""
    if not job.same_bytes:
        return _broken(path)
    now = digest(folder)
    if now[job.output] != whole.files[job.output]:
        return "the output is neither the old one nor the new one"
    # What belongs to the output, such as external data, is in place before it.
    other = [name for name in job.beside if now.get(name) != whole.files[name]]
    return f"{other} are not those of the output" if other else ""


def _broken(path: Path) -> str:
    """Return what is wrong with a file whose bytes differ from run to run."""
    if path.suffix == ".html":
        is_whole = path.read_text().rstrip().endswith("</html>")
        return "" if is_whole else "the page is cut off"
    try:
        onnx.checker.check_model(onnx.load(path))
    except Exception as error:  # noqa: BLE001 (whatever it is, the model is not whole)
        return f"the model is broken: {error}"
    return ""


def _left_files(folder: Path, scratch: Path) -> list[str]:
    hidden = [path.name for path in folder.iterdir() if path.name.startswith(".")]
    temporary = [path.name for path in scratch.iterdir() if path.name.startswith("bitwright")]
    return sorted([*hidden, *temporary])


def _wrong_after(job: Job, folder: Path, scratch: Path) -> str:
    """Run it once more: that has to work, and to clean up."""
    second = _end(*_start(job.words, folder))
    left = _left_files(folder, scratch)
    if second.code in job.codes and not left:
        return ""
    return f"a second run ends with {second.code}, and leaves {left}: {second.told[-200:]}"


def main() -> int:
    """Run what the words ask for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=133, help="kills over all commands")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="commands whose name has this in it")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "kills")
    parser.add_argument("--table", action="store_true", help="run nothing")
    given = parser.parse_args()
    state = given.state.absolute()
    if not given.table:
        state.mkdir(parents=True, exist_ok=True)
        try_kills(given.count, given.seed, state, given.only)
    return bool(show_table(state))


if __name__ == "__main__":
    sys.exit(main())
