"""HTML from jinja2 templates that escape all they are given, and figures as a reader sees them."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from bitwright.support.wording import show_bytes

if TYPE_CHECKING:
    from jinja2 import Environment

_ABSENT = "\N{EN DASH}"
_MAX_ROWS = 40
"""Rows of a table that is read rather than searched; the rest is counted in a last row."""
_WORST_ROWS = 25
_RANKED_ROWS = 12


def render_template(name: str, **values: Any) -> str:
    """Return a template of `report/templates` filled in; only `Markup` is not escaped."""
    return _environment().get_template(name).render(values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("bitwright.assess", "report/templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "bytes": show_bytes,
        "command_parts": lambda command: re.split(r" (?=--?[a-z])", command),
        "counted": lambda count, noun: f"{count:,} {noun}{'' if count == 1 else 's'}",
        "decibels": show_decibels,
        "figure": show_figure,
        "percent": show_percent,
    }
    environment.globals |= {
        "MAX_ROWS": _MAX_ROWS,
        "RANKED_ROWS": _RANKED_ROWS,
        "WORST_ROWS": _WORST_ROWS,
    }
    return environment


def show_figure(value: Any, form: str) -> str:
    """Return a number in a format, or a dash where there is none."""
    return _ABSENT if value is None else format(float(value), form)


def show_decibels(value: float | str | None) -> str:
    """Return a ratio for a reader; JSON has infinity as a word."""
    return "exact" if value in ("Infinity", float("inf")) else show_figure(value, ".1f")


def show_percent(value: float | None) -> str:
    """Return a share for a reader."""
    if value is None:
        return _ABSENT
    if value == 0:
        return "0 %"
    return "<0.01 %" if value < 0.0001 else f"{100 * value:.{2 if value < 0.1 else 1}f} %"
