"""One model in a process of its own, asked to run for a while and to say what it took."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bitwright.data import InputSpec, session_inputs
from bitwright.errors import ModelError, TargetError
from bitwright.graph import runtime_reason

__all__ = ["ModelProcess"]

_WORKER = Path(__file__).with_name("worker.py")


class ModelProcess:
    """A running worker with an open model; leaving the `with` block ends it."""

    def __init__(
        self, name: str, path: Path, *, threads: int | None, providers: Sequence[str]
    ) -> None:
        self._name = name
        # -P: the worker's folder must not shadow modules of the standard library.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        try:
            opened = self._ask(
                "open", model=str(path.absolute()), threads=threads, providers=list(providers)
            )
            missing = [each for each in providers if each not in opened["providers"]]
            if missing:
                raise TargetError(
                    f"{missing[0]} is installed but does not start on this machine; check its "
                    "driver, or use CPUExecutionProvider."
                )
            nodes = [SimpleNamespace(**each) for each in opened["inputs"]]
            self.inputs: tuple[InputSpec, ...] = session_inputs(
                SimpleNamespace(get_inputs=lambda: nodes)
            )
        except BaseException:
            self.close()
            raise
        self.open_seconds: float = opened["seconds"]
        self.memory_before: int | None = opened["memory_before"]
        """Bytes that Python and ONNX Runtime take before there is a model."""

    def load(self, files: Sequence[Path]) -> None:
        """Give it the samples to run, which it takes in turn."""
        self._ask("load", files=[str(file) for file in files])

    def burst(self, *, runs: int | None = None, seconds: float = 0.0) -> list[float]:
        """Run so many times, or else so long, and return the seconds of each run."""
        times: list[float] = self._ask("burst", runs=runs, seconds=seconds)
        return times

    def peak_memory(self) -> tuple[int | None, str]:
        """Return the most bytes that were resident, and how that is known."""
        found = self._ask("memory")
        return found["bytes"], found["source"]

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:  # it has ended already
                    continue
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> ModelProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, what: str, **more: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": what, **more}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait()
            raise ModelError(
                f"the process that ran {self._name!r} ended with code {code}; the machine may have "
                "too little memory for the model."
            )
        reply = json.loads(line)
        if "error" in reply:
            reason = runtime_reason(RuntimeError(reply["error"]))
            verb = "ONNX Runtime refuses" if what == "open" else "cannot run"
            raise ModelError(f"{verb} {self._name!r}: {reason}")
        return reply["answer"]
