"""Results as small HTML tables, for notebooks in any theme, and as pandas tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bitwright.assess.outputs import OutputComparison
from bitwright.assess.rendering import render_template, show_decibels
from bitwright.errors import MissingPackageError

__all__ = ["Section", "data_frame", "html_tables", "output_section"]

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


def html_tables(sections: Sequence[Section], footnote: str = "") -> str:
    """Return tables one below the other; columns of numbers are aligned to the right.

    >>> "<td" in html_tables([("Outputs", ("name", "SQNR"), [("y", "31.2")])])
    True
    """
    tables = [
        (title, columns, rows, [_are_numbers(column) for column in zip(*rows, strict=True)])
        for title, columns, rows in sections
        if rows
    ]
    return render_template("notebook.html", tables=tables, footnote=footnote)


def _are_numbers(texts: Sequence[str]) -> bool:
    return any(texts) and all(
        text[:1].isdigit() or text[:1] in "-<\N{EN DASH}" or text == "exact" for text in texts
    )


def data_frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> Any:
    """Return rows as a pandas DataFrame, or say that pandas is missing.

    `columns` names them where there may be no row to read them from.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingPackageError(
            "to_pandas needs pandas, which is not installed; install it (pip install pandas), "
            "or use to_dict."
        ) from error
    return pd.DataFrame(rows, columns=columns)
