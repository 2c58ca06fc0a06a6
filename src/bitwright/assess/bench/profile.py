"""Profiles: ONNX Runtime's own times of every node, under the model's names."""

from __future__ import annotations

import statistics
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import onnx_ir as ir

from bitwright.data import Sample
from bitwright.decide.ops import op_types
from bitwright.decide.ops.unfused import LINEAR_QUANTIZERS, find_unfused
from bitwright.graph.quantized_ops import is_integer_op
from bitwright.run import OptimizedModel, Session, name_nodes, read_optimized
from bitwright.support.scratch import ScratchFolder

Typical = Callable[[Sequence[float]], float]
Kind = Literal["integer", "float", "quantizer", "layout", "moving"]

_MAX_EVENTS = 20_000
_MIN_RUNS, _MAX_RUNS = 3, 50
# Nodes that the runtime puts in to please a kernel, and that compute nothing.
_LAYOUT = frozenset({"Cast", "MemcpyFromHost", "MemcpyToHost", "ReorderInput", "ReorderOutput",
                     "Reshape", "Transpose"})  # fmt: skip
_MOVING = op_types(lambda op: op.moves) | {"Shape"}

_QUANTIZED_TYPES = frozenset({"int4", "int8", "int16", "uint4", "uint8", "uint16"})


class Ran(NamedTuple):
    """What the runtime ran for a node: the op, and the type of its first input."""

    op: str
    reads: str


@dataclass(frozen=True, slots=True)
class NodeTime:
    """One node as it ran."""

    name: str
    """Its name in the model; for nodes that the runtime added, the runtime's name."""
    op: str
    """What ran, such as QLinearConv for a Conv between pairs."""
    kind: Kind
    """Integer or float arithmetic; a quantizer left over; layout that the runtime added; moving
    of values, which has no arithmetic."""
    milliseconds: float
    reason: str | None = None
    """Why it ran in float, where pairs around it asked for integers."""
    behind: str | None = None
    """For nodes that the runtime added, the node of the model that they stand behind."""


@dataclass(frozen=True, slots=True)
class OpTime:
    """All nodes of one op together."""

    op: str
    kind: Kind
    nodes: int
    milliseconds: float
    share: float


@dataclass(frozen=True, slots=True)
class Profile:
    """The time of every node in one run (the median over runs), in the order of the graph."""

    nodes: tuple[NodeTime, ...]
    runs: int

    @property
    def milliseconds(self) -> float:
        """All nodes together; profiling itself takes time too, so this is above the latency."""
        return sum(node.milliseconds for node in self.nodes)

    def by_op(self) -> list[OpTime]:
        """Return the time of each op, the longest first."""
        groups: dict[tuple[str, Kind], list[float]] = defaultdict(list)
        for node in self.nodes:
            groups[node.op, node.kind].append(node.milliseconds)
        whole = self.milliseconds or 1.0
        rows = [
            OpTime(op, kind, len(times), sum(times), sum(times) / whole)
            for (op, kind), times in groups.items()
        ]
        return sorted(rows, key=lambda row: -row.milliseconds)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "runs": self.runs,
            "milliseconds": self.milliseconds,
            "ops": [asdict(row) for row in self.by_op()],
            "nodes": [asdict(node) for node in self.nodes],
        }


def profile_models(
    models: Sequence[ir.Model],
    samples: Sequence[Sequence[Sample]],
    *,
    threads: int | None = None,
    providers: Sequence[str] | None = None,
    seconds: float = 3.0,
    most: int = _MAX_RUNS,
    typical: Typical = statistics.median,
    before: Callable[[], object] = lambda: None,
) -> list[Profile]:
    """Run models alternately under the runtime's profiler; its files are gone afterwards.

    They run for about `seconds` each, three times at least, and `most` times at most, each time
    after a call of `before`. `typical` makes one time of a node's times in all runs.
    """
    with ScratchFolder("profile") as scratch:
        opened = [
            _Profiled(model, feeds, scratch.path / str(index), threads, providers)
            for index, (model, feeds) in enumerate(zip(models, samples, strict=True))
        ]
        runs = min(most, *(each.affordable_runs for each in opened))
        end = time.perf_counter() + seconds * len(opened)
        for run in range(runs + 1):  # the first is not counted
            if run > _MIN_RUNS and time.perf_counter() > end:
                break
            for each in opened:
                before()
                each.run(run)
        return [each.finish(typical) for each in opened]


