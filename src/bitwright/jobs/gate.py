"""The gate before a deployment: is a quantized model within the limits that a team set?"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple
from xml.etree import ElementTree

import onnx_ir as ir

from bitwright import graph
from bitwright.assess import Drop, verdict_lines
from bitwright.assess.clock import Clock, advise_on_time, fit_sample, middle_sized, time_models
from bitwright.data import LabelledSamples, RandomData
from bitwright.errors import ArgumentError, DataError
from bitwright.jobs.improve.journal import Journal
from bitwright.jobs.improve.metrics import Metric
from bitwright.jobs.improve.scorer import Runnable, Scorer
from bitwright.jobs.opening import input_specs
from bitwright.jobs.timing import prepare_yardstick
from bitwright.jobs.tuning.request import Goal, read_drop
from bitwright.run import Session
from bitwright.support import LOCAL, Engine, counted, printable, read_bytes, show_bytes
from bitwright.verification import verify_model

ANY = "any"
"""What switches a limit off."""
TIMED_SAMPLES = 8
_SHARES = ("top1", "top5", "agreement")
"""Metrics of which each sample is a share of the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLimits:
    """How far a quantized model may be from float; None: as far as it is."""

    drop: float | None
    is_share: bool
    """Whether the drop is in percent of a metric between 0 and 1."""
    relative: bool
    time: float | None
    """Times the prepared float model's."""
    size: float | None
    """Bytes, or below 1 a share of the float model's."""
    size_is_share: bool

    @classmethod
    def asked(
        cls, drop: float | str, relative: bool, time: float | str, size: float | str
    ) -> GateLimits:
        """Return the limits that a user's words say."""
        found, is_share = (None, False) if drop == ANY else read_drop(drop)
        percent = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", str(size).strip())
        if size == ANY:
            bound = None
        elif percent:
            bound = float(percent.group(1)) / 100
        else:
            bound = float(read_bytes(size if isinstance(size, str) else int(size)))
        share = is_share and not relative
        limits = {"drop": found, "is_share": share, "relative": relative, "size": bound}
        return cls(**limits, size_is_share=bool(percent), time=_read_ratio(time))  # type: ignore[arg-type]


def _read_ratio(time: float | str) -> float | None:
    if time == ANY:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(x|×|%)?", str(time).strip().lower())
    if found is None:
        raise ArgumentError(
            f"{str(time)!r} is no limit of time; write 1.0x, times what the prepared float model "
            f"takes, or {ANY!r}."
        )
    return float(found.group(1)) / (100 if found.group(2) == "%" else 1)


class Criterion(NamedTuple):
    """One limit, and what was found."""

    name: str
    passed: bool
    found: str
    limit: str
    note: str = ""
    """How sure that is, or why it failed."""

    def describe(self) -> str:
        """Return it in a line."""
        note = f"; {self.note}" if self.note else ""
        return f"{self.found} (limit: {self.limit}){note}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """Whether a quantized model is within its limits, and what is to be done if it is not.

    >>> size = Criterion("Size", False, "5 MB", "4 MB")
    >>> found = GateResult(criteria=[size], drop=None, clock=None, next="store fewer bits")
    >>> found.passed, found.lines[0]
    (False, 'Ship it: no: size')
    """

    criteria: Sequence[Criterion]
    drop: Drop | None
    clock: Clock | None
    next: str
    """What to do now."""

    @property
    def passed(self) -> bool:
        """Whether it is within all of them."""
        return all(one.passed for one in self.criteria)

    @property
    def lines(self) -> list[str]:
        """Whether it may be shipped, whether it is faster, and what to do, each in a line."""
        failed = [one.name.lower() for one in self.criteria if not one.passed]
        why = f"no: {' and '.join(failed)}" if failed else "yes, it is within every limit"
        return verdict_lines(why, self.clock or "no limit of time was given", self.next)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "passed": self.passed,
            "lines": self.lines,
            "criteria": [one._asdict() for one in self.criteria],
            "drop": None if self.drop is None else self.drop.to_dict(),
            "clock": None if self.clock is None else asdict(self.clock),
        }

    def to_junit(self) -> str:
        """Return JUnit XML: one test case for each limit."""
        suite = ElementTree.Element("testsuite", name="bitwright check")
        suite.set("tests", str(len(self.criteria)))
        suite.set("failures", str(sum(not one.passed for one in self.criteria)))
        for one in self.criteria:
            case = ElementTree.SubElement(
                suite, "testcase", classname="bitwright.check", name=one.name
            )
            kind = "system-out" if one.passed else "failure"
            ElementTree.SubElement(case, kind).text = printable(one.describe())
        ElementTree.indent(suite)
        return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)

    def to_markdown(self) -> str:
        """Return a page for the summary of a run in CI."""
        rows = [
            f"| {mark} {one.name} | {one.found} | {one.limit} | {one.note} |"
            for one in self.criteria
            for mark in ("✅" if one.passed else "❌",)
        ]
        head = ["| check | found | limit | |", "|---|---|---|---|"]
        title = f"### bitwright check: {'passed' if self.passed else 'failed'}"
        return (
            "\n".join([title, "", *head, *rows, "", *(f"{line}  " for line in self.lines)]) + "\n"
        )


@dataclass(frozen=True, kw_only=True)
class GateRequest:
    """Two models, the samples and the metric that tell them apart, and the limits."""

    float_model: Any
    quantized_model: Any
    limits: GateLimits
    samples: Callable[[Any], LabelledSamples] | None
    """Gives the samples for the float model's inputs; None: there are none."""
    metric: Callable[[bool], Metric]
    has_labels: bool
    target: str | None = None
    providers: Sequence[str] | None = None
    engine: Engine = LOCAL
    report: Callable[[str], None] = field(default=lambda line: None)


