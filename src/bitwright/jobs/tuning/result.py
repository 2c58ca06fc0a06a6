"""The result of tuning: the front, the point that was chosen, and how sure its drop is."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import onnx_ir as ir

from bitwright import graph
from bitwright.assess import Clock, Drop, Interval, Verdict, may_ship, verdict_lines
from bitwright.plan import QuantPlan
from bitwright.recipe import Purpose
from bitwright.support import Section, Summarized, check_arguments, plain_fields
from bitwright.support.wording import show_bytes, show_milliseconds


@dataclass(frozen=True, slots=True)
class FallenUnit:
    """A unit that is not in its cheapest state, and why."""

    node: str
    op: str
    state: str
    reason: str
    nodes: tuple[str, ...] = ()
    """All nodes of the unit, which is named after the most important of them."""


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """One model of the front: what it costs, what it was expected to lose, and what it lost.

    >>> FrontPoint(cost=1.5, error=0.001).verdict is None
    True
    """

    cost: float
    """Milliseconds or bytes, as the costs of the CPU and the sizes of weights predict."""
    error: float | None
    """Noise over signal of the outputs, as the errors of the units predict; None: those were not
    measured, as the plan met the goal as it is."""
    fallen: tuple[FallenUnit, ...] = ()
    """What is not in its cheapest state."""
    measured_cost: float | None = None
    """Milliseconds or bytes of the model itself; None: it was not made."""
    clock: Clock | None = None
    """Its time beside the prepared float model's; None: cost is in bytes, or it was not made."""
    measured: Drop | None = None
    """How far the metric fell on samples of the search; None: it was not evaluated."""
    verdict: Verdict | None = None
    """Whether it is within the allowed drop."""
    refined: bool = False
    """Whether it is a step back from a point of the front."""

    @property
    def cost_spread(self) -> tuple[float, float] | None:
        """The interval of its milliseconds; None: cost is in bytes, or it was not made."""
        return None if self.clock is None else self.clock.interval_ms

    @property
    def known_cost(self) -> float:
        """The measured cost where there is one, else the predicted one."""
        return self.cost if self.measured_cost is None else self.measured_cost

    def to_dict(self) -> dict[str, Any]:
        """Return the point as plain data."""
        figures = ("cost", "error", "measured_cost", "cost_spread", "clock", "measured")
        fallen = [plain_fields(unit, "node", "op", "state", "reason") for unit in self.fallen]
        return {**plain_fields(self, *figures, "verdict", "refined"), "fallen": fallen}


