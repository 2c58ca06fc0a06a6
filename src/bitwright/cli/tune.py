"""`bitwright tune`: the smallest or fastest model that keeps the user's metric."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bitwright.cli import options as opt
from bitwright.cli.groups import REQUIRED, arguments_of, option, switch
from bitwright.cli.piping import refuse_pipe
from bitwright.cli.recipe_choice import RecipeChoice
from bitwright.cli.screen import Facts, Part, Screen, Table

if TYPE_CHECKING:
    from bitwright.jobs.tuning.result import TuneResult

MISSED = 3
"""The exit code where no model within the allowed drop was found, and the closest one is written;
or where a check fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """What is to be tuned for, by which samples, and where the result goes."""

    output: Path = option(
        "OUT", "Where to write the best model so far.", "--output", "-o", default=REQUIRED
    )
    samples: opt.DataOptions
    scoring: opt.ScoringOptions
    purpose: opt.Purpose = option(
        None,
        "What is saved: time, as measured here (balanced: with integers also where they only cost "
        "none), or bytes.",
        "--for",
        default=opt.Purpose.speed,
    )
    max_size: str | None = option(
        "SIZE", "With --for size: what loses least in 600MB or fewer, if that is within --drop."
    )
    keep_quantized: bool = switch(
        "A quantized model even where float is as fast here, for one that runs elsewhere."
    )
    time: str | None = option("TIME", "End with the best so far after 90s, 20m or 1.5h.")
    work: Path | None = option(
        "FOLDER",
        "Keep a journal here: an interrupted run goes on from it, and another --drop "
        "finds what was measured.",
    )
    report: Path | None = option(
        "PAGE", "Also write a report (.html): the front with its intervals, what changed and why."
    )
    recipe: RecipeChoice
    effort: opt.Effort = None
    external_data: opt.ExternalData = None
    run: opt.RunOptions

    def check(self, model: Path) -> None:
        """Refuse what cannot be tuned or written, before the search, not after it."""
        refuse_pipe(self.output, "it replaces its file with every better model")
        if self.samples.source() is None:
            raise typer.BadParameter("tuning calibrates; give --data")
        if self.report is not None:
            from bitwright.data import paths_of
            from bitwright.graph import check_destination

            files = [*paths_of(self.samples.source()), *self.scoring.files(), self.output]
            check_destination(self.report, source=model, others=files)

    def arguments(self, model: Path) -> dict[str, Any]:
        """Return the arguments of `bitwright.tune`, whose names most options have."""
        return arguments_of(self, "recipe", "report") | {
            "max_size": None if self.max_size is None else opt.read_size(self.max_size),
            "recipe": self.recipe.load(model),
            "target": self.recipe.target,
        }


def tune_command(model: opt.Model, *, options: TuneOptions, screen: Screen) -> None:
    """Quantize a model as far as a metric of yours allows.

    The figures at the end are of samples that the search has not seen.

    The exit code is 0 where the goal is met, and 3 where it is missed: then the closest model is
    written. Where nothing can stay quantized, that is the float model, and the goal is missed.
    """
    options.check(model)

    from bitwright.api import tune

    log = partial(print, file=sys.stderr, flush=True) if screen.wants_progress else None
    result = tune(model, log=log, **options.arguments(model))
    lines = result.lines(_next_command(result, model, options))
    parts: list[Part] = [Facts(result.facts())]
    parts += [Table(*section) for section in result.sections()]
    screen.show({**result.to_dict(), "lines": lines}, [*parts, *lines])
    if options.report is not None:
        from bitwright.jobs.report import save_report

        providers = options.run.provider or None
        save_report(result, options.report, **options.samples.arguments(), providers=providers)
    if not result.met:
        raise typer.Exit(MISSED)


def _next_command(result: TuneResult, model: Path, options: TuneOptions) -> str:
    """Return what to type next: the gate with the same limits, or what would say more."""
    if result.is_float:
        return shlex.join(["bitwright", str(model)])
    paths = shlex.join([str(model), str(result.path)])
    data = options.samples.words()
    if not result.met:
        return f"bitwright report {paths} -o report.html {data}"
    return f"bitwright check {paths} {data} {options.scoring.words()}"
