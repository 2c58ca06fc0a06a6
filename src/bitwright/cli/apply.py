"""`bitwright apply`: quantize a model exactly as a plan says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from bitwright.cli import options as opt
from bitwright.cli.groups import option
from bitwright.cli.piping import written
from bitwright.cli.screen import Screen


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileOptions(opt.DataOptions):
    data: Path | None = option(
        "PATH",
        "Samples to compare the result with float on; a plan that fine-tunes, or rounds "
        "by what layers read, needs them.",
    )


def apply_command(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan from 'bitwright plan'.")],
    model: opt.Model,
    *,
    output: opt.Output,
    weights: opt.Weights = None,
    samples: _FileOptions,
    external_data: opt.ExternalData = None,
    provider: opt.Provider = None,
    work: opt.Work = None,
    device: opt.Device = "cpu",
    engine: opt.Engine = None,
    screen: Screen,
) -> None:
    """Quantize a model as a plan says, without calibration.

    A plan with fine_tune lets its weights learn here, from --data.
    """
    if plan.suffix == ".onnx" and model.suffix == ".json":
        raise typer.BadParameter(
            f"the plan comes first, then the model: bitwright apply {model} {plan}"
        )
    for name, given in (("--transform", samples.transform), ("--limit", samples.limit)):
        if given is not None and samples.data is None:
            raise typer.BadParameter(f"{name} goes with --data only")

    from bitwright.api import apply_plan
    from bitwright.cli.summary import result_parts

    with written(output) as file:
        result = apply_plan(
            plan,
            model,
            file,
            weights=weights,
            external_data=external_data,
            providers=provider or None,
            work=work,
            device=device,
            engine=engine,
            progress=screen.wants_progress,
            **samples.arguments(),
        )
        result.path = output
        shown = result.to_dict() | {"plan": str(plan)}
        parts = result_parts(result, verbose=screen.verbose, plan_path=str(plan))
        screen.show(shown, [*parts, *result.lines()])
