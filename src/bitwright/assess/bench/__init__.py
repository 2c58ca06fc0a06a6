"""Benchmarks of models: latency, memory, and the time of every node."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import onnx_ir as ir

from bitwright import graph
from bitwright.assess.bench.process import ModelProcess, run_interleaved
from bitwright.assess.bench.profile import profile_models
from bitwright.assess.bench.requests import BenchRequest, TimedModel, check_shapes
from bitwright.assess.bench.results import Benchmark, ModelBenchmark
from bitwright.assess.bench.web import WebProcess
from bitwright.assess.clock import (
    BUDGET,
    FEWEST_ROUNDS,
    Clock,
    middle_sized,
    read_clocks,
    time_models,
)
from bitwright.data import Sample
from bitwright.run.session import checked_providers
from bitwright.support import ScratchFolder, show_progress

__all__ = ["BenchRequest", "bench_models"]

_ROUNDS_SHOWN = 10


def bench_models(
    models: Sequence[graph.ModelSource], request: BenchRequest, prepared: ir.Model | None = None
) -> Benchmark:
    """Time models against each other, and say where their time goes.

    `prepared` is the first one after our float passes, and runs in its place.
    """
    request.check(models)
    in_web = request.runtime == "web"
    threads = 1 if in_web else request.threads
    providers = ["onnxruntime-web, wasm"] if in_web else checked_providers(request.providers)
    with ScratchFolder("bench") as scratch, contextlib.ExitStack() as stack:
        timed = [
            TimedModel(model, index, scratch.path, None if index else prepared)
            for index, model in enumerate(models)
        ]
        processes = [
            stack.enter_context(_open(each, request, providers, scratch.path)) for each in timed
        ]
        check_shapes([process.inputs for process in processes], request.shapes or {})
        samples, what = _load_samples(processes, request, scratch.path)
        for process in processes:
            if request.warm_up:
                process.burst(runs=request.warm_up)
        with show_progress(request.progress, "Timing", _ROUNDS_SHOWN) as report:
            rounds = run_interleaved(
                processes, runs=request.runs, seconds=request.seconds, on_round=report
            )
        times = [list(chain(*found)) for found in zip(*rounds, strict=True)]
        figures = list(map(_figures, timed, processes, times, samples))
        for process in processes:  # before profiling, which wants the machine for itself
            process.close()
        clocks = [_of_rounds(rounds, threads, in_web=in_web)]
        clocks += [] if in_web else [_of_one_thread(timed, samples, request, providers)]
        for index, found in enumerate(zip(*(one for one in clocks if one), strict=True), 1):
            figures[index] = replace(figures[index], clocks=found)
        if request.profile and not in_web:
            profiles = profile_models(
                [each.model for each in timed],
                samples,
                threads=threads,
                providers=providers,
                seconds=request.seconds,
            )
            figures = [
                replace(each, profile=found) for each, found in zip(figures, profiles, strict=True)
            ]
    return Benchmark(tuple(figures), what, threads, tuple(providers), prepared=prepared is not None)


def _open(
    model: TimedModel, request: BenchRequest, providers: Sequence[str], folder: Path
) -> ModelProcess:
    if request.runtime == "web":
        return WebProcess.of_model(model.name, model.model, folder / f"web-{id(model)}.onnx")
    return ModelProcess.of_file(
        model.name, model.path, threads=request.threads, providers=providers
    )


def _of_rounds(
    rounds: Sequence[Sequence[Sequence[float]]], threads: int | None, *, in_web: bool
) -> list[Clock] | None:
    """Return the clock of each further model by the seconds that passed; one thread has its own.

    In the web's runtime, which has one thread, they are those that the process worked.
    """
    shortest = [[min(times) for times in found] for found in rounds if all(found)]
    if (threads == 1 and not in_web) or len(shortest) < FEWEST_ROUNDS:
        return None
    return read_clocks(shortest, threads)


def _of_one_thread(
    timed: Sequence[TimedModel],
    samples: Sequence[Sequence[Sample]],
    request: BenchRequest,
    providers: Sequence[str],
) -> list[Clock] | None:
    """Return the clock of each further model by what the core of one thread works."""
    if len(timed) < 2 or list(providers) != ["CPUExecutionProvider"]:
        return None
    return time_models(
        [each.model for each in timed],
        list(map(middle_sized, samples)),
        budget=BUDGET if request.runs is not None else request.seconds * len(timed),
    )


def _load_samples(
    processes: Sequence[ModelProcess], request: BenchRequest, folder: Path
) -> tuple[list[list[Sample]], str]:
    """Load the samples of each process; return them, and their description."""
    samples: list[list[Sample]] = []
    what = ""
    for index, process in enumerate(processes):
        if index and process.inputs == processes[index - 1].inputs:
            samples.append(samples[-1])  # data that can be read only once serves all
        else:
            found, what = request.open_samples(process.inputs)
            samples.append(found)
        process.load(samples[-1], folder / str(index))
    return samples, what


def _figures(
    model: TimedModel, process: ModelProcess, times: list[float], samples: list[Sample]
) -> ModelBenchmark:
    peak, source = process.peak_memory()
    return ModelBenchmark(
        name=model.name,
        size=model.size,
        times=tuple(1000 * each for each in times),
        items=sum(map(_items, samples)) / len(samples),
        open_seconds=process.open_seconds,
        peak_memory=peak,
        runtime_memory=process.memory_before,
        memory_source=source,
        profile=None,
    )


def _items(sample: Sample) -> int:
    first = next(iter(sample.values()), None)
    return int(first.shape[0]) if first is not None and first.ndim else 1
