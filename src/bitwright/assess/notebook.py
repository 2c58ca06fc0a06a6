"""Results as small HTML tables, for notebooks in any theme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from bitwright.assess.outputs import OutputComparison

__all__ = ["Section", "html_tables", "output_section", "show_decibels"]

# Everything inherits the notebook's colors; rules are half transparent so that they show on both.
_TABLE = "border-collapse:collapse;font-variant-numeric:tabular-nums;margin:4px 0 12px"
_RULE = "border-bottom:1px solid rgba(128,128,128,.4);padding:2px 12px 2px 0;background:none"
_TITLE = "font-weight:600;text-align:left;padding:2px 0;caption-side:top;color:inherit"

Section = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""A title, the names of the columns, and the rows."""


def output_section(title: str, outputs: Sequence[OutputComparison]) -> Section:
    """Return the section of how far outputs are from float."""
    rows = [
        (
            output.name,
            show_decibels(output.sqnr),
            f"{output.cosine:.5f}",
            f"{output.largest_error:.3g}",
            "" if output.agreement is None else f"{100 * output.agreement:.1f}",
        )
        for output in outputs
    ]
    columns = ("output", "SQNR, dB", "cosine", "largest error", "same top answer, %")
    return title, columns, rows


def show_decibels(value: float | None) -> str:
    """Return a ratio for a reader.

    >>> show_decibels(31.25), show_decibels(math.inf), show_decibels(None)
    ('31.2', 'exact', '')
    """
    if value is None:
        return ""
    return "exact" if value == math.inf else f"{value:.1f}"


def html_tables(sections: Sequence[Section]) -> str:
    """Return tables one below the other; cells that are numbers stand right.

    >>> "<td" in html_tables([("Outputs", ("name", "SQNR"), [("y", "31.2")])])
    True
    """
    return "<div>" + "".join(_table(*section) for section in sections if section[2]) + "</div>"


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    right = [
        all(_is_number(row[place]) for row in rows) and any(row[place] for row in rows)
        for place in range(len(columns))
    ]
    head = "".join(_cell("th", *pair) for pair in zip(columns, right, strict=True))
    body = "".join(
        f"<tr>{''.join(_cell('td', *pair) for pair in zip(row, right, strict=True))}</tr>"
        for row in rows
    )
    heading = f"<thead><tr>{head}</tr></thead>" if any(columns) else ""
    return (
        f'<table style="{_TABLE}"><caption style="{_TITLE}">{escape(title)}</caption>'
        f"{heading}<tbody>{body}</tbody></table>"
    )


def _cell(tag: str, text: str, right: bool) -> str:
    align = "right" if right else "left"
    return f'<{tag} style="{_RULE};text-align:{align}">{escape(text)}</{tag}>'


def _is_number(text: str) -> bool:
    return text[:1].isdigit() or text[:1] in "-<" or text in ("", "exact")
