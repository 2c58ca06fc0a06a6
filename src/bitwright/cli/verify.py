"""`bitwright verify`: check a quantized model against the rules of its target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bitwright.cli.screen import Facts, Part, Screen, Table
from bitwright.support.wording import counted

if TYPE_CHECKING:
    from bitwright.assess import Finding, Verification

__all__ = ["verify_command"]

_MOST_ROWS = 8


class _Format(StrEnum):
    text = "text"
    json = "json"
    junit = "junit"


def verify_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Any quantized .onnx file.")],
    *,
    target: Annotated[
        str, typer.Option(help="Where it will run: cpu, npu-cnn or npu-transformer.")
    ] = "cpu",
    cpu: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="For the target cpu: avx2 (x86 without VNNI), vnni or arm; this machine's if not "
            "given.",
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail too.")] = False,
    form: Annotated[
        _Format, typer.Option("--format", help="Text, or what other programs read.")
    ] = _Format.text,
    screen: Screen,
) -> None:
    """Check a quantized model, whoever made it.

    The exit code is 0 if nothing is wrong, else 1. Warnings do not count as wrong, unless --strict
    says so.
    """
    from bitwright.api import verify

    found = verify(model, target, cpu=cpu)
    if form is _Format.json:
        screen = replace(screen, as_json=True)
    if form is _Format.junit and not screen.as_json:
        typer.echo(found.to_junit(strict=strict))
    else:
        screen.show({"model": str(model), **found.to_dict()}, _parts(model, found, screen.verbose))
    if not found.passes(strict=strict):
        raise typer.Exit(1)


def _parts(model: Path, found: Verification, verbose: bool) -> list[Part]:
    if not found.findings:
        return [f"{model}: {len(found.rules)} rules for {found.target} hold."]
    parts: list[Part] = []
    for noun, findings in (("error", found.errors), ("warning", found.warnings)):
        if findings:
            title = f"{model}: {counted(len(findings), noun)} for {found.target}"
            rows = _rows(findings, verbose)
            parts.append(Table(title, ("node", "rule", "what was found", "values"), rows))
    remedies = {finding.rule: finding.remedy for finding in found.findings if finding.remedy}
    parts.append(Facts([(f"Against {rule}", remedy) for rule, remedy in remedies.items()]))
    if found.ok:
        parts.append("Nothing is wrong; --strict would take the warnings for errors.")
    return parts


def _rows(findings: Sequence[Finding], verbose: bool) -> list[tuple[str, str, str, str]]:
    """Return a row for each finding; of many that break one rule only the first few."""
    rows, shown = [], Counter[str]()
    for finding in findings:
        shown[finding.rule] += 1
        if verbose or shown[finding.rule] <= _MOST_ROWS:
            values = ", ".join(f"{name} {value}" for name, value in finding.values.items())
            rows.append((finding.node or "model", finding.rule, finding.message, values or "-"))
    for rule, count in shown.items():
        if not verbose and count > _MOST_ROWS:
            rows.append(("…", rule, f"and {count - _MOST_ROWS} more; --verbose names all", "-"))
    return rows
