"""Run one piece of work in a process of its own and report its time and peak memory."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Measured:
    seconds: float
    """Time of the work itself, imports and data not counted."""
    peak: float
    """Largest resident size of the whole process, in MB."""
    extra: dict[str, float]


def run_apart(script: str, *arguments: object, timeout: float = 3600) -> Measured | str:
    """Run `script arguments…` and return what it printed last as JSON, or why it failed."""
    command = [sys.executable, str(HERE / script), *(str(argument) for argument in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return lines[-1][:160] if lines else f"exit code {done.returncode}"
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return Measured(found.pop("seconds"), found.pop("peak"), found)


def report(seconds: float, **extra: float) -> None:
    """Print a worker's result, with this process's peak memory."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "peak": peak, **extra}))


def print_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print a Markdown table, so that it can be pasted as it is."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, tuple("-" * width for width in widths), *rows):
        print("| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |")
