"""Findings of a verification and what stays on the target, as data, JUnit XML and a table."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from xml.etree import ElementTree

from bitwright.support import counted, html_tables, plain_fields, printable
from bitwright.targets.target import Consequence

FindingLevel = Literal["error", "warning"]


Facts = Iterator[tuple[str, dict[str, Any]]]
"""(what is wrong, its figures) for each thing that is wrong with one tensor."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a model.

    >>> str(Finding("shift_cut", "conv1", "weight + input - output is 20 and must lie in 0..16"))
    'conv1: shift_cut: weight + input - output is 20 and must lie in 0..16'
    """

    rule: str
    node: str
    """Its name, or that of the tensor; empty for what concerns the model as a whole."""
    message: str
    values: Mapping[str, Any] = field(default_factory=dict)
    level: FindingLevel = "error"
    """An error breaks the model or what it computes; a warning costs speed or depends on data."""
    remedy: str = ""
    """What to do, where that is the same for every finding of the rule."""
    tensor: str = ""
    found: str = ""
    """What is there, and what is allowed instead; empty where the message says it as one."""
    allowed: str = ""
    consequence: Consequence | None = None
    """What becomes of the model on the target."""
    source: str = ""
    """Where the rule is documented: a manual, a source file, an issue."""

    def __str__(self) -> str:
        return f"{self.node or 'model'}: {self.rule}: {self.message}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        first = ("rule", "level", "node", "message", "values")
        fields = {name: getattr(self, name) for name in (*first, *self.__slots__)}
        return {n: value if value or n in first else None for n, value in fields.items()}


@dataclass(frozen=True, slots=True)
class Residence:
    """What stays on a target, and in how many pieces."""

    ops: int
    resident_ops: int
    quantized_ops: int
    """Of those on the target: computed on integers or other low-bit numbers."""
    multiply_adds: int | None
    """Of all products; None where a shape is not known."""
    resident_multiply_adds: int | None
    quantized_multiply_adds: int | None
    partitions: int

    @property
    def share(self) -> float | None:
        """The share of multiply-adds on the target."""
        return _share(self.resident_multiply_adds, self.multiply_adds)

    @property
    def quantized_share(self) -> float | None:
        """The share of multiply-adds on low-bit numbers."""
        return _share(self.quantized_multiply_adds, self.multiply_adds)

    def describe(self) -> str:
        """Return it in words."""
        pieces = f"{self.partitions} partition{'' if self.partitions == 1 else 's'}"
        products = "" if self.share is None else f" ({100 * self.share:.0f} % of multiply-adds)"
        quantized = "" if self.quantized_share is None else f" ({100 * self.quantized_share:.0f} %)"
        return (
            f"{self.resident_ops} of {self.ops} ops on the target{products} in {pieces}, "
            f"{self.quantized_ops} of them quantized{quantized}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return plain_fields(self, *self.__slots__, "share", "quantized_share")


@dataclass(frozen=True, slots=True)
class Verification:
    """The findings about one model; no error among them means that it is fit for the target.

    >>> Verification("cpu", ("scale",), ()).ok
    True
    """

    target: str
    rules: tuple[str, ...]
    """Everything that was checked."""
    findings: tuple[Finding, ...]
    residence: Residence | None = None
    """How much of the model stays on the target; None where its nodes have no order."""

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What is wrong."""
        return tuple(finding for finding in self.findings if finding.level == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What is not wrong, but worth knowing."""
        return tuple(finding for finding in self.findings if finding.level == "warning")

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; there may be warnings."""
        return not self.errors

    def failing(self, *, strict: bool = False, allow: Collection[str] = ()) -> tuple[Finding, ...]:
        """Return what fails: errors, with `strict` all, but for consequences that are allowed."""
        counted = self.findings if strict else self.errors
        return tuple(finding for finding in counted if finding.consequence not in allow)

    def passes(self, *, strict: bool = False, allow: Collection[str] = ()) -> bool:
        """Whether nothing is wrong, or with `strict` nothing was found at all."""
        return not self.failing(strict=strict, allow=allow)

    def describe(self) -> str:
        """Return the verdict in a line: whether the target runs the model, and how much of it.

        >>> Verification("cpu", ("scale",), ()).describe()
        'cpu runs it: 1 rule holds'
        """
        rules = f"{counted(len(self.rules), 'rule')} hold{'s' if len(self.rules) == 1 else ''}"
        if self.findings:
            broken = dict.fromkeys(f"{f.rule} ({f.consequence})" for f in self.findings)
            rules = "against it " + ", ".join(broken) if self.errors else ", ".join(broken)
        verdict = f"{self.target} {'runs it' if self.ok else 'does not run it as it is'}: {rules}"
        return verdict if self.residence is None else f"{verdict}; {self.residence.describe()}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return plain_fields(self, "target", "ok", "rules", "findings", "residence")

    def summarize(self) -> dict[str, Any]:
        """Return the verdict as plain data, with one row for what is the same of several nodes."""
        rows: dict[tuple[str, ...], list[str]] = {}
        for finding in self.findings:
            key = (finding.level, finding.rule, finding.consequence or "", finding.message)
            rows.setdefault((*key, finding.remedy), []).append(finding.node)
        return {
            "name": self.target,
            "level": "poor" if self.errors else "usable" if self.warnings else "good",
            "sentence": self.describe(),
            "rules": len(self.rules),
            "residence": None if self.residence is None else self.residence.to_dict(),
            "findings": [
                {
                    "level": level,
                    "rule": rule,
                    "consequence": consequence,
                    "message": message,
                    "remedy": remedy or None,
                    "nodes": nodes,
                }
                for (level, rule, consequence, message, remedy), nodes in rows.items()
            ],
        }

    def to_junit(self, *, strict: bool = False, allow: Collection[str] = ()) -> str:
        """Return JUnit XML: one test case a rule, failed where there are errors.

        Warnings are the output of a test case that passed; `strict` makes them failures too.
        """
        suite = self.junit_suite(strict=strict, allow=allow)
        ElementTree.indent(suite)
        return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)

    def junit_suite(
        self, *, strict: bool = False, allow: Collection[str] = ()
    ) -> ElementTree.Element:
        """Return the same as an element, for a file with the suites of several targets."""
        failing = self.failing(strict=strict, allow=allow)
        broken = {finding.rule for finding in failing}
        suite = ElementTree.Element(
            "testsuite",
            name=f"bitwright verify {self.target}",
            tests=str(len(self.rules)),
            failures=str(len(broken)),
        )
        for rule in self.rules:
            case = ElementTree.SubElement(
                suite, "testcase", classname=f"bitwright.{self.target}", name=rule
            )
            found = [finding for finding in failing if finding.rule == rule]
            if found:
                message = f"{rule}: {counted(len(found), 'place')}"
                failure = ElementTree.SubElement(case, "failure", message=message)
                failure.text = "\n".join(printable(str(finding)) for finding in found)
            noted = [f for f in self.findings if f.rule == rule and f not in failing]
            if noted:
                output = ElementTree.SubElement(case, "system-out")
                output.text = "\n".join(
                    f"{finding.level}: {printable(str(finding))}" for finding in noted
                )
        return suite

    def _repr_html_(self) -> str:
        columns = ("node", "rule", "level", "what was found")
        rows = [(f.node or "model", f.rule, f.level, f.message) for f in self.findings]
        holds = "" if rows else f"{counted(len(self.rules), 'rule')} of {self.target} hold."
        return html_tables([(f"Verified for {self.target}", columns, rows)], footnote=holds)


def _share(part: int | None, whole: int | None) -> float | None:
    return part / whole if whole and part is not None else None
