"""Change the code in small ways, one at a time, and print the changes that no test notices.

    python scripts/mutate.py                    # 40 changes in decide, emit, numerics and jobs
    python scripts/mutate.py --seed 7 --over decide/scales emit/qdq.py --count 10

Each change (a mutant) is made in a copy of the repository, where the quick tests run that stand for
the file: those of its name, those that import it, those of its folder, and those in which its room
has a part. A mutant that passes them all survives: write the test that fails with it, unless
nobody could tell the difference. The same seed gives the same sample of the same code.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = Path("src", "bitwright")
ROOMS = ("decide", "emit", "numerics", "jobs")
# Tests in which most of a room's code has a part, after those of the file itself.
WIDE = {
    "decide": ("decide/**/test_*.py", "emit/test_q*.py", "peers/test_*_parity.py"),
    "emit": ("emit/**/test_*.py", "peers/test_*_parity.py"),
    "numerics": ("numerics/test_*.py", "rounding/test_*.py", "decide/*s/test_*.py"),
    "jobs": ("jobs/test_*.py", "jobs/weight_only/test_*.py"),
}
WHOLE_JOBS = tuple(f"jobs/test_{name}.py" for name in ("static", "modes", "peer_mistakes", "qat"))
COPIED = (
    *("src", "tests", "scripts", "docs", "examples", "fuzz", "zoo", "benchmarks"),
    *("pyproject.toml", "conftest.py", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"),
)
NO_TESTS_RUN = 5  # pytest's exit status

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


NEGATED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
}


class Mutant(NamedTuple):
    """One small change: a range of a file's bytes, and what stands there instead."""

    path: Path
    line: int
    start: int
    end: int
    instead: str

    def applied(self, source: bytes) -> bytes:
        """Return the file with the change."""
        return source[: self.start] + self.instead.encode() + source[self.end :]

    def describe(self, source: bytes) -> str:
        """Return where it is, what stood there and what stands there now."""
        before = " ".join(source[self.start : self.end].decode().split())
        return f"{self.path}:{self.line}: {before}  ->  {' '.join(self.instead.split())}"


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may stand in the place of a node; `Pass` for a statement that is dropped."""
    match node:
        case ast.Compare(left, [operator], [right]) if type(operator) in SWAPPED:
            # A tuned constant that is one off is as good.
            tuned = any(re.search(r"\b_?[A-Z]{2,}", ast.unparse(side)) for side in (left, right))
            swapped = SWAPPED | NEGATED if tuned else SWAPPED
            yield ast.Compare(left, [swapped[type(operator)]()], [right])  # type: ignore[list-item]
        case ast.BinOp(left, operator, right) if type(operator) in SWAPPED:
            # Strings and lists are joined by +, types by |: neither is arithmetic.
            if not any(isinstance(side, ast.JoinedStr | ast.List) for side in (left, right)):
                yield ast.BinOp(left, SWAPPED[type(operator)](), right)  # type: ignore[arg-type]
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(SWAPPED[type(operator)](), values)  # type: ignore[arg-type]
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value)):
            yield ast.Constant(value + 1)
        case ast.IfExp(_, ast.Constant(str()), _) | ast.IfExp(_, _, ast.Constant(str())):
            return  # words for people
        case ast.IfExp(test, body, other):
            yield ast.IfExp(test, other, body)
        case ast.Call(ast.Name("min" | "max" as name), arguments, keywords):
            yield ast.Call(ast.Name("max" if name == "min" else "min"), arguments, keywords)
        case ast.Continue():
            yield ast.Break()
        case ast.AugAssign() | ast.Expr(ast.Call()):
            yield ast.Pass()
        case ast.If(body=[ast.Return() | ast.Continue() | ast.Raise()], orelse=[]):
            yield ast.Pass()


class Sites(ast.NodeVisitor):
    """Collects the mutants of one file: no annotations, messages, asserts or tuned constants."""

    def __init__(self, path: Path, source: bytes) -> None:
        self.found: list[Mutant] = []
        self._path = path
        lines = source.splitlines(keepends=True)
        self._starts = [sum(map(len, lines[:count])) for count in range(len(lines))]
        self.visit(ast.parse(source))

    def generic_visit(self, node: ast.AST) -> None:
        """Take the changes of a node, then look below it."""
        for instead in changes(node):
            # A node with changes is an expression or a statement, and these have places.
            assert isinstance(node, ast.expr | ast.stmt)
            assert node.end_lineno is not None and node.end_col_offset is not None
            text = ast.unparse(ast.fix_missing_locations(instead))
            if isinstance(instead, ast.expr):
                text = f"({text})" if not isinstance(instead, ast.Constant) else text
            start = self._starts[node.lineno - 1] + node.col_offset
            end = self._starts[node.end_lineno - 1] + node.end_col_offset
            self.found.append(Mutant(self._path, node.lineno, start, end, text))
        super().generic_visit(node)

    def visit_Module(self, node: ast.Module) -> None:
        """Look into functions and classes only: a constant one larger is as good."""
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                self.visit(statement)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Leave out decorators and annotations."""
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(default)
        for statement in node.body:
            self.visit(statement)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Leave out bases and decorators."""
        for statement in node.body:
            self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Leave out the annotation."""
        if node.value is not None:
            self.visit(node.value)

    def visit_keyword(self, node: ast.keyword) -> None:
        """Leave out guards that no data reaches, and what a repr has."""
        if ast.unparse(node) not in ("strict=True", "repr=False"):
            self.visit(node.value)

    def visit_Assert(self, node: ast.Assert) -> None:
        """Leave out what always holds."""

    def visit_Raise(self, node: ast.Raise) -> None:
        """Leave out the words of errors."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave out text for people."""


