"""`bitwright verify`: is a quantized model sound, and within the limits of its target?"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bitwright.cli import options as opt
from bitwright.cli.screen import Part, Screen, Table

if TYPE_CHECKING:
    from bitwright.assess import Verification

__all__ = ["verify_command"]


class _Format(StrEnum):
    text = "text"
    json = "json"
    junit = "junit"


def verify_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Any quantized .onnx file.")],
    target: Annotated[
        str, typer.Option(help="Where it will run: cpu, npu-cnn or npu-transformer.")
    ] = "cpu",
    form: Annotated[
        _Format, typer.Option("--format", help="Text, or what other programs read.")
    ] = _Format.text,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Check a quantized model, whoever made it: exit code 0 if nothing is wrong, else 1."""
    from bitwright.api import verify

    found = verify(model, target)
    if form is _Format.junit and not as_json:
        typer.echo(found.to_junit())
    else:
        screen = Screen(as_json=as_json or form is _Format.json, quiet=quiet, verbose=verbose)
        screen.show({"model": str(model), **found.to_dict()}, _parts(model, found))
    if not found.ok:
        raise typer.Exit(1)


def _parts(model: Path, found: Verification) -> list[Part]:
    if found.ok:
        return [f"{model}: {len(found.rules)} rules for {found.target} hold."]
    rows = [
        (
            finding.node or "model",
            finding.rule,
            finding.message,
            ", ".join(f"{name} {value}" for name, value in finding.values.items()) or "-",
        )
        for finding in found.findings
    ]
    many = "1 finding" if len(rows) == 1 else f"{len(rows)} findings"
    title = f"{model}: {many} for {found.target}"
    return [Table(title, ("node", "rule", "what is wrong", "values"), rows)]
