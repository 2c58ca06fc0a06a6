"""`bitwright sensitivity`: the most sensitive nodes, and a plan in which they stay float."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from bitwright.cli import options as opt
from bitwright.cli.groups import REQUIRED, arguments_of, option
from bitwright.cli.piping import STANDARD_OUTPUT, written
from bitwright.cli.screen import Facts, Part, Screen, Table

if TYPE_CHECKING:
    from bitwright.assess import Proposal, Sensitivity

_To = StrEnum("_To", ["float", "uint16", "int8"])


@dataclass(frozen=True, slots=True, kw_only=True)
class _SensitivitySamples(opt.MeasuringOptions):
    limit: int | None = option("N", "Measure on N samples of the data.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitivityOptions:
    """Which plan is measured, on which samples, and what a better one may change."""

    plan: Path = option("PLAN", "A plan from 'bitwright plan'.", default=REQUIRED)
    output: Path | None = option(
        "OUT", "Where to write the better plan; - for a pipe.", "--output", "-o"
    )
    samples: _SensitivitySamples
    regain: float = option("SHARE", "The share of the loss to regain.", default=0.8)
    most: float = option("SHARE", "The share of nodes that may fall back.", default=0.1)
    to: _To = option(
        None,
        "What nodes fall back to; int8 is for weights of weight-only plans.",
        default=_To.float,
    )
    candidates: int | None = option(
        "N", "Measure only the N nodes with the largest local error; for large models.", min=1
    )
    run: opt.RunOptions


def sensitivity_command(model: opt.Model, *, options: SensitivityOptions, screen: Screen) -> None:
    """Find the most sensitive nodes, and plan a fallback for them.

    In that plan, which is for 'bitwright apply', they stay float or get more bits. Without --output
    only the ranking is shown; --verbose shows all of it.
    """
    given = arguments_of(options, "plan", "output")
    wanted = {name: given.pop(name) for name in ("regain", "most", "to")}

    from bitwright import graph
    from bitwright.api import find_sensitivity
    from bitwright.jobs.sensitivity import SENSITIVITY_SAMPLES

    plan, output = options.plan, options.output
    if options.samples.limit is None:
        given["limit"] = SENSITIVITY_SAMPLES
    if output is not None and output != STANDARD_OUTPUT:
        graph.check_destination(output, source=model, others=[*options.samples.files(), plan])
    with nullcontext() if output is None else written(output, ".json") as file:
        found = find_sensitivity(model, plan, progress=screen.wants_progress, **given)
        proposal = None
        if file is not None:
            proposal = found.proposal(**wanted)
            proposal.plan.save(file)
        document = {
            "model": str(model),
            "plan": str(plan),
            **found.to_dict(),
            "proposal": None if proposal is None else proposal.to_dict(),
            "output": None if output is None else str(output),
        }
        screen.show(document, _parts(found, proposal, model, output, screen.verbose))


def _parts(
    found: Sensitivity, proposal: Proposal | None, model: Path, output: Path | None, verbose: bool
) -> list[Part]:
    facts = [
        ("Samples", str(found.samples)),
        ("With all nodes quantized", f"{found.sqnr:.1f} dB SQNR"),
    ]
    if proposal is not None:
        facts.append(("Proposal", proposal.describe()))
        if proposal.nodes:
            facts.append(("Fallback", ", ".join(proposal.nodes)))
        if proposal.nodes and not proposal.reached:
            facts.append(("Note", f"{proposal.wanted:.0%} is out of reach; allow more with --most"))
        facts.append(("Written to", str(output)))
        if output != STANDARD_OUTPUT:
            facts.append(("Next", f"bitwright apply {output} {model} -o better.onnx"))
    return [*(Table(*section) for section in found.sections(verbose=verbose)), Facts(facts)]
