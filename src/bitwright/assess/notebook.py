"""Results in notebooks: the table of outputs against float, and pandas tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bitwright.assess.outputs import OutputComparison
from bitwright.assess.rendering import show_decibels
from bitwright.errors import MissingPackageError
from bitwright.support.showing import Section, html_tables

__all__ = ["Section", "data_frame", "html_tables", "output_section"]


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
