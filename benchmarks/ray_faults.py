"""Faults of a Ray cluster under every verb: workers, nodes, drivers and addresses that die.

    python benchmarks/ray_faults.py --out faults            # all cases; goes on where it stopped
    python benchmarks/ray_faults.py --out faults --report   # the table of what was run

A cluster of two nodes is started here. Each case is a command of its own process, on that cluster,
with one fault while workers run. It must end as it does in one process: with the same bytes (or,
where the cluster is gone, with one sentence), a note of what died, and no line of Ray's own.
Each result is a line of `faults.jsonl` in the folder; cases that are there are not run again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
from measure import print_table

COMMAND = (sys.executable, "-m", "bitwright")
SECONDS = 400
"""The longest that a command may take, on a machine that others use, too."""
ALLOWED = ("error: ", "warning: ", "progress: ")
SIZE, WIDTH, LAYERS = 128, 512, 8


@dataclass(frozen=True)
class Job:
    """A command and what it writes; None: what it says."""

    name: str
    words: tuple[str, ...]
    output: str | None
    work: bool = False
    """Whether it can go on from a folder."""


@dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    case: str
    fault: str
    seconds: float
    code: int
    struck: bool
    """Whether the fault came while the command ran."""
    violation: str = ""
    told: str = ""


def jobs(inputs: Path) -> list[Job]:
    """Return a command for each verb."""

    def at(name: str) -> str:
        return str(inputs / name)

    data = ("--data", at("images.npy"))
    digits = ("--data", at("digits.npy"))
    return [
        Job(
            "quantize",
            ("quantize", at("resnet.onnx"), "-o", "q.onnx", "--ranges", "mse", *data),
            "q.onnx",
            work=True,
        ),
        Job(
            "plan", ("plan", at("resnet.onnx"), "-o", "p.json", "--recipe", "int8", *data), "p.json"
        ),
        Job("compare", ("compare", at("resnet.onnx"), at("int8.onnx"), *data, "--json"), None),
        Job(
            "report",
            ("report", at("resnet.onnx"), at("int8.onnx"), "-o", "r.html", "--no-latency", *data),
            "r.html",
        ),
        Job(
            "sensitivity",
            ("sensitivity", at("resnet.onnx"), "--plan", at("int8.json"), "-o", "s.json", *data),
            "s.json",
        ),
        Job(
            "apply, GPTQ",
            ("apply", at("gptq.json"), at("mlp.onnx"), "-o", "q.onnx", "--data", at("mlp.npy")),
            "q.onnx",
            work=True,
        ),
        Job(
            "quantize, AdaRound",
            (
                "quantize",
                at("digits.onnx"),
                "-o",
                "q.onnx",
                "--recipe",
                at("adaround.json"),
                *digits,
            ),
            "q.onnx",
            work=True,
        ),
        Job(
            "tune",
            (
                *("tune", at("digits.onnx"), "-o", "q.onnx", *digits, "--eval", at("eval.npz")),
                *("--for", "size", "--drop", "0.1%", "--recipe", "int8", "--effort", "low", "-q"),
            ),
            "q.onnx",
            work=True,
        ),
    ]


def write_inputs(folder: Path) -> None:
    """Write models, their data, plans and recipes."""
    import bitwright

    folder.mkdir()
    images = graphs.make_images(48, seed=1, size=SIZE)
    onnx.save(graphs.resnet18(size=SIZE), folder / "resnet.onnx")
    np.save(folder / "images.npy", images)
    made = bitwright.quantize(
        folder / "resnet.onnx", folder / "int8.onnx", data=images[:8], recipe="int8"
    )
    made.plan.save(folder / "int8.json")
    onnx.save(products(), folder / "mlp.onnx")
    rows = np.random.default_rng(0).normal(size=(8, 64, WIDTH)).astype(np.float32)
    np.save(folder / "mlp.npy", rows)
    recipe = bitwright.load_recipe("int4-gptq")
    weights = bitwright.WeightOnly(rounding=bitwright.GPTQ(), sequential=False)
    plan = bitwright.make_plan(
        folder / "mlp.onnx", recipe=recipe.replace(weights=weights), data=folder / "mlp.npy"
    )
    plan.save(folder / "gptq.json")
    demo = bitwright.load_demo()
    shutil.copy(demo.model_path, folder / "digits.onnx")
    np.save(folder / "digits.npy", demo.calibration[:64])
    np.savez(folder / "eval.npz", image=demo.images[:240], label=demo.labels[:240])
    learning = bitwright.AdaRound(iterations=600, scope="layer", sequential=False, workers=1)
    learned = bitwright.load_recipe("int8").replace(fine_tune=learning)
    (folder / "adaround.json").write_text(learned.to_json(), encoding="utf-8")


def products() -> onnx.ModelProto:
    """Return a chain of products that are large enough to take a while to round."""
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(1)
    nodes, weights, x = [], [], "x"
    for layer in range(LAYERS):
        weight = (random.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{layer}"))
        nodes.append(helper.make_node("MatMul", [x, f"w{layer}"], [f"h{layer}"], f"m{layer}"))
        x = f"y{layer}"
        nodes.append(helper.make_node("Relu", [f"h{layer}"], [x], f"r{layer}"))
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64, WIDTH])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["n", 64, WIDTH])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


# The cluster ---------------------------------------------------------------------------------


class TwoNodes:
    """A cluster of two nodes with a CPU each, of processes of this one."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        self._second = self._cluster.add_node(num_cpus=1)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def kill_node(self) -> None:
        """Kill the second node at once."""
        self._cluster.remove_node(self._second, allow_graceful=False)

    def restore(self) -> None:
        """Start a node in the place of one that was killed."""
        if self._second not in self._cluster.list_all_nodes():
            self._second = self._cluster.add_node(num_cpus=1)

    def kill_worker(self, chance: random.Random) -> None:
        """Kill a process that runs our work."""
        pids = workers()
        if pids:
            os.kill(chance.choice(pids), signal.SIGKILL)

    def kill_head(self) -> None:
        """Kill the node that everything depends on."""
        self._cluster.remove_node(self._cluster.head_node, allow_graceful=False)

    def stop(self) -> None:
        self._cluster.shutdown()


