"""Models in worker processes, which time their runs and measure their memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from bitwright.assess.bench.requests import write_samples
from bitwright.assess.clock import take_turns
from bitwright.data import Sample, session_inputs
from bitwright.errors import ModelError
from bitwright.run import check_started, runtime_reason
from bitwright.support import CRASHES, WORKER, Closing, WorkerError, WorkerLost, WorkerProcess

_ROUNDS = 10


class ModelProcess(Closing):
    """A running worker with an open model; leaving the `with` block ends it."""

    _runtime = "ONNX Runtime"

    def __init__(self, name: str, opening: str, providers: Sequence[str] = (), **how: Any) -> None:
        """Let a worker open a model by the method of this name, with these arguments."""
        self._name = name
        self._process = self._start()
        try:
            opened = self.call(opening, providers=list(providers), **how)
            check_started(providers, opened["providers"])
            nodes = [SimpleNamespace(**each) for each in opened["inputs"]]
            self.inputs = session_inputs(SimpleNamespace(get_inputs=lambda: nodes))
        except BaseException:
            self.close()
            raise
        self.outputs: dict[str, list[Any]] = {o["name"]: o["shape"] for o in opened["outputs"]}
        """Name -> shape."""
        self.open_seconds: float = opened["seconds"]
        self.memory_before: int | None = opened["memory_before"]
        """Bytes that Python and ONNX Runtime take before there is a model."""

    def _start(self) -> WorkerProcess:
        return WorkerProcess(WORKER)

    @classmethod
    def of_file(
        cls, name: str, path: Path, *, threads: int | None, providers: Sequence[str]
    ) -> ModelProcess:
        """Open a model file in ONNX Runtime."""
        return cls(name, "open", providers, model=str(path.absolute()), threads=threads)

    def load(self, samples: Sequence[Sample], folder: Path) -> None:
        """Give it the samples that it runs; they travel in files of a new folder."""
        self.call("load", files=write_samples(samples, folder))

    def burst(self, *, runs: int | None = None, seconds: float = 0.0) -> list[float]:
        """Run `runs` times, or for `seconds`; return the seconds of each run."""
        times: list[float] = self.call("burst", runs=runs, seconds=seconds)
        return times

    def peak_memory(self) -> tuple[int | None, str]:
        """Return the most bytes that were resident, and how that is known."""
        found = self.call("memory")
        return found["bytes"], found["source"]

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def call(self, what: str, **arguments: Any) -> Any:
        """Call a method of the worker, and return what it gives."""
        try:
            return self._process.call(what, **arguments)
        except WorkerLost as error:
            reason = "the machine may have too little memory for the model"
            if error.code in CRASHES:
                reason = f"{self._runtime} crashes by the model"
            raise ModelError(f"the process that ran {self._name!r} {error}; {reason}.") from error
        except WorkerError as error:
            verb = f"{self._runtime} refuses" if what.startswith("open") else "cannot run"
            raise ModelError(f"{verb} {self._name!r}: {runtime_reason(error)}") from error


class _Runner(Protocol):
    def burst(self, *, runs: int | None = None, seconds: float = 0.0) -> list[float]: ...


def run_interleaved(
    runners: Sequence[_Runner],
    *,
    runs: int | None,
    seconds: float,
    on_round: Callable[[int], None] = lambda done: None,
) -> list[list[list[float]]]:
    """Return round by round the seconds of each runner's runs.

    There are ten rounds, in each of which every runner gets one burst. With `runs` each runner runs
    exactly so many times; otherwise as often as fits into `seconds`. `on_round` is called with the
    round done.
    """
    rounds = _ROUNDS if runs is None else min(_ROUNDS, runs)
    times: list[list[float]] = [[] for _ in runners]

    def burst(place: int, current: int) -> list[float]:
        found: list[float] = []
        if runs is not None:
            share = math.ceil((runs - len(times[place])) / (rounds - current))
            found = runners[place].burst(runs=share)
        elif sum(times[place]) < seconds or not times[place]:
            found = runners[place].burst(seconds=seconds / rounds)
        times[place] += found
        return found

    bursts = [partial(burst, place) for place in range(len(runners))]
    done = []
    for found in take_turns(bursts, range(rounds)):
        done.append(found)
        on_round(len(done))
    return done
