"""Running another tool's script in this process, and what it asked our modules for."""

from __future__ import annotations

import builtins
import json
import runpy
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np

RECORDED_SAMPLES = 16
"""Samples that are kept of what a script runs models on, to compare results with."""

Imports = list[tuple[str, tuple[str, ...]]]


def run_script(script: str, arguments: Sequence[str], *, is_module: bool) -> int:
    """Run a script, or a module, as Python itself does; return its exit code."""
    sys.argv[:] = [script, *arguments]
    try:
        if is_module:
            sys.path.insert(0, "")
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(script).resolve().parent)
            runpy.run_path(script, run_name="__main__")
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


@contextmanager
def record_run(folder: Path | None) -> Iterator[Imports]:
    """Gather the imports of a run; with a folder also its time, samples, and model files."""
    imports: Imports = []
    taken = builtins.__import__

    def take(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> ModuleType:
        importer = str((globals or {}).get("__name__", ""))
        if level == 0 and not importer.startswith("bitwright"):
            imports.append((name, tuple(fromlist or ())))
        return taken(name, globals, locals, fromlist, level)

    builtins.__import__ = take
    started = time.perf_counter()
    files = _watch_files(folder) if folder else {}
    try:
        yield imports
    finally:
        builtins.__import__ = taken
        if folder:
            files["seconds"] = time.perf_counter() - started
            (folder / "run.json").write_text(json.dumps(files))


def _watch_files(folder: Path) -> dict[str, Any]:
    """Note the model files that are read and written from now on, and keep samples in a folder."""
    from onnxruntime import InferenceSession

    files: dict[str, Any] = {"read": [], "written": []}

    def watch(event: str, details: tuple[Any, ...]) -> None:
        if event not in ("open", "os.rename") or not isinstance(details[0], (str, Path)):
            return
        renamed = event == "os.rename"
        path = str(details[1] if renamed else details[0])
        if path.endswith(".onnx"):
            writes = renamed or any(letter in "wax+" for letter in str(details[1]))
            known = files["written" if writes else "read"]
            if (path := str(Path(path).absolute())) not in known:
                known.append(path)

    sys.addaudithook(watch)
    original = InferenceSession.run
    kept: dict[tuple[str, ...], int] = {}

    def run(self: Any, outputs: Any, feeds: Any, *others: Any) -> Any:
        names = tuple(sorted(feeds))
        number = kept[names] = kept.get(names, -1) + 1
        if number < RECORDED_SAMPLES and all(
            isinstance(each, np.ndarray) for each in feeds.values()
        ):
            group = [*kept].index(names)
            np.savez(folder / f"{group}_{number:02d}.npz", **feeds)
        return original(self, outputs, feeds, *others)

    InferenceSession.run = run
    return files


def print_answers(imports: Imports, names: Sequence[str], script: str) -> None:
    """Tell which of the names that were imported are ours, and which were handed on."""
    used = _names_in(compile(Path(script).read_bytes(), script, "exec")) if script else set()
    wanted: set[tuple[str, str]] = set()
    for module, taken in imports:
        for name in taken or ("",):
            path = f"{module}.{name}".rstrip(".")
            if any(f"{path}.".startswith(f"{package}.") for package in names):
                whole = path in sys.modules
                wanted |= {(path, each) for each in used} if whole else {(module, name)}
    found: dict[bool, dict[str, list[str]]] = {True: {}, False: {}}
    for module, name in sorted(wanted):
        value = getattr(sys.modules.get(module), name, None)
        if value is not None and not isinstance(value, ModuleType) and name[0] != "_":
            home = getattr(value, "__module__", None) or "bitwright"
            found[home.startswith("bitwright")].setdefault(module, []).append(name)
    for ours, what in ((True, "answered by Bitwright"), (False, "handed on, as installed")):
        for module, members in found[ours].items():
            print(f"{what}: {module}: {', '.join(members)}", file=sys.stderr)
    if not any(found.values()):
        print(f"the script imported nothing of {', '.join(names)}", file=sys.stderr)


def _names_in(code: CodeType) -> set[str]:
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*map(_names_in, inner))
