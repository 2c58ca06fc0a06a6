"""Run one piece of work in a process of its own and report its time and peak memory."""

from __future__ import annotations

import json
import os
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


def run_apart(
    script: str, *arguments: object, timeout: float = 3600, python: str = sys.executable
) -> Measured | str:
    """Run `script arguments…` and return what it printed last as JSON, or why it failed."""
    command = [python, str(HERE / script), *(str(argument) for argument in arguments)]
    # An installed package comes compiled; from a clone, only the first run may have to do it.
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, env=kept
        )
    except subprocess.TimeoutExpired:
        return f"took longer than {timeout:.0f} s"
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return lines[-1][:160] if lines else f"exit code {done.returncode}"
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return Measured(found.pop("seconds"), found.pop("peak"), found)


def prepare_for_peer(model: Path) -> Path:
    """Return the model as the peer's documentation asks for it: pre-processed, opset 13 or more.

    Below opset 13 its per-channel models do not load, and it takes weights in Constant nodes for
    activations.
    """
    import onnxruntime
    from onnxruntime.quantization import quant_pre_process

    from bitwright import graph
    from bitwright.run import upgrade_opset

    onnxruntime.set_default_logger_severity(3)
    output = model.with_name(f"{model.stem}-for-peer.onnx")
    loaded = graph.load_model(model)
    graph.save_model(upgrade_opset(loaded, max(13, graph.opset_of(loaded))), output)
    quant_pre_process(str(output), str(output), skip_symbolic_shape=True)
    return output


def peak_memory() -> float:
    """Return the largest resident size of this process so far, in MB.

    Not `ru_maxrss`: a new process inherits that of the one which started it.
    """
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("peak memory is read from /proc/self/status, which is not here")


def report(seconds: float, *, peak: float | None = None, **extra: float) -> None:
    """Print a worker's result, with this process's peak memory unless that was taken before."""
    found = peak_memory() if peak is None else peak
    # On a line of its own, whatever a progress bar left behind.
    print("\n" + json.dumps({"seconds": seconds, "peak": found, **extra}))


def print_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print a Markdown table, so that it can be pasted as it is."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, tuple("-" * width for width in widths), *rows):
        print("| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |")
