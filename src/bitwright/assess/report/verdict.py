"""The verdict on the subject of a report, which also names the most sensitive node."""

from __future__ import annotations

from bitwright.assess.report.subject import ReportSubject
from bitwright.assess.verdict import UNJUDGED, Verdict, judge_outputs

__all__ = ["judge"]


def judge(subject: ReportSubject) -> Verdict:
    """Return the verdict on a quantized model, by the worst of its outputs."""
    latency = subject.latency
    found = judge_outputs(
        subject.outputs,
        subject.float_bytes,
        subject.quantized_bytes,
        speedup=None if latency is None or latency.overlaps else latency.speedup,
        coverage=subject.coverage,
    )
    if found.level != "unknown" and subject.plan is not None and subject.plan.random_data:
        return UNJUDGED
    sensitive = [*subject.most_sensitive(), *subject.worst]
    if found.level in ("good", "unknown") or not sensitive:
        return found
    name = subject.nodes[sensitive[0]].measured.name
    return found._replace(sentence=f"{found.sentence} The most sensitive node is {name}.")
