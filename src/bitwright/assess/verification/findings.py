"""What verification found: node, rule, values; as data, as JUnit XML, as a table."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

__all__ = ["Finding", "Verification"]


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

    def __str__(self) -> str:
        return f"{self.node or 'model'}: {self.rule}: {self.message}"


@dataclass(frozen=True, slots=True)
class Verification:
    """The findings about one model; none means that it is fit for the target.

    >>> Verification("cpu", ("scale",), ()).ok
    True
    """

    target: str
    rules: tuple[str, ...]
    """Everything that was checked."""
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "target": self.target,
            "ok": self.ok,
            "rules": list(self.rules),
            "findings": [
                {"rule": f.rule, "node": f.node, "message": f.message, "values": dict(f.values)}
                for f in self.findings
            ],
        }

    def to_junit(self) -> str:
        """Return JUnit XML: one test case a rule, failed where there are findings.

        >>> '<testcase' in Verification("cpu", ("scale",), ()).to_junit()
        True
        """
        broken = {finding.rule for finding in self.findings}
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
            found = [finding for finding in self.findings if finding.rule == rule]
            if found:
                places = "1 place" if len(found) == 1 else f"{len(found)} places"
                failure = ElementTree.SubElement(case, "failure", message=f"{rule}: {places}")
                failure.text = "\n".join(map(str, found))
        ElementTree.indent(suite)
        return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)

    def _repr_html_(self) -> str:
        if self.ok:
            return f"<p>{len(self.rules)} rules of {html.escape(self.target)} hold.</p>"
        rows = "".join(
            f"<tr><td>{html.escape(f.node or 'model')}</td><td>{html.escape(f.rule)}</td>"
            f"<td>{html.escape(f.message)}</td></tr>"
            for f in self.findings
        )
        return (
            "<table><thead><tr><th>node</th><th>rule</th><th>what is wrong</th></tr></thead>"
            f"<tbody>{rows}</tbody></table>"
        )