def check_model(request: GateRequest) -> GateResult:
    """Measure a quantized model beside float, and hold it against the limits."""
    limits = request.limits
    prepared = prepare_yardstick(request.float_model, request.providers)
    before = graph.load_model(request.float_model) if prepared is None else prepared.reference
    after, specs = graph.load_model(request.quantized_model), input_specs(before)
    if request.samples is None and limits.drop is not None:
        raise DataError(
            "how far accuracy falls is measured on samples",
            remedy="give data or eval_data, or max_drop='any'",
            command="give --eval PATH or --data PATH, or --drop any",
        )
    samples = None if request.samples is None else request.samples(specs)
    criteria: list[Criterion] = []
    drop = clock = None
    if limits.drop is not None and samples is not None:
        criterion, drop = _check_drop(request, before, after, samples)
        criteria.append(criterion)
    if limits.time is not None:
        drawn = list(RandomData(count=1).samples(specs)) if samples is None else [
            samples.feeds(index) for index in range(min(len(samples), TIMED_SAMPLES))
        ]  # fmt: skip
        models, fed = [before, after], [dict(middle_sized(drawn))] * 2
        found = time_models(models, fed, providers=request.providers, however_long=True)
        assert found is not None  # however long it takes
        clock = found[0]
        criteria.append(_check_time(clock, limits.time))
    if limits.size is not None:
        sizes = graph.file_size(request.float_model), graph.written_size(after)
        criteria.append(_check_size(sizes, limits))
    if request.target is not None:
        criteria.append(_check_target(after, request.target))
    if not criteria:
        raise ArgumentError("nothing is to be checked; give at least one limit, or a target.")
    return GateResult(criteria=criteria, drop=drop, clock=clock, next=_advise(criteria, clock))


def _check_drop(
    request: GateRequest, before: ir.Model, after: ir.Model, samples: LabelledSamples
) -> tuple[Criterion, Drop]:
    metric, limits = request.metric(request.has_labels or bool(samples.extra)), request.limits
    assert limits.drop is not None
    count, notes = len(samples), []
    if metric.name in _SHARES and not limits.relative and 0 < limits.drop < 1 / count:
        notes.append(
            f"{counted(count, 'sample')} cannot resolve {limits.drop:.2%}: one of them is "
            f"{1 / count:.1%}"
        )
        request.report(f"{notes[0]}; what can be told is whether more than none is lost")
    scorer = Scorer(
        metric,
        lambda: samples,
        range(count),
        Journal(None, {}),
        lambda: Runnable(None, before, request.providers),
        part="check",
        engine=request.engine,
    )
    score = scorer.float_score(whole=limits.relative)[0]
    goal = Goal(max_drop=limits.drop, relative=limits.relative, is_share=limits.is_share)
    limit = goal.limit(score)
    session = _Fitted(after, request.providers)
    drop = scorer.score("quantized", lambda: Runnable(session, after), limit, in_order=True).drop
    if not drop.is_sure(limit):
        needed = drop.needed_samples(limit)
        more = "" if needed is None else f"; about {counted(needed, 'sample')} would tell"
        notes.append(f"the interval holds the limit{more}")
    lost = f"{metric.name} falls by {drop.describe()}, of float's {score:.4g}"
    return Criterion("Accuracy", drop.mean <= limit, lost, f"{limit:.3g}", "; ".join(notes)), drop


class _Fitted:
    """A session that takes samples of the float model, in the types that its own model reads."""

    def __init__(self, model: ir.Model, providers: Sequence[str] | None) -> None:
        self._session, self._model = Session(model, providers=providers), model

    def run(self, feeds: Mapping[str, Any]) -> Any:
        return self._session.run(fit_sample(feeds, self._model))


def _check_time(clock: Clock, limit: float) -> Criterion:
    beyond = clock.ratio > limit
    fails = beyond and clock.low > limit
    note = "beyond it, and within what times differ by" if beyond and not fails else ""
    return Criterion("Time", not fails, clock.describe(), f"{limit:g} ×", note)


def _check_size(sizes: tuple[int, int], limits: GateLimits) -> Criterion:
    assert limits.size is not None
    before, after = sizes
    most = limits.size * before if limits.size_is_share else limits.size
    found = f"{show_bytes(after)}, {after / max(before, 1):.0%} of float's {show_bytes(before)}"
    limit = f"{limits.size:.0%}" if limits.size_is_share else show_bytes(int(limits.size))
    return Criterion("Size", after <= most, found, limit)


def _check_target(model: ir.Model, target: str) -> Criterion:
    found = verify_model(model, target, None)
    rules = list(dict.fromkeys(finding.rule for finding in found.errors))
    said = (
        f"{counted(len(rules), 'rule')} broken ({', '.join(rules)})"
        if rules
        else "every rule holds"
    )
    return Criterion("Target", found.passes(), said, target)


def _advise(criteria: Sequence[Criterion], clock: Clock | None) -> str:
    return "; ".join(_remedies(criteria, clock)) or (
        "ship it, and run this check on the machine where it will serve"
    )


def _remedies(criteria: Sequence[Criterion], clock: Clock | None) -> Iterator[str]:
    failed = {one.name for one in criteria if not one.passed}
    if "Accuracy" in failed:
        yield "'bitwright tune' with this metric and drop looks for a model within it"
    if "Time" in failed:
        yield advise_on_time("size" if clock is not None and clock.is_slower else "balanced")
    if "Size" in failed:
        yield "quantize with --for size, or store weights in fewer bits (--bits 4)"
    if "Target" in failed:
        yield "'bitwright retarget' writes it for that target"