def mutants(places: list[str]) -> list[Mutant]:
    """Return every change that can be made below some folders or files of the package."""
    files = [
        path for place in places for path in sorted((ROOT / PACKAGE / place).rglob("*.py") or [])
    ]
    files += [ROOT / PACKAGE / place for place in places if place.endswith(".py")]
    return [
        mutant
        for path in files
        for mutant in Sites(path.relative_to(ROOT), path.read_bytes()).found
    ]


def tests_of(path: Path) -> list[str]:
    """Return the test files that stand for a file: the likeliest to fail come first.

    These are those of its name, of the files that import it, those that import it themselves, those
    of its folder, and those in which its room has a part.
    """
    inside = path.relative_to(PACKAGE)
    module = ".".join(("bitwright", *inside.with_suffix("").parts)).removesuffix(".__init__")
    room = inside.parts[0]
    patterns = (*WIDE.get(room, (f"{room}/**/test_*.py",)), *WHOLE_JOBS)
    found = [
        own_test(inside),
        *sorted((ROOT / "tests").rglob(own_test(inside).name)),
        *(own_test(user.relative_to(ROOT / PACKAGE)) for user in importers(module, ROOT / PACKAGE)),
        *importers(module, ROOT / "tests"),
        *sorted((ROOT / "tests" / inside.parent).glob("test_*.py")),
        *(test for pattern in patterns for test in sorted((ROOT / "tests").glob(pattern))),
    ]
    tests = (test.relative_to(ROOT) for test in found if test.is_file())
    return [str(path), *dict.fromkeys(str(test) for test in tests if test.stem.startswith("test_"))]


def own_test(inside: Path) -> Path:
    """Return where the test of a file of the package is, by its name."""
    stem = inside.parent.name if inside.stem == "__init__" else inside.stem
    return ROOT / "tests" / inside.parent / f"test_{stem}.py"


def importers(module: str, folder: Path) -> list[Path]:
    """Return the files below a folder that import a module."""
    parent, _, name = module.rpartition(".")
    imports = re.compile(rf"{re.escape(module)}\b|from {re.escape(parent)} import .*\b{name}\b")
    files = sorted(folder.rglob("*.py"))
    return [path for path in files if imports.search(path.read_text(encoding="utf-8"))]


class Run(NamedTuple):
    """What tests said: whether all passed, and the one at which they stopped, if it has a name."""

    passed: bool
    stopped_at: str | None = None


def run_tests(copy: Path, tests: list[str], limit: float) -> Run:
    """Run tests in a copy of the repository up to the first that fails, or takes too long."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-m", "not slow"]
    command += ["-p", "no:cacheprovider", "--no-header", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": ""}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return Run(passed=False)
    if done.returncode in (0, NO_TESTS_RUN):
        return Run(passed=True)
    failed = re.search(r"^FAILED (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return Run(passed=False, stopped_at=failed and failed[1])


def make_copy(folder: Path) -> Path:
    """Copy what tests need of the repository."""
    skip = shutil.ignore_patterns("__pycache__", ".venv", "results.jsonl.gz", ".cache")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=skip)
        elif (ROOT / name).is_file():
            shutil.copy(ROOT / name, folder / name)
    return folder


def main() -> int:
    """Try the sample, and return 1 if more survive than may."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--over", nargs="+", default=list(ROOMS), help="below src/bitwright")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="mutants tried at the same time")
    parser.add_argument("--limit", type=float, default=600, help="seconds for a mutant's tests")
    parser.add_argument("--allowed", type=int, default=4, help="survivors before it fails")
    options = parser.parse_args()
    found = mutants(options.over)
    sample = random.Random(options.seed).sample(found, min(options.count, len(found)))
    print(f"{len(sample)} of {len(found)} mutants, seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        copies: Queue[Path] = Queue()
        for index in range(options.jobs):
            copies.put(make_copy(Path(folder, str(index))))

        def try_out(mutant: Mutant) -> Run:
            copy = copies.get()
            path = copy / mutant.path
            source = path.read_bytes()
            try:
                path.write_bytes(mutant.applied(source))
                run = run_tests(copy, tests_of(mutant.path), options.limit)
            finally:
                path.write_bytes(source)
                copies.put(copy)
            verdict = "SURVIVED" if run.passed else f"killed by {run.stopped_at or 'an error'}"
            print(f"{mutant.describe(source)}\n    {verdict}", flush=True)
            return run

        with ThreadPoolExecutor(options.jobs) as pool:
            runs = list(pool.map(try_out, sample))
        # A test that fails without a mutant, too, has killed none.
        killers = sorted({run.stopped_at for run in runs if run.stopped_at})
        if killers and not run_tests(copies.get(), killers, options.limit).passed:
            print("some of these tests fail without any mutant, too: mend them first")
            return 2
    survivors = sum(run.passed for run in runs)
    print(f"{survivors} of {len(sample)} survived (at most {options.allowed} may)")
    return int(survivors > options.allowed)


if __name__ == "__main__":
    sys.exit(main())
