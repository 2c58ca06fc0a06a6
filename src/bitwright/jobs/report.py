"""The report of a quantized model: both models measured, tensor by tensor, on one HTML page."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import onnx_ir as ir

from bitwright import graph
from bitwright.assess import Comparison, Views, build_report_data, open_units, render_page
from bitwright.assess.clock import Clock, middle_sized, time_models
from bitwright.assess.report.advice import Advice, advise, say_verdict
from bitwright.assess.report.encodings import planned_weights, read_encodings
from bitwright.assess.report.subject import (
    ReportNode,
    ReportSubject,
    SuggestedFix,
    find_original_nodes,
)
from bitwright.assess.verdict import Verdict
from bitwright.data import RandomData, Sample, TextData, Transform, paths_of
from bitwright.decide.ranges.known import saturation_points
from bitwright.errors import DataError, OutputError, PlanError
from bitwright.graph.constants import float_constant_of
from bitwright.jobs.comparison import (
    Measuring,
    compare_with,
    load_quantized,
    open_float_side,
    recipe_of,
)
from bitwright.jobs.folder_data import with_configuration_beside
from bitwright.jobs.result import Result, advised_purpose
from bitwright.jobs.sensitivity import SENSITIVITY_SAMPLES, measure_sensitivity
from bitwright.jobs.timing import TOO_LONG, prepare_yardstick, why_untimed
from bitwright.jobs.tuning.result import TuneResult
from bitwright.observe import MEMORY_BUDGET, Engine, observe
from bitwright.plan import QuantPlan
from bitwright.recipe import Recipe, is_of_host
from bitwright.support import Array, Progress, Summarized, check_arguments, logged, write_file
from bitwright.targets import find_target
from bitwright.verification import verify_model

REPORT_SAMPLES = 16
"""How many samples are measured on, unless others are asked for: errors converge after a few."""
SENSITIVITY_NODES = 64
"""How many nodes are measured one by one at most: each is a run of what comes after it."""


@dataclass(frozen=True, slots=True, repr=False)
class Report(Summarized):
    """How good a quantized model is, where it loses accuracy, and what to try.

    `write_report` makes one:

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> result = bitwright.quantize(demo.model_path, data=demo.calibration[:8])
    >>> report = bitwright.write_report(
    ...     demo.model_path, result.model, data=demo.calibration[:2], latency=False
    ... )
    >>> report.verdict.level
    'good'
    """

    subject: ReportSubject

    @property
    def verdict(self) -> Verdict:
        """How good it is, in a word and in a sentence."""
        return self.subject.verdict()

    @property
    def lines(self) -> list[str]:
        """Whether it may be shipped, whether it is faster, and what to do next, each in a line."""
        return say_verdict(self.subject)

    @property
    def advice(self) -> list[Advice]:
        """What to try, the most promising first."""
        return advise(self.subject)

    def summary(self) -> str:
        """Return the verdict, and what to try."""
        tries = [
            f"{one.title}: {one.why}" + ("" if one.command is None else f" {one.command}")
            for one in self.advice
        ]
        return "\n".join([self.verdict.sentence, *self.lines, *tries])

    def to_dict(self) -> dict[str, Any]:
        """Return everything that the page shows as plain data."""
        return build_report_data(self.subject)

    def to_html(self) -> str:
        """Return the page: one HTML file that needs nothing else."""
        return render_page(self.to_dict())

    @check_arguments
    def save(self, path: str | Path) -> None:
        """Write the page: all of it, or nothing; and beside it the better plan, if there is one."""
        subject = _with_plan_beside(self.subject, path)
        if subject.suggested_fix is not None and subject.suggested_fix.proposal.nodes:
            subject.suggested_fix.proposal.plan.save(subject.suggested_fix.plan_name)
        write_file(Path(path), Report(subject).to_html())


@check_arguments
def write_report(  # noqa: PLR0913 - a public verb
    float_model: Any,
    quantized_model: Any,
    output: str | Path | None = None,
    *,
    data: Any = None,
    plan: QuantPlan | str | Path | None = None,
    limit: int | None = None,
    transform: Transform = None,
    latency: bool = True,
    sensitivity: bool = False,
    target: str | None = None,
    providers: Sequence[str] | None = None,
    memory_budget: int = MEMORY_BUDGET,
    engine: Engine | str | None = None,
    progress: Progress = True,
) -> Report:
    """Say how good a quantized model is, which nodes are worst and what to try, on one page.

    Args:
        float_model: a path, an `onnx.ModelProto` or an `onnx_ir.Model`; it is never changed.
        quantized_model: the same after quantizing, by whatever tool.
        output: where to write the page (one HTML file); None writes nothing.
        data: anything `bitwright.open_data` takes, or `RandomData()`.
        plan: the plan that made the quantized model, if there is one: it says why nodes are float.
        limit: use at most this many samples, 16 if not given.
        transform: how images become arrays, or a function that is given each item of the data.
        latency: also time it beside the prepared float model, which takes two seconds at most.
        sensitivity: also measure every node of the plan (the 64 with the largest error, of large
            models), and write a plan beside the page, as *.plan.json, in which the worst of them
            fall back to float.
        target: also say whether this target runs the model, as `verify` does: a name of
            `bitwright.TARGETS` or a file of your own.
        providers: execution providers of ONNX Runtime for every run.
        memory_budget: bytes of compared tensors that may be alive at once.
        engine: where samples and nodes are run: `"ray"` or `"ray://host:10001"` for a cluster, or
            a `bitwright.observe.RayEngine`; None: this process. The page is the same, and latency
            is measured here.
        progress: show a bar on a terminal, or call this with (samples done, samples in all).

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> result = bitwright.quantize(demo.model_path, data=demo.calibration[:32])
    >>> report = bitwright.write_report(
    ...     demo.model_path, result.model, data=demo.calibration[:4], latency=False
    ... )
    >>> report.verdict.level, report.advice[0].title
    ('good', 'Nothing to fix')
    """
    _check_target(target)
    if output is not None:
        others = [*paths_of(data), None if isinstance(plan, QuantPlan) else plan]
        for source in (float_model, quantized_model):
            graph.check_destination(output, source=source, others=others)
    plan_name = ""
    if plan is not None and not isinstance(plan, QuantPlan):
        plan_name = str(plan)
        plan = QuantPlan.load(plan)
        beside = None if output is None or not sensitivity else _plan_beside(output)
        if beside is not None and beside.resolve() == Path(plan_name).resolve():
            raise OutputError(
                f"the better plan would overwrite {plan_name!r}; give the page another name."
            )
    # What is in memory still knows the file of the float model that it was made from.
    named = None if isinstance(quantized_model, ir.Model) else quantized_model
    data = with_configuration_beside(float_model, data)
    given = (data, limit, transform, memory_budget, providers, engine, progress)
    with Measuring.connected(*given) as measuring:
        request = ReportRequest(
            source=float_model,
            quantized=load_quantized(quantized_model),
            names=(name_of(float_model, "model.onnx"), name_of(named, "quantized.onnx")),
            sizes=(graph.file_size(float_model), _size_of(quantized_model)),
            plan=plan,
            plan_name=plan_name,
            output=output,
            measuring=measuring,
            latency=latency,
            sensitivity=sensitivity,
            target=target,
        )
        report = make_report(request)
    if output is not None:
        report.save(output)
    return report


@check_arguments
def save_report(  # noqa: PLR0913 - a public verb
    result: Result | TuneResult,
    path: str | Path,
    *,
    data: Any = None,
    limit: int | None = None,
    transform: Transform = None,
    latency: bool = True,
    sensitivity: bool = False,
    target: str | None = None,
    providers: Sequence[str] | None = None,
) -> Report:
    """Write what `quantize` did as one HTML page, and return it.

    Without data, the samples that the result was measured on are used; that of `tune` needs data,
    and the page shows the front of its search, too. With `sensitivity` every node is measured, and
    a plan in which the worst fall back to float lies beside the page. With a `target` it also says
    whether that runs the model.

    >>> import bitwright, tempfile
    >>> demo = bitwright.load_demo()
    >>> result = bitwright.quantize(demo.model_path, data=demo.calibration[:32])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = bitwright.save_report(result, f"{folder}/report.html", latency=False)
    >>> report.verdict.level
    'good'
    """
    _check_target(target)
    graph.check_destination(path, source=result.source, others=paths_of(data))
    samples = result.evaluation if isinstance(result, Result) else ()
    if data is None and not samples:
        raise DataError("there are no samples to report on; give data.")
    used = samples if data is None else None
    request = ReportRequest(
        source=result.source,
        quantized=result.model,
        names=(name_of(result.source, "model.onnx"), str(result.path or "quantized.onnx")),
        sizes=_sizes_of(result),
        plan=result.plan,
        output=path,
        measuring=Measuring(data, limit, transform, samples=used, providers=providers),
        latency=latency,
        sensitivity=sensitivity,
        target=target,
        clock=result.clock if isinstance(result, Result) else result.point.clock,
        tuning=None if isinstance(result, Result) else result.to_dict(),
    )
    report = make_report(request)
    report.save(path)
    return report


def _sizes_of(result: Result | TuneResult) -> tuple[int, int]:
    """Return the bytes of the float model and of the quantized one."""
    if isinstance(result, Result):
        return result.float_size, result.size
    return graph.file_size(result.source), graph.written_size(result.model)


def _check_target(target: str | None) -> None:
    """Refuse a target that there is not before both models are run."""
    if target is not None:
        find_target(target)


def name_of(source: Any, otherwise: str) -> str:
    """Return what a user calls a model: its path, if it has one."""
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    path = graph.source_path(source) if isinstance(source, ir.Model) else None
    return otherwise if path is None else str(path)


def _size_of(source: Any) -> int:
    if isinstance(source, ir.Model):
        return graph.written_size(source)
    return graph.file_size(source)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest:
    """Which models a report is about, what is measured of them, and what it shows besides."""

    source: Any
    """The float model."""
    quantized: ir.Model
    names: tuple[str, str]
    sizes: tuple[int, int]
    plan: QuantPlan | None
    plan_name: str = ""
    output: str | Path | None = None
    measuring: Measuring
    latency: bool
    sensitivity: bool
    target: str | None = None
    clock: Clock | None = None
    """The time, where it was taken before."""
    tuning: Mapping[str, Any] | None = None

    def check(self) -> None:
        """Refuse what cannot be measured, before both models are run."""
        if self.sensitivity and self.plan is None:
            raise PlanError(
                "sensitivity tries out changes of the plan that made the quantized model; give "
                "that plan (`bitwright quantize --plan-out` writes it)."
            )
        self.measuring.check("a report runs both models")


@logged("make the report")
def make_report(request: ReportRequest) -> Report:
    """Run two models beside each other and return the report about the second."""
    request.check()
    quantized, plan, measuring = request.quantized, request.plan, request.measuring
    side = open_float_side(request.source, quantized, plan, measuring)
    opened = None if measuring.samples is not None else measuring.calibration.open(side.model)
    samples = measuring.samples or list(islice(opened or (), measuring.limit or REPORT_SAMPLES))
    comparison = compare_with(side, quantized, samples, plan, measuring)
    nodes, views = _look_at_tensors(side.model, quantized, comparison, plan, samples, measuring)
    originals = find_original_nodes(graph.load_model(request.source), comparison.nodes)
    nodes = [replace(node, in_file=found) for node, found in zip(nodes, originals, strict=True)]
    worst = [found.index for found in comparison.worst(len(nodes))]
    recipe = plan.recipe if plan is not None else recipe_of(quantized)
    clock = _time(request, samples, recipe)
    subject = ReportSubject(
        float_name=request.names[0],
        quantized_name=request.names[1],
        float_bytes=request.sizes[0],
        quantized_bytes=request.sizes[1],
        outputs=comparison.outputs,
        coverage=comparison.coverage,
        nodes=nodes,
        worst=[index for index in worst if nodes[index].measured.unmeasured is None],
        tensors=views.made,
        samples=comparison.samples,
        data="" if opened is None else opened.description,
        data_option=_data_option(measuring),
        clock=None if isinstance(clock, str) else clock,
        untimed=clock if isinstance(clock, str) else "",
        purpose="size" if recipe is None else advised_purpose(recipe),
        recipe=recipe,
        decided=comparison.decided,
        plan=plan,
        plan_name=request.plan_name,
        suggested_fix=_try_nodes(request, samples),
        tuning=request.tuning,
        target=_verify(quantized, request.target),
    )
    return Report(subject if request.output is None else _with_plan_beside(subject, request.output))


def _verify(quantized: ir.Model, target: str | None) -> Any:
    """Return what the rules of a target say, if one is given."""
    if target is None:
        return None
    # Verifying sorts and completes what it is given.
    return verify_model(graph.clone_model(quantized), target).summarize()


def _with_plan_beside(subject: ReportSubject, page: str | Path) -> ReportSubject:
    """Return the subject with the better plan, if any, named after the page that it lies beside."""
    if subject.suggested_fix is None:
        return subject
    beside = str(_plan_beside(page))
    return replace(subject, suggested_fix=replace(subject.suggested_fix, plan_name=beside))


def _plan_beside(page: str | Path) -> Path:
    return Path(page).with_suffix(".plan.json")


def _try_nodes(request: ReportRequest, samples: Sequence[Sample]) -> SuggestedFix | None:
    """Measure every node where that is asked for; return a plan in which the worst are float."""
    if request.plan is None or not request.sensitivity:
        return None
    few = replace(request.measuring, samples=samples[:SENSITIVITY_SAMPLES])
    found = measure_sensitivity(request.source, request.plan, few, candidates=SENSITIVITY_NODES)
    return SuggestedFix(sensitivity=found, proposal=found.proposal())


def _look_at_tensors(
    plain: ir.Model,
    quantized: ir.Model,
    comparison: Comparison,
    plan: QuantPlan | None,
    samples: Sequence[Sample],
    measuring: Measuring,
) -> tuple[list[ReportNode], Views]:
    """Return the nodes with their tensors: histograms, ranges and what these cut off."""
    encodings = read_encodings(open_units(plain, quantized))
    known = dict(graph.iter_values(plain))
    read = (one for found in encodings.values() for one in found if one.stored is None)
    activations = {one.tensor for one in read if one.tensor in known}
    seen = observe(
        plain,
        sorted(activations),
        samples,
        detail="histogram",
        memory_budget=measuring.memory_budget,
        providers=measuring.providers,
        engine=measuring.engine,
        progress=False,
    )

    def weight(name: str) -> Array | None:
        return float_constant_of(known.get(name))

    entries = () if plan is None else plan.tensors.values()
    planned = {} if plan is None else planned_weights(plan, weight)
    views = Views(
        seen.sketches,
        weight,
        {entry.tensor: entry.method for entry in entries},
        {name: saturation_points(known[name]) for name in activations},
    )
    made = {node.name: node for node in plain.graph.all_nodes()}
    nodes = []
    for node in comparison.nodes:
        unit = node.nodes or (node.name,)
        found = [one for name in unit for one in encodings.get(name, ())]
        found = found or planned.get(node.name, [])
        output = known.get(node.output)
        facts = _facts_of(made.get(node.name), output)
        sizes = output is not None and output.dtype == ir.DataType.INT64
        drawn = views.keys_of(found)
        nodes.append(ReportNode(measured=node, tensors=drawn, facts=facts, sizes=sizes))
    return nodes, views


_MAX_TEXT = 60


def _facts_of(node: ir.Node | None, output: ir.Value | None) -> list[tuple[str, str]]:
    """Return the shape of what a node makes, and its attributes, in words."""
    facts = []
    if output is not None and output.shape is not None:
        sizes = (str(dim if isinstance(dim, int) else dim.value or "?") for dim in output.shape)
        facts.append(("output", "x".join(sizes) or "one number"))
    for attribute in () if node is None else node.attributes.values():
        if attribute.type in _SHOWN:
            text = str(list(attribute.value) if attribute.type in _LISTS else attribute.value)
            facts.append((attribute.name, text[:_MAX_TEXT]))
    return facts


_LISTS = {ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS}
_SHOWN = _LISTS | {ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.STRING}


def _time(request: ReportRequest, samples: Sequence[Sample], recipe: Recipe | None) -> Clock | str:
    """Return the time beside the prepared float model's, or why this machine's CPU cannot tell."""
    if request.clock is not None:
        return request.clock
    elsewhere = request.target is not None and not is_of_host(request.target)
    why = why_untimed(request.plan, recipe, elsewhere=elsewhere)
    if why is not None or not request.latency:
        return why or "timing was switched off"
    providers, sample = request.measuring.providers, middle_sized(samples)
    side = prepare_yardstick(request.source, providers)
    reference = graph.load_model(request.source) if side is None else side.reference
    models = [reference, request.quantized]
    found = time_models(models, [sample, sample], providers=providers)
    return TOO_LONG if found is None else found[0]


def _shape_options(data: RandomData) -> list[str]:
    given = data.shapes if isinstance(data.shapes, Mapping) else {}
    return [
        f"--input-shape {shlex.quote(f'{name}={size}')}"
        for name, shape in given.items()
        for size in ["x".join(map(str, [shape] if isinstance(shape, int) else shape))]
    ]


def _data_option(measuring: Measuring) -> str:
    """Return the data as options of the command, where it can be said so."""
    data, transform = measuring.data, measuring.transform
    if isinstance(data, RandomData):
        return " ".join([f"--random-data {data.count}", *_shape_options(data)])
    if (
        isinstance(data, TextData)
        and isinstance(data.tokenizer, str | Path)
        and isinstance(data.text, str | Path)
    ):
        words = ["--data", str(data.text), "--tokenizer", str(data.tokenizer)]
        return shlex.join([*words, *(["--tokens", str(data.length)] if data.length else ())])
    if not isinstance(data, str | Path):
        return ""
    words = ["--data", shlex.quote(str(data))]
    if isinstance(transform, str):
        words += ["--transform", shlex.quote(transform)]
    return " ".join(words)
