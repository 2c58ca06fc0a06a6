"""`bitwright retarget`: a quantized model in the encoding of another target, without data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bitwright.cli import options as opt
from bitwright.cli.groups import REQUIRED, arguments_of, complete_target, option
from bitwright.cli.piping import written
from bitwright.cli.screen import Facts, Part, Screen

if TYPE_CHECKING:
    from bitwright.jobs.retargeting import Retargeted

_Format = StrEnum("_Format", ["qdq", "qoperator"])


@dataclass(frozen=True, slots=True, kw_only=True)
class RetargetOptions:
    """For which target a model is written, in which form, and where."""

    to: str = option(
        "NAME", "The target.", "--to", default=REQUIRED, autocompletion=complete_target
    )
    output: opt.Output
    form: _Format | None = option(
        None, "Q/DQ pairs or integer operators; the target's if not given.", "--format"
    )
    plan: Path | None = option("PLAN", "A kept plan: scales of weights are made anew, others stay.")
    block_size: int | None = option("N", "With --plan: blocks of so many weights; 0 for none.")
    external_data: opt.ExternalData = None


def retarget_command(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="A quantized .onnx file; with --plan the float one of the plan."
        ),
    ],
    *,
    options: RetargetOptions,
    screen: Screen,
) -> None:
    """Write a quantized model in the encoding of another target.

    The numbers stay the same; what would change them is refused. The exit code is 1 if the target
    cannot run the result.
    """
    from bitwright.api import retarget

    output = options.output
    with written(output) as file:
        given = arguments_of(options, "to", "output")
        made = retarget(model, options.to, file, format=given.pop("form"), **given)
        document = {"model": str(model), "output": str(output), **made.to_dict()}
        screen.show(document, _parts(output, made))
    if not made.verification.ok:
        raise typer.Exit(1)


def _parts(output: Path, made: Retargeted) -> list[Part]:
    found = made.verification
    rows = [("Changed", change) for change in made.changes] or [("Changed", "nothing")]
    if found.residence is not None:
        rows.append(("Stays", found.residence.describe()))
    verdict = "it runs there" if found.ok else f"{len(found.errors)} rules are broken"
    rows += [("Target", f"{made.target}: {verdict}"), ("Written", str(output))]
    if not found.ok:
        rows.append(("Next", f"bitwright verify {output} --target {made.target}"))
    return [Facts(rows)]
