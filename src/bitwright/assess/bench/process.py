"""A model in a worker process, which times its runs and measures its memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bitwright.data import InputSpec, session_inputs
from bitwright.errors import ModelError, TargetError
from bitwright.graph import runtime_reason
from bitwright.support.files import Closing
from bitwright.support.processes import WorkerError, WorkerLost, WorkerProcess

__all__ = ["ModelProcess"]

_WORKER = Path(__file__).with_name("worker.py")


class ModelProcess(Closing):
    """A running worker with an open model; leaving the `with` block ends it."""

    def __init__(
        self, name: str, path: Path, *, threads: int | None, providers: Sequence[str]
    ) -> None:
        self._name = name
        self._process = WorkerProcess(_WORKER)
        try:
            opened = self._call(
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
        self._call("load", files=[str(file) for file in files])

    def burst(self, *, runs: int | None = None, seconds: float = 0.0) -> list[float]:
        """Run so many times, or else so long, and return the seconds of each run."""
        times: list[float] = self._call("burst", runs=runs, seconds=seconds)
        return times

    def peak_memory(self) -> tuple[int | None, str]:
        """Return the most bytes that were resident, and how that is known."""
        found = self._call("memory")
        return found["bytes"], found["source"]

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def _call(self, what: str, **more: Any) -> Any:
        try:
            return self._process.call(what, **more)
        except WorkerLost as error:
            raise ModelError(
                f"the process that ran {self._name!r} {error}; the machine may have too little "
                "memory for the model."
            ) from error
        except WorkerError as error:
            verb = "ONNX Runtime refuses" if what == "open" else "cannot run"
            raise ModelError(f"{verb} {self._name!r}: {runtime_reason(error)}") from error
