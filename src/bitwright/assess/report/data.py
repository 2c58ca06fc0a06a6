"""The report's content as plain data that JSON can hold."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bitwright._version import __version__
from bitwright.assess.judge import OutputJudgement
from bitwright.assess.outputs import OutputComparison
from bitwright.assess.report.advice import advise, say_verdict
from bitwright.assess.report.subject import ReportNode, ReportSubject
from bitwright.plan import QuantPlan
from bitwright.recipe import Recipe
from bitwright.support import counted, plain_fields, show_bytes, show_milliseconds

_MAIN_SETTINGS = ("mode", "format", "activation", "weight", "ranges", "per_channel")
_MAX_PLAN_BYTES = 1_000_000
"""A larger plan is not carried along: the report stays small enough to mail."""
_MAX_RANKED = 100
_SIZES = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "bytes"))
_ABSENT = "\N{EN DASH}"


def build_report_data(subject: ReportSubject) -> dict[str, Any]:
    """Return the report as plain data; `render_page` makes a page of it."""
    keys = {key: place for place, key in enumerate(subject.tensors)}
    verdict = subject.verdict()
    return {
        "tool": f"bitwright {__version__}",
        "float": {"name": Path(subject.float_name).name, "bytes": subject.float_bytes},
        "quantized": {"name": Path(subject.quantized_name).name, "bytes": subject.quantized_bytes},
        "verdict": verdict._asdict(),
        "lines": say_verdict(subject),
        "clock": None if subject.clock is None else _rounded(subject.clock.to_dict()),
        "untimed": subject.untimed if subject.clock is None else None,
        "samples": subject.samples,
        "data": subject.data,
        "outputs": [_output(output) for output in subject.outputs],
        "coverage": _coverage(subject),
        "integer_kernels": None if subject.coverage is None else subject.coverage.to_dict(),
        "target": subject.target,
        "sensitivity": _sensitivity(subject),
        "tuning": None if subject.tuning is None else build_front_data(subject.tuning),
        "advice": [asdict(advice) for advice in advise(subject)],
        "worst": list(subject.worst),
        "most_sensitive": subject.most_sensitive(),
        "nodes": _nodes(subject, keys),
        "tensors": [view.to_dict() for view in subject.tensors.values()],
        "recipe": None if subject.recipe is None else subject.recipe.to_json(),
        "settings": None if subject.recipe is None else _settings(subject.recipe),
        "plan": _plan(subject.plan),
    }


def _nodes(subject: ReportSubject, keys: Mapping[str, int]) -> list[dict[str, Any]]:
    tried = () if subject.suggested_fix is None else subject.suggested_fix.sensitivity.nodes
    regained = {node.name: node.regained for node in tried}
    return [_node(node, keys, regained.get(node.measured.name)) for node in subject.nodes]


def _node(node: ReportNode, keys: Mapping[str, int], regained: float | None) -> dict[str, Any]:
    said = ("name", "op", "depth", "reason", "unmeasured", "output", "reads")
    errors = {"error": "max_error", "energy": "local_sqnr"}
    named = [[name, op] for name, op in node.in_file]  # unless it is just that one node
    return {
        **_fields(node.measured, *said, "sqnr", "cosine", "saturated", "used", **errors),
        **_fields(node, "alone", "quantized", "sizes"),
        "file": [] if named == [[node.measured.name, node.measured.op]] else named,
        "facts": [list(fact) for fact in node.facts],
        "regained": _number(regained),
        "tensors": [[label, keys[key]] for label, key in node.tensors if key in keys],
    }


def _sensitivity(subject: ReportSubject) -> dict[str, Any] | None:
    fix = subject.suggested_fix
    if fix is None:
        return None
    found, proposal = fix.sensitivity, fix.proposal
    places = {node.measured.name: place for place, node in enumerate(subject.nodes)}
    return {
        "samples": found.samples,
        "measured": len(found.nodes),
        "proposal": {
            "sentence": proposal.describe(),
            **_fields(proposal, "nodes", "to", "regained", "sqnr_before", "sqnr"),
            "plan": fix.plan_name if proposal.nodes else None,
        },
        "ranking": [
            {
                "place": places.get(node.name),
                **_fields(
                    node, "name", "op", "regained", alone="alone_sqnr", without="without_sqnr"
                ),
            }
            for node in found.ranking[:_MAX_RANKED]
        ],
    }


def _output(output: OutputComparison) -> dict[str, Any]:
    figures = _fields(output, "name", "sqnr", "cosine", "agreement", error="largest_error")
    return {**figures, "judged": _judged(output.judged)}


def _judged(judged: OutputJudgement | None) -> dict[str, Any] | None:
    if judged is None:
        return None
    part, interval = judged.worst, judged.interval
    return {
        "kind": part.kind,
        "reason": part.reason,
        "part": None if part.span is None else part.where,
        "figure": part.show_figure(),
        "loss": _number(judged.loss),
        "interval": None if interval is None else _rounded([interval.low, interval.high]),
    }


def _coverage(subject: ReportSubject) -> dict[str, Any]:
    decided = subject.decided if subject.plan is None else subject.plan.decisions()
    if decided is not None:
        # Rows of the comparison are what is computed as one; the plan knew every node.
        quantized, left = Counter(decided.quantized), decided.left_float
        reasons = Counter({(why, op): n for op in left for why, n in left[op].items()})
    else:
        quantized = Counter(n.measured.op for n in subject.nodes if n.quantized)
        unsaid = "the tool that made it does not say"
        left_float = (n.measured for n in subject.nodes if not n.quantized)
        reasons = Counter((one.reason or unsaid, one.op) for one in left_float)
    total = quantized.copy()
    for (_, op), count in reasons.items():
        total[op] += count
    left_out = Counter(n.measured.unmeasured for n in subject.nodes if n.measured.unmeasured)
    return {
        "nodes": total.total(),
        "quantized": quantized.total(),
        "not_compared": [{"reason": why, "nodes": count} for why, count in left_out.most_common()],
        "ops": [
            {"op": op, "nodes": count, "quantized": quantized[op]}
            for op, count in sorted(total.items(), key=lambda item: (-item[1], item[0]))
        ],
        "reasons": [
            {"reason": reason, "op": op, "nodes": count}
            for (reason, op), count in sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        ],
    }


def _settings(recipe: Recipe) -> dict[str, str]:
    """Return the fields of a recipe that matter most, and all that are not as usual."""
    plain, given = (json.loads(one.to_json()) for one in (Recipe(), recipe))
    return {"recipe": recipe.name} | {
        name: _in_words(_unusual(value, plain[name]))
        for name, value in given.items()
        if name not in ("version", "name") and (name in _MAIN_SETTINGS or value != plain[name])
    }


def _unusual(value: Any, usual: Any) -> Any:
    """Return a section of the same kind as the usual one without what both have."""
    if not isinstance(value, dict) or not isinstance(usual, dict):
        return value
    if value.get("method") != usual.get("method"):
        return value
    return {k: v for k, v in value.items() if k == "method" or v != usual.get(k)}


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        set_ones = {k: v for k, v in value.items() if v not in (None, False, [], {})}
        method = set_ones.pop("method", None)
        rest = ", ".join(f"{key} {_in_words(inner)}" for key, inner in set_ones.items())
        return ": ".join(filter(None, (method, rest))) or "on"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return {True: "yes", False: "no", None: "no"}.get(value) or str(value)


def _plan(plan: QuantPlan | None) -> dict[str, Any] | None:
    if plan is None:
        return None
    text = plan.to_json()
    fits = len(text) <= _MAX_PLAN_BYTES
    return {
        **plain_fields(plan, "tool", "fingerprint", "notes"),
        "tensors": len(plan.tensors),
        "bytes": len(text),
        "json": text if fits else None,
    }


def _fields(value: object, *names: str, **renamed: str) -> dict[str, Any]:
    """Return attributes of a value, their numbers as JSON can hold them."""
    found: dict[str, Any] = _rounded(plain_fields(value, *names, **renamed))
    return found


def _rounded(value: Any) -> Any:
    """Return plain data whose numbers JSON can hold."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return _number(value) if isinstance(value, float) else value


