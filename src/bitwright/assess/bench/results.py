"""Results of a benchmark: the figures of each model, and the nodes that became slower."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bitwright.assess.bench.profile import NodeTime, Profile
from bitwright.assess.clock import Clock
from bitwright.support import Section, Summarized, counted, data_frame, plain_fields
from bitwright.support.wording import show_bytes, show_ratio

_MIN_SHARE = 0.01
"""Smallest share of a model's time at which a node is listed."""
_MIN_SLOWDOWN = 1.1
_MOST_ROWS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBenchmark:
    """The figures of one model.

    >>> figures = ModelBenchmark(
    ...     name="m.onnx", size=100, times=(1.0, 2.0, 3.0), items=8.0, open_seconds=0.1,
    ...     peak_memory=None, runtime_memory=None, memory_source="", profile=None)
    >>> figures.median, figures.mean, figures.throughput
    (2.0, 2.0, 4000.0)
    """

    name: str
    size: int
    """Bytes on disk, external data included."""
    times: tuple[float, ...]
    """Milliseconds of each run, in the order they ran."""
    items: float
    """Samples in one run: the size of the leading dimension."""
    open_seconds: float
    """How long ONNX Runtime took to read and optimize the model."""
    peak_memory: int | None
    """The most bytes that the model's process held; None where the system does not tell."""
    runtime_memory: int | None
    """The part of it that Python and ONNX Runtime took before there was a model."""
    memory_source: str
    """How the memory was measured, or why not."""
    profile: Profile | None
    clocks: tuple[Clock, ...] = ()
    """Its time beside the first model's: by the seconds that pass on the threads asked for, and by
    what a core works on one thread."""

    @property
    def median(self) -> float:
        """Milliseconds of the run in the middle."""
        return statistics.median(self.times)

    @property
    def p10(self) -> float:
        """Milliseconds that one of ten runs stays below."""
        return float(np.percentile(self.times, 10))

    @property
    def p90(self) -> float:
        """Milliseconds that nine of ten runs stay below."""
        return float(np.percentile(self.times, 90))

    @property
    def mean(self) -> float:
        """Milliseconds of a run on average."""
        return statistics.fmean(self.times)

    @property
    def throughput(self) -> float:
        """Samples in a second."""
        return 1000 * self.items / self.mean

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return {
            "model": self.name,
            "bytes": self.size,
            "runs": len(self.times),
            "median_ms": self.median,
            "p90_ms": self.p90,
            "mean_ms": self.mean,
            "samples_per_run": self.items,
            "samples_per_second": self.throughput,
            "open_seconds": self.open_seconds,
            "peak_memory_bytes": self.peak_memory,
            "runtime_memory_bytes": self.runtime_memory,
            "memory_source": self.memory_source,
            "beside_first": [clock.to_dict() for clock in self.clocks],
            "profile": None if self.profile is None else self.profile.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class SlowerNode:
    """A node that takes longer than in the first model."""

    name: str
    op: str
    before: float
    """Milliseconds in the first model."""
    after: float
    reason: str


@dataclass(frozen=True, slots=True, repr=False)
class Benchmark(Summarized):
    """Models side by side; the first is what the others are held against.

    >>> shared = dict(items=1, open_seconds=0.1, peak_memory=None, runtime_memory=None,
    ...     memory_source="", profile=None)
    >>> slow = ModelBenchmark(name="float.onnx", size=400, times=(6.0,), **shared)
    >>> fast = ModelBenchmark(name="int8.onnx", size=100, times=(2.0,), **shared)
    >>> both = Benchmark((slow, fast), data="random", threads=1, providers=())
    >>> both.speedup(), both.shrinkage()
    (3.0, 4.0)
    """

    models: tuple[ModelBenchmark, ...]
    data: str
    threads: int | None
    providers: tuple[str, ...]
    prepared: bool = False
    """Whether the first ran as it is after our float passes."""

    @property
    def yardstick(self) -> str:
        """What the others are held against."""
        return f"the prepared {self.models[0].name}" if self.prepared else self.models[0].name

    def speedup(self, index: int = 1) -> float:
        """Return how many times faster a model is than the first; below 1 it is slower."""
        return self.models[0].median / self.models[index].median

    def shrinkage(self, index: int = 1) -> float:
        """Return how many times smaller a model's file is than that of the first."""
        return self.models[0].size / max(self.models[index].size, 1)

    @property
    def detail(self) -> str:
        """How it was measured, in a line."""
        threads = "all cores" if self.threads is None else counted(self.threads, "thread")
        runs = "/".join(str(len(model.times)) for model in self.models)
        providers = ", ".join(self.providers)
        first = f", {self.models[0].name} after our float passes" if self.prepared else ""
        first += ", one thread by CPU time" if any(m.clocks for m in self.models) else ""
        return f"median of {runs} interleaved runs, {threads}, {providers}, {self.data}{first}"

    def slower_nodes(self, index: int = 1) -> list[SlowerNode]:
        """Return the nodes that became slower than in the first model, the worst first.

        Nodes are matched by name. A difference below a hundredth of the first model's time, or a
        tenth of the node's, is none.
        """
        first, other = self.models[0].profile, self.models[index].profile
        if first is None or other is None:
            return []
        before = {node.name: node for node in first.nodes}
        least = _MIN_SHARE * first.milliseconds
        found = [
            SlowerNode(now.name, now.op, was.milliseconds, now.milliseconds, _why(now, was))
            for now in other.nodes
            if (was := before.get(now.name)) is not None
            and now.kind != "quantizer"
            and now.milliseconds - was.milliseconds > least
            and now.milliseconds > _MIN_SLOWDOWN * was.milliseconds
        ]
        return sorted(found, key=lambda node: node.before - node.after)

    def float_nodes(self, index: int = 1) -> list[NodeTime]:
        """Return the nodes between pairs that run in float, with the reason, the longest first."""
        profile = self.models[index].profile
        if profile is None:
            return []
        found = [node for node in profile.nodes if node.reason is not None]
        return sorted(found, key=lambda node: -node.milliseconds)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        models = [self._row(index) for index in range(len(self.models))]
        return plain_fields(self, "data", "threads", "providers") | {"models": models}

    def _row(self, index: int) -> dict[str, Any]:
        row = self.models[index].to_dict()
        row["runs_in_float"] = [asdict(node) for node in self.float_nodes(index)]
        if index:
            row["speedup"] = self.speedup(index)
            row["shrinkage"] = self.shrinkage(index)
            row["slower"] = [asdict(node) for node in self.slower_nodes(index)]
        return row

    def to_pandas(self) -> Any:
        """Return the figures as a table with a row for each model; needs pandas."""
        hidden = ["profile", "runs_in_float", "slower", "beside_first"]
        table = data_frame(self.to_dict()["models"]).set_index("model")
        return table.drop(columns=hidden, errors="ignore")

    def summary(self) -> str:
        """Return the time of a run of each model, in a line each."""
        lines = []
        for model in self.models:
            line = f"{model.name}: {model.median:.3f} ms (90 % within {model.p90:.3f} ms)"
            lines.append(
                "; ".join([line, *(clock.describe(self.yardstick) for clock in model.clocks)])
            )
        return "\n".join([*lines, f"Measured: {self.detail}"])

    def sections(self, *, verbose: bool = False) -> list[Section]:
        """Return the figures, those beside the first, and where the time goes."""
        columns = ("model", "median ms", "p90 ms", "mean ms", "samples/s", "size", "memory", "runs")
        figures = [
            (
                model.name,
                f"{model.median:.3f}",
                f"{model.p90:.3f}",
                f"{model.mean:.3f}",
                f"{model.throughput:.1f}",
                show_bytes(model.size),
                "-" if model.peak_memory is None else show_bytes(model.peak_memory),
                str(len(model.times)),
            )
            for model in self.models
        ]
        ratios = [
            (
                model.name,
                *(f"{clock.figure()} {clock.interval()}" for clock in model.clocks),
                show_ratio(self.shrinkage(index), "smaller", "larger"),
            )
            for index, model in enumerate(self.models)
            if index
        ]
        clocks = (f"time, {clock.where}" for clock in self.models[-1].clocks)
        found: list[Section] = [
            ("Models", columns, figures),
            (f"Against {self.yardstick}", ("model", *clocks, "size"), ratios),
        ]
        for index in range(len(self.models)):
            found += self._profile_sections(index, None if verbose else _MOST_ROWS)
        return found

    def _profile_sections(self, index: int, most: int | None) -> list[Section]:
        """Return which ops of a model take the time, and which nodes more than they should."""
        model = self.models[index]
        if model.profile is None:
            return []
        ops = [
            (
                row.op,
                row.kind,
                str(row.nodes),
                f"{row.milliseconds:.3f}",
                f"{100 * row.share:.1f} %",
            )
            for row in model.profile.by_op()
        ]
        floats = [
            (node.name, node.op, f"{node.milliseconds:.3f}", node.reason or "")
            for node in self.float_nodes(index)
        ]
        slower = [
            (node.name, node.op, f"{node.before:.3f}", f"{node.after:.3f}", node.reason)
            for node in (self.slower_nodes(index) if index else ())
        ]
        in_float = f"Between pairs, but in float: {model.name}{_more(floats, most)}"
        behind = f"Slower than in {self.models[0].name}: {model.name}{_more(slower, most)}"
        columns = ("node", "ran as", "before, ms", "now, ms", "because")
        return [
            (f"Time by op: {model.name}", ("op", "kind", "nodes", "ms", "share"), ops[:most]),
            (in_float, ("node", "ran as", "ms", "because"), floats[:most]),
            (behind, columns, slower[:most]),
        ]


def _more(rows: Sequence[Sequence[str]], most: int | None) -> str:
    hidden = 0 if most is None else len(rows) - most
    return f" (and {hidden} more; --verbose names all)" if hidden > 0 else ""


def _why(node: NodeTime, was: NodeTime) -> str:
    if node.reason is not None:
        return f"it runs in float: {node.reason}"
    if node.kind == "integer":
        return f"the integer kernel {node.op} is slower here than {was.op}"
    if node.op != was.op:
        return f"it runs as {node.op}, and ran as {was.op}"
    return "it runs in float in both, but is fused or laid out otherwise"
