"""Results in consoles and notebooks: one line, a summary where it is printed, small HTML tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, ClassVar

from bitwright.errors import MissingPackageError
from bitwright.support.wording import printable

Section = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""A title, the names of the columns, and the rows."""


class Summarized:
    """A value that a console shows as one line and `print` as its `summary()`.

    The line is the first of the summary.

    >>> class Cup(Summarized):
    ...     def summary(self):
    ...         return "half full\\nof tea"
    >>> Cup()
    <Cup: half full>
    >>> print(Cup())
    half full
    of tea
    """

    __slots__ = ()
    _heading: ClassVar[str] = ""
    """What stands above the summary in a notebook."""

    def summary(self) -> str:
        """Return what it is, in a few lines."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {str(self).partition(chr(10))[0]}>"

    def __str__(self) -> str:
        return "\n".join(map(printable, self.summary().split("\n")))

    def sections(self, *, verbose: bool = False) -> list[Section]:
        """Return the tables that a notebook and a terminal show; `verbose`: whole ones."""
        return []

    def _repr_html_(self) -> str:
        lines = [line.partition(": ") for line in str(self).split("\n")]
        facts = [(name, text) if mark else ("", name) for name, mark, text in lines]
        return html_tables([(self._heading, ("", ""), facts), *self.sections()])


# Everything inherits its colours; rules are half transparent, so that they show on every theme.
_CELL = "border-bottom:1px solid rgba(128,128,128,.4);padding:2px 12px 2px 0;background:none"
_TABLE = "border-collapse:collapse;font-variant-numeric:tabular-nums;margin:4px 0 12px"
_CAPTION = "font-weight:600;text-align:left;padding:2px 0;caption-side:top;color:inherit"


def html_tables(sections: Sequence[Section], footnote: str = "") -> str:
    """Return tables one below the other; columns of numbers are aligned to the right."""
    tables = "".join(_table(*section) for section in sections if section[2])
    return f"<div>{tables}{f'<p>{escape(footnote)}</p>' if footnote else ''}</div>"


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    sides = ["right" if _are_numbers(column) else "left" for column in zip(*rows, strict=True)]

    def line(tag: str, texts: Sequence[str]) -> str:
        cells = (
            f'<{tag} style="{_CELL};text-align:{side}">{escape(text)}</{tag}>'
            for text, side in zip(texts, sides, strict=True)
        )
        return f"<tr>{''.join(cells)}</tr>"

    head = f"<thead>{line('th', columns)}</thead>" if any(columns) else ""
    body = "\n".join(line("td", row) for row in rows)
    caption = f'<caption style="{_CAPTION}">{escape(title)}</caption>'
    return f'<table style="{_TABLE}">{caption}{head}<tbody>{body}</tbody></table>'


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


def plain(value: Any) -> Any:
    """Return a value as JSON has it: sequences as lists, paths as text, others by `to_dict`."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def plain_fields(value: object, *names: str, **renamed: str) -> dict[str, Any]:
    """Return attributes of a value as plain data, under their own names or under others."""
    fields = dict(zip(names, names, strict=True)) | renamed
    return {key: plain(getattr(value, name)) for key, name in fields.items()}
