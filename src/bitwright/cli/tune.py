"""`bitwright tune`: the smallest or fastest model that keeps the user's metric."""

from __future__ import annotations

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
from bitwright.support.wording import show_bytes

if TYPE_CHECKING:
    from bitwright.assess.judge.sequential import Drop
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
    screen.show(result.to_dict(), _parts(result))
    if options.report is not None:
        from bitwright.jobs.report import save_report

        providers = options.run.provider or None
        save_report(result, options.report, **options.samples.arguments(), providers=providers)
    if not result.met:
        raise typer.Exit(MISSED)


def _parts(result: TuneResult) -> list[Part]:
    point = result.point
    within = "" if result.max_size is None else f", in {show_bytes(result.max_size)}"
    facts = [
        ("Goal", f"{'met' if result.met else 'missed'}: at most {result.max_drop:.3g} of "
         f"{result.metric} below float's {result.float_score:.4g}{within}"),
        ("Drop, unseen samples", _show(result.final)),
        ("Drop, samples of the search", _show(point.measured)),
        result.show_saving(),
    ]  # fmt: skip
    facts += [(probe.name, _show(probe.measured)) for probe in result.probes]
    if result.stopped is not None:
        facts.append(("Stopped early", result.stopped))
    facts += [("Note", note) for note in result.notes]
    made = f"{result.evaluations} of at most {result.planned_evaluations}"
    facts += [
        ("Evaluations", f"{made}, in {result.seconds:.0f} s"),
        ("Written to", str(result.path)),
        ("Again", result.command),
    ]
    front = [
        (
            result.show_cost(one),
            _show(one.measured),
            one.verdict or "",
            str(len(one.fallen)),
            "chosen" if index == result.chosen else "",
        )
        for index, one in enumerate(result.points)
    ]
    fallen = [(unit.node, unit.op, unit.state, unit.reason) for unit in result.fallen]
    shares = [(name, f"{100 * share:.0f} %") for name, share in result.loss_units]
    return [
        Facts(facts),
        Table("The front", ("cost", "drop", "goal", "units changed", ""), front),
        Table("Units that are not as planned", ("node", "op", "state", "why"), fallen),
        *([] if result.met else [Table("Most of the error", ("node", "share"), shares)]),
    ]


def _show(found: Drop | None) -> str:
    return "not measured" if found is None else found.describe()
