"""Running another tool's script in this process, and what it asked our modules for."""

from __future__ import annotations

import ast
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType


def run_script(script: str, arguments: Sequence[str], *, is_module: bool) -> int:
    """Run a script, or a module, as Python itself does; return its exit code."""
    sys.argv[:] = [script, *arguments]
    sys.path[0] = "" if is_module else str(Path(script).resolve().parent)
    try:
        if is_module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


def print_answers(packages: Sequence[str], script: str) -> None:
    """Tell which of the names that a script uses are ours, and which were handed on."""
    imported: set[str] = set()
    used: set[str] = set()
    for node in ast.walk(ast.parse(Path(script).read_bytes())):
        match node:
            case ast.Import(names=aliases):
                imported.update(alias.name for alias in aliases)
            case ast.ImportFrom(module=str(module), names=aliases):
                imported.update([module, *(f"{module}.{alias.name}" for alias in aliases)])
                used.update(alias.name for alias in aliases)
            case ast.Attribute(attr=name) | ast.Name(id=name):
                used.add(name)
    for module in sorted(imported & sys.modules.keys()):
        if not any(f"{module}.".startswith(f"{package}.") for package in packages):
            continue
        found: dict[str, list[str]] = {"answered by Bitwright": [], "handed on, as installed": []}
        for name in sorted(used):
            value = getattr(sys.modules[module], name, None)
            if value is not None and not isinstance(value, ModuleType) and name[0] != "_":
                ours = str(getattr(value, "__module__", "bitwright")).startswith("bitwright")
                found[[*found][not ours]].append(name)
        for what, names in found.items():
            if names:
                print(f"{what}: {module}: {', '.join(names)}", file=sys.stderr)
