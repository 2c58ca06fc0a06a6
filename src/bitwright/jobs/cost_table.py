"""Measure a cost table: what each kernel of ONNX Runtime costs on this machine.

Small nets run under the runtime's profiler; each kernel's costs are fitted to the times of the
nodes that it ran, as non-negative numbers (least squares of the relative errors).
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import NamedTuple

import numpy as np
import onnxruntime as ort

from bitwright._version import __version__
from bitwright.assess.bench.profile import Profile, profile_models
from bitwright.jobs.micro_nets import MicroNet, chain_of, micro_nets
from bitwright.run import Session
from bitwright.support import F64, Progress, show_progress
from bitwright.targets.costs import Cost, CostTable, Work
from bitwright.targets.host import detect_cpu_class, processor_name, read_flags

_DECIDES = frozenset(
    "avx2 avx_vnni avx512f avx512_vnni amx_int8 asimddp i8mm sve fphp asimdhp".split()
)
_MOST_RUNS = 400
_SHARE_OF_FAST_RUNS = 3
_ROUNDING = 1.0
"""Microseconds by which a time may be off, as the profiler counts whole ones."""
_LEAST = 0.3
"""Microseconds below which a time is nothing but the profiler's own."""
_ROUNDS = 3
_LONG_CHAIN = 64
_MORE_THAN_A_CACHE = np.zeros(1 << 20, np.float32)
"""What is read before each run: a small net alone would find its weights, what it reads and its
code in the caches, which nodes of a large one do not."""


class Timing(NamedTuple):
    """One node: what it had to do, and the microseconds it took."""

    work: Work
    time: float


def measure_costs(seconds: float = 60.0, progress: Progress = False) -> CostTable:
    """Return what the runtime's kernels cost on this machine, on one thread."""
    return make_table(measure_times(list(micro_nets()), seconds, progress))


def make_table(timings: Iterable[Timing]) -> CostTable:
    """Return the table of this machine that explains what was measured here."""
    return CostTable(
        cpu=detect_cpu_class(),
        processor=processor_name(),
        flags=tuple(sorted(read_flags() & _DECIDES)),
        versions={"onnxruntime": ort.__version__, "bitwright": __version__},
        kernels=fit_costs(timings),
    )


def measure_times(
    nets: Sequence[MicroNet], seconds: float, progress: Progress = False
) -> list[Timing]:
    """Return the time of each node of some nets; together they run for about `seconds`.

    All nets run in a few rounds, and the least time counts: what else runs on the machine comes and
    goes, and only adds.
    """
    overhead = min(_node_overhead() for _ in range(_ROUNDS))
    least: dict[tuple[int, str], float] = {}
    share = seconds / max(_ROUNDS * len(nets), 1)
    with show_progress(progress, "Measuring", _ROUNDS * len(nets)) as report:
        for done, (_, (index, net)) in enumerate(product(range(_ROUNDS), enumerate(nets)), 1):
            for name, us in times_of(net, _profile(net, share), overhead).items():
                least[index, name] = min(us, least.get((index, name), us))
            report(done)
    return [Timing(nets[index].works[name], max(us, _LEAST)) for (index, name), us in least.items()]


def _profile(net: MicroNet, seconds: float) -> Profile:
    inputs = [[dict(net.inputs)]]
    [profile] = profile_models(
        [net.model],
        inputs,
        threads=1,
        seconds=seconds,
        most=_MOST_RUNS,
        typical=fast_runs,
        before=_MORE_THAN_A_CACHE.sum,
    )
    return profile


def times_of(net: MicroNet, profile: Profile, overhead: float = 0.0) -> dict[str, float]:
    """Return the microseconds of each node of a net, with those that the runtime added for it.

    What reorders a tensor counts with the node in the middle of the net, or with the border there;
    what reorders the net's own inputs and results is left out.
    """
    owners = [net.owner_of(node.name) for node in profile.nodes]
    found: dict[str, float] = defaultdict(float)
    for index, (node, owner) in enumerate(zip(profile.nodes, owners, strict=True)):
        if owner is None:
            before = next((name for name in owners[index::-1] if name), None)
            behind = next((name for name in owners[index:] if name), None)
            beside = [name for name in (before, behind) if name]
            if not beside or (node.kind == "layout" and len(beside) < 2):
                continue
            owner = max(beside, key=lambda name: 2 * name.endswith(("_Q", "_DQ")) + (name == "b"))
        found[owner] += 1e3 * node.milliseconds + overhead
    return dict(found)


def fast_runs(times: Sequence[float]) -> float:
    """Return the mean of the fastest third: what else runs on a machine only adds time."""
    return statistics.fmean(sorted(times)[: max(len(times) // _SHARE_OF_FAST_RUNS, 1)])


def fit_costs(timings: Iterable[Timing]) -> dict[str, Cost]:
    """Return each kernel's costs, as they explain its times best."""
    kernels: dict[str, list[Timing]] = defaultdict(list)
    for timing in timings:
        kernels[timing.work.kernel].append(timing)
    free = {"fused": Cost()}
    return free | {name: _fit(found) for name, found in sorted(kernels.items()) if name != "fused"}


def _fit(timings: Sequence[Timing]) -> Cost:
    units = np.array([1, 1e6, 1e3, 1e3, 1e3, 1e3])
    work = [(1, w.macs, w.read, w.written, w.uncached, w.weights) / units for w, _ in timings]
    times = np.array([timing.time for timing in timings])
    weights = 1 / (times + _ROUNDING)
    prices = _solve_non_negative(np.array(work) * weights[:, None], times * weights)
    return Cost(*(float(f"{price:.3g}") for price in prices))


def _solve_non_negative(matrix: F64, target: F64) -> F64:
    """Return the x >= 0 with the least |matrix x - target|: of six numbers all sets are tried."""
    count = matrix.shape[1]
    best, least = np.zeros(count), float(target @ target)
    for size in range(1, count + 1):
        for chosen in map(list, combinations(range(count), size)):
            found, *_ = np.linalg.lstsq(matrix[:, chosen], target, rcond=None)
            rest = target - matrix[:, chosen] @ found
            # A further number has to earn its place, or rounding would choose.
            if found.min() >= 0 and rest @ rest < 0.99 * least - 1e-12:
                best, least = np.zeros(count), float(rest @ rest)
                best[chosen] = found
    return best


def _node_overhead() -> float:
    """Return the microseconds that a node takes beyond what the profiler says; mostly negative.

    The profiler's own work counts with the kernels, and the runtime's between them does not.
    """
    rest: list[float] = []
    for length in (1, _LONG_CHAIN):
        net = chain_of(length)
        session = Session(net.model, threads=1, memory_arena=True)
        runs = []
        for _ in range(_MOST_RUNS):
            _MORE_THAN_A_CACHE.sum()
            start = time.perf_counter()
            session.runtime.run(None, dict(net.inputs))
            runs.append(1e6 * (time.perf_counter() - start))
        profile = _profile(net, 0.5)
        rest.append(fast_runs(runs) - 1e3 * profile.milliseconds)
    return (rest[1] - rest[0]) / (_LONG_CHAIN - 1)