def _number(value: float | None) -> float | str | None:
    """Return a number as JSON can hold it: JavaScript reads "Infinity" back as a number."""
    if value is None or math.isnan(value):
        return None
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return float(f"{value:.6g}")


# The front of a tuning run -------------------------------------------------------------------


def build_front_data(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `TuneResult.to_dict` gives with what the chart and its table say of it."""
    points = [_point(point, found["purpose"]) for point in found["points"]]
    size, unit = _unit(found["purpose"], max(*(p["cost"] for p in points), found["float_cost"]))
    chosen = points[found["chosen"]]
    stopped = [] if found["stopped"] is None else [f"Stopped early: {found['stopped']}."]
    same = ("metric", "max_drop", "float_cost", "chosen", "command")
    return {
        **{name: found[name] for name in same},
        "max_size": found.get("max_size"),
        "float_score": f"{found['float_score']:.4g}",
        "float_name": "float" if found["purpose"] == "size" else "prepared float",
        "unit": unit,
        "unit_size": size,
        "sentence": _sentence(found, chosen),
        "points": points,
        "final": None if found["final"] is None else _drop(found["final"]),
        "fallen": found["changed"],
        "notes": [*stopped, *found["notes"]],
    }


def _point(point: Mapping[str, Any], purpose: str) -> dict[str, Any]:
    cost = point["cost"] if point["measured_cost"] is None else point["measured_cost"]
    text = show_milliseconds(cost, point["cost_spread"])
    empty = {"drop": None, "interval": None, "interval_text": _ABSENT, "samples": None}
    measured = empty if point["measured"] is None else _drop(point["measured"])
    return {
        "cost": cost,
        "cost_text": show_bytes(round(cost)) if purpose == "size" else text,
        "verdict": point["verdict"],
        "changed": len(point["fallen"]),
        **measured,
    }


def _drop(measured: Mapping[str, Any]) -> dict[str, Any]:
    interval: Sequence[float] | None = measured["interval"]
    text = _ABSENT if interval is None else f"{interval[0]:.3g} to {interval[1]:.3g}"
    kept = {name: measured[name] for name in ("drop", "samples")}
    return kept | {"interval": interval and list(interval), "interval_text": text}


def _sentence(found: Mapping[str, Any], chosen: Mapping[str, Any]) -> str:
    """Return whether the goal was met, the drop on unseen samples, and the changed units."""
    seen, where = found["final"], "samples that the search never saw"
    if seen is None:
        seen, where = found["points"][found["chosen"]]["measured"], "samples of the search"
    fell = "its drop was not measured"
    if seen is not None:
        fell = f"{found['metric']} falls by {seen['drop']:.3g} on {seen['samples']} {where}"
    verb = "Within" if found["met"] else "Not within"
    most = found.get("max_size")
    limits = f"the allowed drop of {found['max_drop']:.3g}"
    if most is not None:
        limits += f" and {show_bytes(most)}"
    change = f"{counted(chosen['changed'], 'unit')} of it not as planned"
    return f"{verb} {limits}: {fell}; {change}."


def _unit(purpose: str, largest: float) -> tuple[int, str]:
    """Return the unit of the axis of costs, and how much of it is one."""
    if purpose != "size":
        return 1, "ms"
    return next((size, name) for size, name in _SIZES if largest >= size or size == 1)
