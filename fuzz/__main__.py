"""`python -m fuzz run`: cases by number, each in a child process; it goes on where it stopped."""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import json
import os
import pkgutil
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuzz.child import Verdict

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "tests" / "fuzz" / "corpus"


def main() -> int:
    """Run what the words ask for, and return 1 where a case is a violation."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run cases and keep their verdicts")
    run.add_argument("--cases", type=int, default=20_000)
    run.add_argument("--first", type=int, default=0, help="the number of the first case")
    run.add_argument("--state", type=Path, default=ROOT / "build" / "fuzz")
    one = commands.add_parser("one", help="run cases by number and show what they say")
    one.add_argument("seeds", type=int, nargs="+")
    one.add_argument("--state", type=Path, default=ROOT / "build" / "fuzz")
    one.add_argument("--keep", action="store_true", help="add them to the corpus")
    replay = commands.add_parser("replay", help="run the corpus of past failures")
    replay.add_argument("--corpus", type=Path, default=CORPUS)
    table = commands.add_parser("table", help="count the verdicts")
    table.add_argument("--state", type=Path, default=ROOT / "build" / "fuzz")
    given = parser.parse_args()
    if given.command == "table":
        return _show_table(given.state / "verdicts.jsonl")
    load_everything()
    if given.command == "replay":
        return _replay(given.corpus)
    from fuzz.seeds import write_seeds

    given.state = given.state.absolute()  # cases run in folders of their own
    seeds = given.state / "seeds"
    _in_child(lambda: write_seeds(seeds))
    _warm_up(seeds)
    if given.command == "one":
        return _run_some(given.seeds, seeds, given.keep)
    return _run(given.first, given.cases, given.state, seeds)


def load_everything() -> None:
    """Import what commands import when they need it: children then start with it."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import bitwright

    modules = [module.name for module in pkgutil.walk_packages(bitwright.__path__, "bitwright.")]
    # Those that learn need torch, which no case does.
    modules = [name for name in modules if "__main__" not in name and ".learning" not in name]
    with warnings.catch_warnings(action="ignore"):
        for name in (*modules, *_LATER):
            importlib.import_module(name)


def _warm_up(seeds: Path) -> None:
    """Run some jobs here: children then have compiled loops and caches, which take half their time.

    All sessions are closed behind it, as their threads would not be there in a child.
    """
    import typer

    from bitwright.cli import app
    from bitwright.cli import main as run

    model = str(seeds / "models" / "digits.onnx")
    with tempfile.TemporaryDirectory() as folder:
        for recipe in ("int8", "int4", "npu-cnn", "int8-dynamic"):
            words = ["quantize", model, "-o", f"{folder}/{recipe}.onnx", "--recipe", recipe]
            run([*words, "--random-data", "2", "--quiet"])
    command = typer.main.get_command(app._make_app())
    typer.main.get_command = lambda _: command  # to build all of them takes longer than to refuse
    gc.collect()
    gc.freeze()  # a child that looks for garbage would copy all of it


_LATER = (
    "numba",
    "onnxscript.optimizer",
    "onnxruntime.tools.symbolic_shape_infer",
    "PIL.Image",
    "tokenizers",
    "yaml",
    "fuzz.child",
    "fuzz.cases",
)


def _in_child(work: object) -> None:
    """Do what opens sessions, whose threads do not survive a fork, in a process of its own."""
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        sys.exit("the seeds could not be written")


def _run(first: int, count: int, state: Path, seeds: Path) -> int:
    from fuzz.cases import kind_of

    verdicts = state / "verdicts.jsonl"
    lines = verdicts.read_text().splitlines() if verdicts.exists() else []
    done = {json.loads(line)["seed"] for line in lines}
    print(f"cases {first} to {first + count - 1}", flush=True)
    with verdicts.open("a") as file:
        for seed in range(first, first + count):
            if seed in done:
                continue
            verdict = _judge(seed, seeds, state / "cases")
            row = {"seed": seed, "case": kind_of(seed), "kind": verdict.kind}
            row |= {"seconds": round(verdict.seconds, 2)}
            if verdict.kind in ("violation", "skipped"):
                row |= {"reason": verdict.reason}
                print(
                    seed,
                    kind_of(seed),
                    verdict.kind,
                    verdict.reason.replace("\n", " ")[:250],
                    flush=True,
                )
            file.write(json.dumps(row) + "\n")
            file.flush()
    return _show_table(verdicts)


def _judge(seed: int, seeds: Path, parent: Path, keep: Path | None = None) -> Verdict:
    from fuzz.cases import kind_of, make_case, save_case
    from fuzz.child import judge

    folder = parent / str(seed)
    _remove(folder)
    valid = kind_of(seed) in ("random_graph", "size_arithmetic")

    def prepare(folder: Path) -> list[str]:
        words = make_case(seed, folder, seeds)
        if keep is not None:
            save_case(folder, keep, words, seeds, valid=valid)
        return words

    verdict = judge(prepare, folder, valid=valid)
    _remove(folder)
    return verdict


def _remove(folder: Path) -> None:
    """Remove the folder of a case, and what its command said."""
    shutil.rmtree(folder, ignore_errors=True)
    for suffix in (".log", ".out"):
        folder.with_suffix(suffix).unlink(missing_ok=True)


def _run_some(numbers: list[int], seeds: Path, keep: bool) -> int:
    bad = 0
    with tempfile.TemporaryDirectory() as parent:
        for seed in numbers:
            target = CORPUS / f"case{seed}" if keep else None
            verdict = _judge(seed, seeds, Path(parent), target)
            print(seed, verdict.kind, f"{verdict.seconds:.1f} s", verdict.reason)
            bad += verdict.kind == "violation"
    return bool(bad)


def _replay(corpus: Path) -> int:
    from fuzz.child import judge

    bad = 0
    folders = sorted(path.parent for path in corpus.glob("*/case.json"))
    with tempfile.TemporaryDirectory() as parent:
        for source in folders:
            document = json.loads((source / "case.json").read_text())
            prepare = functools.partial(_copy_case, source, document["words"])
            verdict = judge(prepare, Path(parent) / source.name, valid=document.get("valid", False))
            if verdict.kind == "violation" or verdict.kind == "skipped":
                bad += 1
                print(f"{source.name}: {verdict.kind}: {verdict.reason}")
    print(f"{len(folders)} cases, {bad} violations")
    return bool(bad)


def _copy_case(source: Path, words: list[str], folder: Path) -> list[str]:
    for path in source.iterdir():
        if path.name != "case.json":
            shutil.copy(path, folder)
    return words


def _show_table(verdicts: Path) -> int:
    rows = [json.loads(line) for line in verdicts.read_text().splitlines()]
    kinds = ("done", "refused", "violation", "skipped")
    counts = Counter((row["case"], row["kind"]) for row in rows)
    print("| case | " + " | ".join(kinds) + " |\n|---|" + "---|" * len(kinds))
    for case in [*sorted({row["case"] for row in rows}), "all"]:
        numbers = [
            sum(n for (c, k), n in counts.items() if k == kind and case in (c, "all"))
            for kind in kinds
        ]
        print(f"| {case} | " + " | ".join(map(str, numbers)) + " |")
    return bool(sum(n for (_, kind), n in counts.items() if kind == "violation"))


if __name__ == "__main__":
    sys.exit(main())
