"""Models in worker processes, which time their runs and measure their memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from bitwright.data import InputSpec, session_inputs
from bitwright.errors import ModelError, TargetError
from bitwright.run import runtime_reason
from bitwright.support.files import Closing
from bitwright.support.processes import WorkerError, WorkerLost, WorkerProcess

__all__ = ["FolderProcess", "ModelProcess", "run_interleaved"]

_WORKER = Path(__file__).with_name("worker.py")
_ROUNDS = 10


class _OpenProcess(Closing):
    """A running worker; leaving the `with` block ends it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process = WorkerProcess(_WORKER)
        self.open_seconds = 0.0
        self.memory_before: int | None = None
        """Bytes that Python and ONNX Runtime take before there is a model."""

    def generate(self, runs: int) -> list[tuple[float, float]]:
        """Return the seconds of the prompt and of the tokens behind it, of each run."""
        return [(prompt, rest) for prompt, rest in self._call("generate", runs=runs)]

    def peak_memory(self) -> tuple[int | None, str]:
        """Return the most bytes that were resident, and how that is known."""
        found = self._call("memory")
        return found["bytes"], found["source"]

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def _open(self, what: str, **more: Any) -> dict[str, Any]:
        try:
            opened: dict[str, Any] = self._call(what, **more)
        except BaseException:
            self.close()
            raise
        self.open_seconds, self.memory_before = opened["seconds"], opened["memory_before"]
        return opened

    def _call(self, what: str, **more: Any) -> Any:
        try:
            return self._process.call(what, **more)
        except WorkerLost as error:
            raise ModelError(
                f"the process that ran {self._name!r} {error}; the machine may have too little "
                "memory for the model."
            ) from error
        except WorkerError as error:
            verb = "ONNX Runtime refuses" if what.startswith("open") else "cannot run"
            raise ModelError(f"{verb} {self._name!r}: {runtime_reason(error)}") from error


class ModelProcess(_OpenProcess):
    """A running worker with an open model."""

    def __init__(
        self, name: str, path: Path, *, threads: int | None, providers: Sequence[str]
    ) -> None:
        super().__init__(name)
        opened = self._open(
            "open", model=str(path.absolute()), threads=threads, providers=list(providers)
        )
        try:
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
        self.outputs: dict[str, list[Any]] = {o["name"]: o["shape"] for o in opened["outputs"]}
        """Name -> shape."""

    def load(self, files: Sequence[Path]) -> None:
        """Load the samples, which runs take in turn."""
        self._call("load", files=[str(file) for file in files])

    def load_tokens(self, files: Sequence[Path], caches: Mapping[str, str]) -> None:
        """Load the feeds of the prompt and of each following token.

        `caches` maps the inputs that hold the cache to the outputs that go on as these.
        """
        self._call("load_tokens", files=[str(file) for file in files], caches=dict(caches))

    def burst(self, *, runs: int | None = None, seconds: float = 0.0) -> list[float]:
        """Run `runs` times, or for `seconds`; return the seconds of each run."""
        times: list[float] = self._call("burst", runs=runs, seconds=seconds)
        return times


class FolderProcess(_OpenProcess):
    """A running worker with a folder that onnxruntime-genai has opened."""

    def __init__(self, name: str, folder: Path, *, threads: int | None) -> None:
        super().__init__(name)
        self._open("open_folder", folder=str(folder.absolute()), threads=threads)

    def load_prompt(self, tokens: Sequence[int], new_tokens: int, *, least_length: int) -> None:
        """Give it the prompt, how many tokens are generated behind the first, and of the cache."""
        length = len(tokens) + 1 + new_tokens
        self._call(
            "load_prompt",
            tokens=list(tokens),
            new_tokens=new_tokens,
            cache_length=max(length, least_length),
        )


class _Runner(Protocol):
    def burst(self, *, runs: int | None = None, seconds: float = 0.0) -> list[float]: ...


def run_interleaved(
    runners: Sequence[_Runner],
    *,
    runs: int | None,
    seconds: float,
    on_round: Callable[[int], None] = lambda done: None,
) -> list[list[float]]:
    """Return the seconds of every run, of each runner.

    Time goes in ten rounds; in each round every runner gets one burst, forwards in one round and
    backwards in the next, so that none always comes first. With `runs` each runner runs exactly so
    many times; otherwise as often as fits into `seconds`. `on_round` hears which is over.

    >>> class Clock:
    ...     def burst(self, *, runs=None, seconds=0.0):
    ...         return [0.001] * (runs or 3)
    >>> [len(times) for times in run_interleaved([Clock(), Clock()], runs=25, seconds=0)]
    [25, 25]
    """
    times: list[list[float]] = [[] for _ in runners]
    rounds = _ROUNDS if runs is None else min(_ROUNDS, runs)
    order = list(enumerate(runners))
    for current in range(rounds):
        for place, runner in order if current % 2 == 0 else reversed(order):
            if runs is not None:
                share = math.ceil((runs - len(times[place])) / (rounds - current))
                times[place] += runner.burst(runs=share)
            elif sum(times[place]) < seconds or not times[place]:
                times[place] += runner.burst(seconds=seconds / rounds)
        on_round(current + 1)
    return times