class _Profiled:
    """A model open under the profiler."""

    def __init__(
        self,
        model: ir.Model,
        samples: Sequence[Sample],
        folder: Path,
        threads: int | None,
        providers: Sequence[str] | None,
    ) -> None:
        folder.mkdir()
        named = name_nodes(model)
        path = folder / "optimized.onnx"
        self._session = Session(
            named,
            threads=threads,
            providers=providers,
            memory_arena=True,
            optimized_to=path,
            profile_to=folder / "profile",
        )
        self._optimized = OptimizedModel(named, read_optimized(path))
        self._samples = samples

    @property
    def affordable_runs(self) -> int:
        """How many runs give a file that is still quickly read."""
        nodes = sum(1 for _ in self._optimized.model.graph.all_nodes())
        return max(_MIN_RUNS, _MAX_EVENTS // max(nodes, 1))

    def run(self, index: int) -> None:
        self._session.run(self._samples[index % len(self._samples)])

    def finish(self, typical: Typical) -> Profile:
        written = Path(self._session.runtime.end_profiling()).read_bytes()
        times, ran, runs = read_events(_EVENTS.decode(written), typical)
        origins = self._optimized.origins()
        unfused = find_unfused(self._optimized)
        nodes = []
        seen = set()
        known: dict[ir.Node, str | None] = {}
        """Node -> the one of the model that it is, or stands behind."""
        given = _given_names(self._optimized.model, times)
        for node in self._optimized.model.graph.all_nodes():
            key = node.name or given.get(node)
            makers = (value.producer() for value in node.inputs if value is not None)
            behind = next((known[maker] for maker in makers if maker in known), None)
            known[node] = origins[node].name if node in origins else behind
            if not key or key not in times:
                continue
            seen.add(key)
            origin, found = origins.get(node), unfused.get(node)
            kind = _kind(node, origin, ran[key].reads)
            # What reorders a result (x86 has its own layouts) makes the tensor of the node before.
            name = None if origin is None or kind == "layout" else origin.name
            reason = None if found is None else found.reason
            added = behind if name is None else None
            nodes.append(NodeTime(name or key, ran[key].op, kind, times[key], reason, added))
        # Other providers run whole pieces of the graph as one node that no file shows.
        nodes += [
            NodeTime(name, ran[name].op, "float", time)
            for name, time in times.items()
            if name not in seen
        ]
        return Profile(tuple(nodes), runs)


def _given_names(model: ir.Model, times: Mapping[str, float]) -> dict[ir.Node, str]:
    """Return the names under which the runtime timed nodes that have none.

    What it makes of an op that is a function has no names; it times them as their op and a number,
    which grows with them.
    """
    unnamed: dict[str, list[ir.Node]] = defaultdict(list)
    taken = set()
    for node in model.graph.all_nodes():
        taken.add(node.name)
        if not node.name:
            unnamed[node.op_type].append(node)
    numbered: dict[str, list[int]] = defaultdict(list)
    for name in times:
        op, _, number = name.rpartition("_")
        if name not in taken and op in unnamed and number.isdigit():
            numbered[op].append(int(number))
    return {
        node: f"{op}_{number}"
        for op, nodes in unnamed.items()
        if len(nodes) == len(numbered[op])
        for node, number in zip(nodes, sorted(numbered[op]), strict=True)
    }


class Facts(msgspec.Struct, frozen=True):
    """What the runtime says of a node that it ran."""

    op_name: str | None = None
    input_type_shape: list[dict[str, msgspec.Raw]] = []


class Event(msgspec.Struct, frozen=True):
    """One line of the runtime's file; a file has one for each node and run."""

    name: str
    cat: str = ""
    ts: float = 0
    """Microseconds since it began, and the time it took."""
    dur: float = 0
    args: Facts = Facts()


_EVENTS = msgspec.json.Decoder(list[Event])
_KERNEL = "_kernel_time"


def read_events(
    events: Sequence[Event], typical: Typical = statistics.median
) -> tuple[dict[str, float], dict[str, Ran], int]:
    """Return node -> milliseconds in a run, node -> what ran, and the number of runs.

    The first run is left out. A node's time is the typical one over runs of all it took in each,
    as the body of a loop runs more than once.
    """
    starts = sorted(event.ts for event in events if event.name == "model_run")
    runs = max(len(starts) - 1, 1)
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0] * runs)
    ran: dict[str, Facts] = {}
    for event in events:
        if event.cat != "Node" or not event.name.endswith(_KERNEL):
            continue
        run = bisect_right(starts, event.ts) - 2
        if run >= 0 and event.args.op_name is not None:
            totals[event.name][run] += event.dur / 1e3
            ran[event.name] = event.args
    times = {name.removesuffix(_KERNEL): typical(found) for name, found in totals.items()}
    kinds = {name.removesuffix(_KERNEL): _what_ran(facts) for name, facts in ran.items()}
    return times, kinds, runs


def _what_ran(facts: Facts) -> Ran:
    types = facts.input_type_shape or [{}]
    return Ran(facts.op_name or "", next(iter(types[0]), ""))


def _kind(node: ir.Node, origin: ir.Node | None, reads: str) -> Kind:
    if node.op_type in LINEAR_QUANTIZERS:
        return "quantizer"
    if is_integer_op(node.op_type):
        return "integer"
    if node.op_type in _LAYOUT and (origin is None or origin.op_type != node.op_type):
        return "layout"
    if node.op_type in _MOVING:
        return "moving"
    return "integer" if reads in _QUANTIZED_TYPES else "float"