def workers() -> list[int]:
    """Return the processes of the cluster that are doing our work right now."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:  # gone meanwhile
                continue
            title = words.replace(b"\0", b" ").strip()
            if title.startswith((b"ray::run_item", b"ray::run_part")):
                found.append(int(entry.name))
    return found


# A case --------------------------------------------------------------------------------------


def run(
    words: tuple[str, ...],
    folder: Path,
    address: str | None,
    strike: Callable[[subprocess.Popen[str]], None] | None,
    delay: float = 0.0,
) -> tuple[int, str, str, bool]:
    """Run a command; once workers are at work, and a moment later, strike.

    Returns its code, what it wrote to both streams, and whether it was struck.
    """
    given = {**os.environ, "OMP_NUM_THREADS": "1"}
    if address is not None:
        given["RAY_ADDRESS"] = address
    out, err = (folder / name for name in ("stdout", "stderr"))
    struck = False
    with out.open("w") as told, err.open("w") as complained:
        process = subprocess.Popen(
            words, cwd=folder, env=given, stdout=told, stderr=complained, text=True
        )
        end = time.monotonic() + SECONDS
        while process.poll() is None and time.monotonic() < end:
            if strike is not None and not struck and workers():
                time.sleep(delay)
                if process.poll() is None:
                    strike(process)
                    struck = True
            time.sleep(0.05)
        if process.poll() is None:
            process.kill()
            process.wait()
            return 124, out.read_text(), err.read_text(), struck
    return process.returncode, out.read_text(), err.read_text(), struck


def digest(job: Job, folder: Path, said: str) -> str:
    """Return what tells results apart; figures of seconds are no part of them."""
    if job.output is None:
        return hashlib.sha256(re.sub(r'"seconds": [^,}]*', "", said).encode()).hexdigest()
    path = folder / job.output
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "nothing"


def foreign(told: str) -> str:
    """Return the first line that is none of ours."""
    lines = [line for line in told.splitlines() if line.strip()]
    odd = [line for line in lines if not line.startswith(ALLOWED)]
    return odd[0][:300] if odd else ""


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def strike_case(
    job: Job, fault: str, cluster: TwoNodes, expected: str, out: Path, chance: random.Random
) -> Outcome:
    """Run a verb while a worker or a node dies; it must give what it gives without a cluster."""
    folder = fresh(out / "run")
    words = (*COMMAND, *job.words, "--engine", "ray")
    strikes: dict[str, Callable[[Any], None]] = {
        "worker dies": lambda _: cluster.kill_worker(chance),
        "node dies": lambda _: cluster.kill_node(),
    }
    begun = time.monotonic()
    code, said, told, struck = run(
        words, folder, cluster.address, strikes[fault], chance.uniform(0, 1)
    )
    seconds = time.monotonic() - begun
    cluster.restore()
    violation = foreign(told)
    if code:
        violation = violation or f"code {code}: {told[-300:]}"
    elif digest(job, folder, said) != expected:
        violation = violation or "another result"
    return Outcome(job.name, fault, seconds, code, struck, violation, told[-400:])


def driver_case(
    job: Job, cluster: TwoNodes, expected: str, out: Path, chance: random.Random
) -> Outcome:
    """Kill the command itself, and run it again with the same folder."""
    folder = fresh(out / "run")
    words = (*COMMAND, *job.words, "--engine", "ray", "--work", "work")
    begun = time.monotonic()
    _, _, _, struck = run(
        words, folder, cluster.address, lambda process: process.kill(), chance.uniform(0.5, 4)
    )
    code, said, told, _ = run(words, folder, cluster.address, None)
    seconds = time.monotonic() - begun
    violation = foreign(told)
    if code:
        violation = violation or f"code {code}: {told[-300:]}"
    elif digest(job, folder, said) != expected:
        violation = violation or "another result"
    return Outcome(job.name, "driver dies", seconds, code, struck, violation, told[-400:])


def head_case(job: Job, cluster: TwoNodes, out: Path) -> Outcome:
    """Kill the head node: nothing can go on, and one sentence says so."""
    folder = fresh(out / "run")
    words = (*COMMAND, *job.words, "--engine", "ray")
    begun = time.monotonic()
    code, _, told, struck = run(words, folder, cluster.address, lambda _: cluster.kill_head(), 0.5)
    violation = foreign(told)
    if not code:
        violation = violation or "it ended without an error"
    elif told.count("error: ") != 1:
        violation = violation or f"code {code} without one sentence"
    if job.output is not None and (folder / job.output).exists():
        violation = violation or "a file was left"
    seconds = time.monotonic() - begun
    return Outcome(job.name, "head dies", seconds, code, struck, violation, told[-400:])


def address_case(job: Job, kind: str, out: Path) -> Outcome:
    """Name an address where there is no cluster: one sentence, in 30 seconds beside the start."""
    folder = fresh(out / "run")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        address = {
            "nobody listens": "ray://127.0.0.1:1",
            "no route": "ray://198.51.100.1:10001",
            "something else listens": f"ray://127.0.0.1:{port}",
        }[kind]
        begun = time.monotonic()
        code, _, told, _ = run((*COMMAND, *job.words, "--engine", address), folder, None, None)
    seconds = time.monotonic() - begun
    violation = foreign(told)
    if not code or told.count("error: ") != 1:
        violation = violation or f"code {code} without one sentence: {told[-200:]}"
    if seconds > 45:
        violation = violation or f"it took {seconds:.0f} s"
    return Outcome(job.name, kind, seconds, code, True, violation, told[-400:])


# All cases -----------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--only", nargs="*", default=None, help="names of verbs, or of faults")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    out: Path = given.out.absolute()
    out.mkdir(exist_ok=True)
    journal = out / "faults.jsonl"
    done = read(journal)
    if not given.report:
        # Workers come after everything else that runs, unless they are told not to.
        os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (Ray's own name)
        run_all(out, journal, done, given.only, random.Random(given.seed))
        done = read(journal)
    show(done)
    return min(1, sum(bool(one.violation) for one in done.values()))


def read(journal: Path) -> dict[tuple[str, str], Outcome]:
    lines = journal.read_text().splitlines() if journal.exists() else []
    found = [Outcome(**json.loads(line)) for line in lines]
    return {(one.case, one.fault): one for one in found}


def run_all(
    out: Path,
    journal: Path,
    done: dict[tuple[str, str], Outcome],
    only: list[str] | None,
    chance: random.Random,
) -> None:
    inputs = out / "inputs"
    if not inputs.exists():
        write_inputs(inputs)
    known = jobs(inputs)
    expected_file = out / "expected.json"
    expected: dict[str, str] = (
        json.loads(expected_file.read_text()) if expected_file.exists() else {}
    )
    for job in known:
        if job.name not in expected:
            folder = fresh(out / "run")
            code, said, told, _ = run((*COMMAND, *job.words), folder, None, None)
            if code:
                raise SystemExit(f"{job.name} fails without a cluster: {told}")
            expected[job.name] = digest(job, folder, said)
            expected_file.write_text(json.dumps(expected))

    cases: list[tuple[Job, str]] = [
        *((known[0], kind) for kind in ("nobody listens", "no route", "something else listens")),
        *((job, fault) for fault in ("worker dies", "node dies") for job in known),
        *((job, "driver dies") for job in known if job.work),
        (known[0], "head dies"),
    ]
    cluster: TwoNodes | None = None
    try:
        for job, fault in cases:
            if (job.name, fault) in done or (only and not {job.name, fault} & set(only)):
                continue
            if "dies" not in fault:
                outcome = address_case(job, fault, out)
            else:
                cluster = cluster or TwoNodes()
                if fault == "driver dies":
                    outcome = driver_case(job, cluster, expected[job.name], out, chance)
                elif fault == "head dies":
                    outcome = head_case(job, cluster, out)
                else:
                    outcome = strike_case(job, fault, cluster, expected[job.name], out, chance)
            with journal.open("a") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")
            print(
                f"{job.name}, {fault}: {outcome.seconds:.0f} s, "
                f"{'struck' if outcome.struck else 'NOT struck'}, {outcome.violation or 'ok'}",
                flush=True,
            )
    finally:
        if cluster is not None:
            cluster.stop()


def show(done: dict[tuple[str, str], Outcome]) -> None:
    faults = list(dict.fromkeys(fault for _, fault in done))
    rows = []
    for fault in faults:
        found = [one for one in done.values() if one.fault == fault]
        struck = [one for one in found if one.struck]
        broken = sum(bool(one.violation) for one in found)
        rows.append((fault, f"{len(found)}", f"{len(struck)}", f"{broken}"))
    print_table(("fault", "run", "struck", "violations"), rows)


if __name__ == "__main__":
    sys.exit(main())
