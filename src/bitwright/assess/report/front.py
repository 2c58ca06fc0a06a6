"""Pareto front of a tuning run for the report: costs, drops with intervals, changed nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bitwright.support.wording import counted, show_bytes, show_milliseconds

__all__ = ["build_front_data"]

_SIZES = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "bytes"))
_ABSENT = "\N{EN DASH}"


def build_front_data(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `TuneResult.to_dict` gives with what the chart and its table say of it.

    >>> point = {"cost": 2.0, "measured_cost": 2.5, "cost_spread": [2.6, 2.8], "measured": None,
    ...          "verdict": None, "fallen": []}
    >>> found = {"met": True, "metric": "top1", "max_drop": 0.01, "purpose": "speed",
    ...          "float_score": 0.75, "float_cost": 4.0, "chosen": 0, "points": [point],
    ...          "final": None, "stopped": None, "notes": [], "command": "bitwright apply ..."}
    >>> build_front_data(found)["points"][0]["cost_text"]
    '2.5 ms (2.6 to 2.8)'
    """
    points = [_point(point, found["purpose"]) for point in found["points"]]
    size, unit = _unit(found["purpose"], max(*(p["cost"] for p in points), found["float_cost"]))
    chosen = points[found["chosen"]]
    stopped = [] if found["stopped"] is None else [f"Stopped early: {found['stopped']}."]
    return {
        "metric": found["metric"],
        "max_drop": found["max_drop"],
        "max_size": found.get("max_size"),
        "float_score": f"{found['float_score']:.4g}",
        "float_cost": found["float_cost"],
        "unit": unit,
        "unit_size": size,
        "sentence": _sentence(found, chosen),
        "points": points,
        "chosen": found["chosen"],
        "final": None if found["final"] is None else _drop(found["final"]),
        "fallen": found["points"][found["chosen"]]["fallen"],
        "notes": [*stopped, *found["notes"]],
        "command": found["command"],
    }


def _point(point: Mapping[str, Any], purpose: str) -> dict[str, Any]:
    cost = point["cost"] if point["measured_cost"] is None else point["measured_cost"]
    text = show_milliseconds(cost, point["cost_spread"])
    empty = {"drop": None, "interval": None, "interval_text": _ABSENT, "samples": None}
    measured = empty if point["measured"] is None else _drop(point["measured"])
    return {
        "cost": cost,
        "cost_text": text if purpose == "speed" else show_bytes(round(cost)),
        "verdict": point["verdict"],
        "changed": len(point["fallen"]),
        **measured,
    }


def _drop(measured: Mapping[str, Any]) -> dict[str, Any]:
    interval: Sequence[float] | None = measured["interval"]
    text = _ABSENT if interval is None else f"{interval[0]:.3g} to {interval[1]:.3g}"
    return {
        "drop": measured["drop"],
        "interval": None if interval is None else list(interval),
        "interval_text": text,
        "samples": measured["samples"],
    }


def _sentence(found: Mapping[str, Any], chosen: Mapping[str, Any]) -> str:
    """Return what became of the goal."""
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
    if purpose == "speed":
        return 1, "ms"
    return next((size, name) for size, name in _SIZES if largest >= size or size == 1)
