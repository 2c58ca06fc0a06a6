"""`bitwright verify`: check a quantized model against the rules of its target, or of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bitwright.cli import options as opt
from bitwright.cli.groups import option, switch
from bitwright.cli.screen import Facts, Part, Screen, Table
from bitwright.support.wording import counted

if TYPE_CHECKING:
    from bitwright.verification import Finding, Verification

_MOST_ROWS = 8
_MOST_NAMES = 2


_Format = StrEnum("_Format", ["text", "json", "junit"])
_Consequence = StrEnum("_Consequence", ["refused", "leaves", "wrong", "float", "slow"])


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """For which target a model is checked, and what counts as a failure."""

    target: str = option(
        "NAME",
        "Where it will run: a target of 'bitwright recipes', one with its variant as in "
        "qualcomm-htp:v68, a .toml file of your own, or all, for one row a target.",
        default="cpu",
    )
    cpu: str | None = option(
        "KIND",
        "For the target cpu: avx2 (x86 without VNNI), vnni or arm; this machine's if not given.",
    )
    here: bool = switch("Run the golden answers in the file on this machine: same, or different?")
    provider: opt.Provider = None
    runtime: str | None = option(
        "VERSION",
        "Instead of a target: what this version of ONNX Runtime, such as 1.20, does not load or "
        "computes wrongly.",
    )
    strict: bool = switch("Warnings fail too.")
    allow: list[_Consequence] | None = option(
        None, "Do not fail for what has this consequence; repeatable."
    )
    form: _Format = option(
        None, "Text, or what other programs read.", "--format", default=_Format.text
    )

    @property
    def failing(self) -> dict[str, Any]:
        """Return what `Verification.passes` takes."""
        return {"strict": self.strict, "allow": tuple(map(str, self.allow or ()))}


def verify_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Any quantized .onnx file.")],
    *,
    options: VerifyOptions,
    screen: Screen,
) -> None:
    """Check a quantized model, whoever made it.

    The exit code is 0 if nothing is wrong, else 1: what is refused, leaves the accelerator or is
    wrong counts, what is only computed in float, or slow, does with --strict. With --target all it
    is 0 if any target can run the model.
    """
    if options.form is _Format.json:
        screen = replace(screen, as_json=True)
    verify = _verify_everywhere if options.target == "all" else _verify_one
    if not verify(model, options, screen):
        raise typer.Exit(1)


def _verify_one(model: Path, options: VerifyOptions, screen: Screen) -> bool:
    """Show what the rules of one target say, and return whether they let the model pass."""
    from bitwright.api import verify

    target = "here" if options.here else options.target
    found = verify(
        model, target, cpu=options.cpu, providers=options.provider or None, runtime=options.runtime
    )
    if options.form is _Format.junit and not screen.as_json:
        typer.echo(found.to_junit(**options.failing))
    else:
        screen.show({"model": str(model), **found.to_dict()}, _parts(model, found, screen.verbose))
    return found.passes(**options.failing)


def _verify_everywhere(model: Path, options: VerifyOptions, screen: Screen) -> bool:
    """Show one row a target, and return whether any can run the model."""
    from bitwright.api import verify_targets

    everywhere = verify_targets(model)
    passing = {name: one.passes(**options.failing) for name, one in everywhere.items()}
    if options.form is _Format.junit and not screen.as_json:
        typer.echo(_suites(everywhere, options.failing))
    else:
        rows = [{**found.to_dict(), "passes": passing[name]} for name, found in everywhere.items()]
        document = {"model": str(model), "targets": rows}
        screen.show(document, [_overview(model, everywhere, passing)])
    return any(passing.values())


def _suites(found: Mapping[str, Verification], failing: dict[str, Any]) -> str:
    from xml.etree import ElementTree

    suites = ElementTree.Element("testsuites", name="bitwright verify")
    for verification in found.values():
        suites.append(verification.junit_suite(**failing))
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True)


def _overview(model: Path, found: Mapping[str, Verification], passing: Mapping[str, bool]) -> Table:
    """Return one row a target: whether the model runs there, and how much of it."""
    rows = []
    for name, verification in found.items():
        stays = verification.residence
        worst = verification.errors or verification.warnings
        rows.append(
            (
                name,
                "yes" if passing[name] else "no",
                str(len(verification.errors)),
                str(len(verification.warnings)),
                "-" if stays is None else f"{stays.resident_ops}/{stays.ops}",
                "-" if stays is None or stays.share is None else f"{100 * stays.share:.0f} %",
                "-" if stays is None else str(stays.partitions),
                f"{worst[0].consequence}: {worst[0].rule}" if worst else "",
            )
        )
    columns = ("target", "runs", "errors", "warnings", "ops there", "multiply-adds", "partitions")
    return Table(f"{model}: where it runs", (*columns, "first"), rows)


def _parts(model: Path, found: Verification, verbose: bool) -> list[Part]:
    stays = [] if found.residence is None else [f"{found.residence.describe()}."]
    if found.rules == ("golden",):
        state = "different" if found.errors else "within rounding" if found.findings else "same"
        stays = [f"{model}: {state} on {found.target}."]
    if not found.findings:
        held = [] if found.rules == ("golden",) else [f"{len(found.rules)} rules"]
        return [*(f"{model}: {rules} for {found.target} hold." for rules in held), *stays]
    parts: list[Part] = []
    for noun, findings in (("error", found.errors), ("warning", found.warnings)):
        if findings:
            title = f"{model}: {counted(len(findings), noun)} for {found.target}"
            rows = _rows(findings, verbose)
            columns = ("node", "rule", "consequence", "what was found", "values")
            parts.append(Table(title, columns, rows))
    remedies = {finding.rule: finding.remedy for finding in found.findings if finding.remedy}
    parts.append(Facts([(f"Against {rule}", remedy) for rule, remedy in remedies.items()]))
    parts += stays
    if found.ok:
        parts.append("Nothing is wrong; --strict would take the warnings for errors.")
    return parts


def _rows(findings: Sequence[Finding], verbose: bool) -> list[tuple[str, str, str, str, str]]:
    """Return a row for each thing that was found, however many nodes have it; the first few."""
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for finding in findings:
        values = ", ".join(f"{name} {value}" for name, value in finding.values.items())
        key = (finding.rule, finding.consequence or "-", finding.message, values or "-")
        groups.setdefault(key, []).append(finding.node or "model")
    rows: list[tuple[str, str, str, str, str]] = []
    shown: dict[str, int] = {}
    for (rule, consequence, message, values), nodes in groups.items():
        shown[rule] = shown.get(rule, 0) + 1
        names = ", ".join(nodes if verbose else nodes[:_MOST_NAMES])
        if len(nodes) > _MOST_NAMES and not verbose:
            names += f" … ({len(nodes)})"
        if verbose or shown[rule] <= _MOST_ROWS:
            rows.append((names, rule, consequence, message, values))
    for rule, count in shown.items():
        if not verbose and count > _MOST_ROWS:
            rows.append(("…", rule, "", f"and {count - _MOST_ROWS} more; --verbose names all", "-"))
    return rows