@dataclass(frozen=True, slots=True)
class Probe:
    """What weights alone, or activations alone, lose when they are quantized."""

    name: str
    """W8A32: only weights are quantized; A8W32: only activations are."""
    measured: Drop
    passes: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the probe as plain data."""
        return {"name": self.name, **self.measured.to_dict(), "passes": self.passes}


@dataclass(slots=True, kw_only=True, repr=False)
class TuneResult(Summarized):
    """The cheapest model that was found within the allowed drop, or else the closest one.

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> result = bitwright.tune(demo.model_path, data=demo.calibration[:64], max_drop="5%",
    ...                         eval_data=demo.images[:64], labels=demo.labels[:64], effort="low")
    >>> result.met, result.metric
    (True, 'top1')
    """

    _heading = "Tuned model"

    met: bool
    """Whether the model that was chosen is within the allowed drop, and quantized."""
    is_float: bool
    """Whether nothing of the model is quantized: then it saves nothing, and meets no goal."""
    metric: str
    max_drop: float
    """How far the metric may fall, in its own units."""
    max_size: int | None = None
    """How many bytes the model may have; None: as few as the drop allows, or time is saved."""
    purpose: Purpose
    """What cost is: milliseconds for "speed" and "balanced", bytes for "size"."""
    float_score: float
    """The metric of float, on as many samples of the search as any model was evaluated on."""
    float_cost: float
    """Milliseconds of the prepared float model, or bytes of the float model's file."""
    points: tuple[FrontPoint, ...]
    """The front, the cheapest first, with the steps back from it that were tried."""
    chosen: int
    """Which of the points the model is."""
    final: Drop | None
    """The drop on samples that the search never saw; None: it was not measured."""
    probes: tuple[Probe, ...]
    loss_units: tuple[tuple[str, float], ...]
    """The units that make most of the error with all quantized, and their shares of it."""
    evaluations: int
    """How many models were run on samples, those of the journal not counted."""
    planned_evaluations: int
    """How many it could have been at most, as told before the search."""
    seconds: float
    stopped: str | None
    """Why the search ended before it was through; None: it was not cut short."""
    notes: tuple[str, ...]
    model: ir.Model = field(repr=False)
    plan: QuantPlan = field(repr=False)
    command: str | None
    """What makes the same model again, from the plan in the work folder; None: there is none."""
    source: Any = field(default=None, repr=False)
    path: Path | None = None

    @property
    def point(self) -> FrontPoint:
        """The point that was chosen."""
        return self.points[self.chosen]

    @property
    def fallen(self) -> tuple[FallenUnit, ...]:
        """The units of the model that are not in their cheapest state."""
        return self.point.fallen

    @property
    def drop(self) -> float | None:
        """The drop to report: that on samples that the search never saw."""
        return None if self.final is None else self.final.drop

    @property
    def interval(self) -> Interval | None:
        """Of that drop, with a confidence of 95 %."""
        return None if self.final is None else self.final.interval

    @property
    def ship(self) -> str:
        """Whether the model may be shipped, and why."""
        clock = self.point.clock
        if self.is_float:
            return may_ship("float")
        if not self.met:
            return f"no, the goal of {self.max_drop:.3g} of {self.metric} is missed"
        if clock is not None and clock.is_slower:
            return may_ship("slow")
        samples = "samples of the search" if self.final is None else "samples it has never seen"
        return f"yes, {self.metric} is within the allowed drop on {samples}"

    def lines(self, next_step: str | None = None) -> list[str]:
        """Return whether the model may be shipped, whether it is faster, and what to do next."""
        untimed = "it is tuned for size" if self.purpose == "size" else "it is the float model"
        return verdict_lines(self.ship, self.point.clock or untimed, next_step)

    @check_arguments
    def save(self, path: str | Path, *, external_data: bool | None = None) -> None:
        """Write the model: all of it, or nothing."""
        graph.check_destination(path, source=self.source)
        graph.save_model(self.model, path, external_data=external_data)
        self.path = Path(path)

    def show_cost(self, point: FrontPoint) -> str:
        """Return in words what a point costs; a time has its interval, or is called predicted."""
        if self.purpose == "size":
            return show_bytes(round(point.known_cost))
        return show_milliseconds(point.known_cost, point.cost_spread)

    def show_saving(self) -> tuple[str, str]:
        """Return what is saved, and how much of it float and the model take."""
        now, clock = self.point.known_cost, self.point.clock
        if clock is None:
            return "Size", f"{show_bytes(round(self.float_cost))} -> {show_bytes(round(now))}"
        return "Milliseconds", f"{clock.float_ms:.3g} -> {now:.3g}"

    def facts(self) -> list[tuple[str, str]]:
        """Return what was found: names, and what is to be said of each."""
        within = "" if self.max_size is None else f", in {show_bytes(self.max_size)}"
        facts = [
            ("Goal", f"{'met' if self.met else 'missed'}: at most {self.max_drop:.3g} of "
             f"{self.metric} below float's {self.float_score:.4g}{within}"),
            ("Drop, unseen samples", _show(self.final)),
            ("Drop, samples of the search", _show(self.point.measured)),
            self.show_saving(),
        ]  # fmt: skip
        facts += [(probe.name, _show(probe.measured)) for probe in self.probes]
        facts += [] if self.stopped is None else [("Stopped early", self.stopped)]
        facts += [("Note", note) for note in self.notes]
        made = f"{self.evaluations} of at most {self.planned_evaluations}"
        facts.append(("Evaluations", f"{made}, in {self.seconds:.0f} s"))
        facts += [] if self.path is None else [("Written to", str(self.path))]
        return facts if self.command is None else [*facts, ("Again", self.command)]

    def summary(self) -> str:
        """Return what was found, in a few lines."""
        lines = [f"{name}: {text}" for name, text in self.facts()]
        lines += [f"{node} ({op}) is {state}: {why}" for node, op, state, why in self.changed()]
        if not self.met and self.loss_units:
            shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in self.loss_units)
            lines.append(f"Most of the error comes from {shares}")
        return "\n".join([*lines, *self.lines()])

    def changed(self) -> list[tuple[str, str, str, str]]:
        """Return (nodes, op types, state, why) of what is not as planned, what is alike in one."""
        alike: dict[tuple[str, str], list[FallenUnit]] = {}
        for unit in self.fallen:
            alike.setdefault((unit.state, unit.reason), []).append(unit)
        rows = []
        for (state, reason), units in alike.items():
            more = f" and {len(units) - 1} more" if len(units) > 1 else ""
            ops = ", ".join(dict.fromkeys(unit.op for unit in units))
            rows.append((f"{units[0].node}{more}", ops, state, reason))
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the model as plain data."""
        shown = [one.name for one in fields(self) if one.repr and one.name != "path"]
        loss_units = [{"node": name, "share": share} for name, share in self.loss_units]
        found = plain_fields(self, *shown, "ship", output="path") | {"loss_units": loss_units}
        return found | {"lines": self.lines(), "changed": self.changed()}

    def sections(self, *, verbose: bool = False) -> list[Section]:
        """Return the front, what is not as planned, and what loses most if the goal is missed."""
        front = [
            (
                self.show_cost(one),
                _show(one.measured),
                one.verdict or "",
                str(len(one.fallen)),
                "chosen" if index == self.chosen else "",
            )
            for index, one in enumerate(self.points)
        ]
        shares = [(name, f"{100 * share:.0f} %") for name, share in self.loss_units]
        columns = ("node", "op", "state", "why")
        found: list[Section] = [
            ("The front", ("cost", "drop", "goal", "units changed", ""), front),
            ("Units that are not as planned", columns, self.changed()),
        ]
        return found if self.met else [*found, ("Most of the error", ("node", "share"), shares)]


def _show(found: Drop | None) -> str:
    return "not measured" if found is None else found.describe()
