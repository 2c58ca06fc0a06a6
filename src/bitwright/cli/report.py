"""`bitwright report`: how accurate a quantized model is and how to fix it, as one HTML file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bitwright.cli import options as opt
from bitwright.cli.groups import REQUIRED, arguments_of, complete_target, option, switch
from bitwright.cli.piping import refuse_pipe, written
from bitwright.cli.screen import Facts, Part, Screen, show_bytes

if TYPE_CHECKING:
    from bitwright.jobs.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReportSamples(opt.MeasuringOptions):
    limit: int | None = option("N", "Use at most N samples of the data, 16 by default.", min=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """What a report has in it, on which samples, and where it goes."""

    output: Path = option(
        "OUT", "Where to write the page (.html); - for a pipe.", "--output", "-o", default=REQUIRED
    )
    samples: _ReportSamples
    plan: opt.PlanPath = None
    latency: bool = option(
        None, "Also time both models, for seconds.", "--latency/--no-latency", default=True
    )
    sensitivity: bool = switch(
        "Also measure the sensitivity of every node of --plan, and write a plan in which "
        "the most sensitive ones stay float."
    )
    target: str | None = option(
        "NAME",
        "Also say whether this target runs it, and what is against it.",
        autocompletion=complete_target,
    )
    run: opt.RunOptions


def report_command(
    float_model: opt.FloatModel,
    quantized_model: opt.QuantizedModel,
    *,
    options: ReportOptions,
    screen: Screen,
) -> None:
    """Write a report on a quantized model: one HTML file."""
    given = arguments_of(options, "output")
    output = options.output
    if options.sensitivity:
        refuse_pipe(output, "with --sensitivity it also writes a plan")

    from bitwright.jobs.report import write_report

    with written(output, ".html") as file:
        progress = screen.wants_progress
        report = write_report(float_model, quantized_model, file, progress=progress, **given)
        document = {
            "float": str(float_model),
            "quantized": str(quantized_model),
            "level": report.verdict.level,
            "verdict": report.verdict.sentence,
            "lines": report.lines,
            "advice": [asdict(advice) for advice in report.advice],
            "sensitivity": report.to_dict()["sensitivity"],
            "target": report.to_dict()["target"],
            "output": str(output),
        }
        screen.show(document, _parts(report, output, file.stat().st_size))


def _parts(report: Report, output: Path, size: int) -> list[Part]:
    rows = []
    for advice in report.advice:
        rows.append((advice.title, advice.why))
        if advice.command is not None:
            rows.append(("Try", advice.command))
    target = report.subject.target
    if target is not None:
        rows.append(("Target", target["sentence"]))
    written = [("Written to", f"{output} ({show_bytes(size)})")]
    fix = report.subject.suggested_fix
    if fix is not None and fix.proposal.nodes:
        written.append(("Better plan", fix.plan_name))
    return [report.verdict.sentence, *report.lines, Facts(rows), Facts(written)]
