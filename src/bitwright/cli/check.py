"""`bitwright check`: a gate for CI, passed or failed by limits on accuracy, time and size."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import typer

from bitwright.cli import options as opt
from bitwright.cli.groups import arguments_of, complete_target, option
from bitwright.cli.screen import Facts, Screen
from bitwright.cli.tune import MISSED


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """What a quantized model is held against, and where the outcome goes."""

    samples: opt.DataOptions
    scoring: opt.ScoringOptions
    max_time: str = option(
        "RATIO", "The most time, beside the prepared float model: 1.0x; or any.", default="1.0x"
    )
    max_size: str = option(
        "SIZE", "The largest file: 30% of float's, or 20MB; or any.", default="100%"
    )
    target: str | None = option(
        "NAME", "Also hold it against the rules of this target.", autocompletion=complete_target
    )
    junit: Path | None = option("FILE", "Also write the outcome as JUnit XML.")
    summary: Path | None = option(
        "FILE", "Also put a table in Markdown behind this file, as behind $GITHUB_STEP_SUMMARY."
    )
    run: opt.RunOptions


def check_command(
    float_model: opt.FloatModel,
    quantized_model: opt.QuantizedModel,
    *,
    options: CheckOptions,
    screen: Screen,
) -> None:
    """Pass or fail a model by limits on accuracy, time and size.

    The exit code is 0 where it is within all of them, and 3 where it is not. --drop any, --max-time
    any and --max-size any leave a limit out.
    """
    from bitwright.api import check
    from bitwright.support.files import write_file

    log = partial(print, file=sys.stderr, flush=True) if screen.wants_progress else None
    given = arguments_of(options, "junit", "summary")
    found = check(float_model, quantized_model, log=log, **given)
    if options.junit is not None:
        write_file(options.junit, found.to_junit())
    if options.summary is not None:
        before = options.summary.read_text("utf-8") if options.summary.is_file() else ""
        write_file(options.summary, before + found.to_markdown())
    facts = [
        (f"{one.name} {'passed' if one.passed else 'FAILED'}", one.describe())
        for one in found.criteria
    ]
    document = {"float": str(float_model), "quantized": str(quantized_model), **found.to_dict()}
    screen.show(document, [*found.lines, Facts(facts)])
    if not found.passed:
        raise typer.Exit(MISSED)
