"""The output of commands: tables on a terminal, plain lines in a pipe, one JSON object."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from bitwright.cli.groups import described, switch
from bitwright.support.wording import printable, show_bytes

__all__ = ["Facts", "Json", "Part", "Screen", "Table", "Verbose", "show_bytes"]

Json = Annotated[bool, described(None, "Print one JSON object and nothing else.", "--json")]
Verbose = Annotated[
    bool,
    described(
        None, "Name every node, and show steps with times and tracebacks.", "--verbose", "-v"
    ),
]


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with their values, one per line."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under named columns; columns of numbers are aligned right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


Part = str | Facts | Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """The form in which a command's result is printed."""

    as_json: Json = False
    quiet: bool = switch("Print nothing but warnings and errors.", "-q")
    verbose: Verbose = False

    @property
    def wants_progress(self) -> bool:
        """Whether a bar may be shown (it still needs a terminal)."""
        return not (self.as_json or self.quiet)

    def show(self, document: Mapping[str, Any], parts: Sequence[Part]) -> None:
        """Print the document as JSON, or else the parts for a reader."""
        if self.as_json:
            import msgspec

            # Unlike json.dumps this writes infinities as null, which every parser reads.
            try:
                encoded = msgspec.json.encode(document)
            except UnicodeEncodeError:  # a path that is not UTF-8
                encoded = msgspec.json.encode(_encodable(msgspec.to_builtins(document)))
            text = msgspec.json.format(encoded, indent=2).decode()
            print("\n".join(printable(line, as_json=True) for line in text.split("\n")))
        elif not self.quiet:
            parts = [_printable(part) for part in parts if isinstance(part, str) or part.rows]
            if sys.stdout.isatty():
                _draw(parts)
            else:
                print("\n".join(line for part in parts for line in _lines(part)))


def _encodable(value: Any) -> Any:
    """Return plain data with what is no UTF-8 escaped."""
    if isinstance(value, dict):
        return {_encodable(name): _encodable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encodable(item) for item in value]
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    return value


def _printable(part: Part) -> Part:
    """Return a part whose names and values stay in their lines and cells; a text may have lines."""
    if isinstance(part, str):
        return "\n".join(map(printable, part.split("\n")))
    if isinstance(part, Facts):
        return Facts([(name, printable(value)) for name, value in part.rows])
    rows = [tuple(map(printable, row)) for row in part.rows]
    return Table(printable(part.title), part.columns, rows)


def _lines(part: Part) -> list[str]:
    if isinstance(part, str):
        return part.splitlines()
    if isinstance(part, Facts):
        return [f"{name}: {value}" for name, value in part.rows]
    widths = [max(map(len, column)) for column in zip(part.columns, *part.rows, strict=True)]
    rows = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (part.columns, *part.rows)
    ]
    return [part.title, *("  " + row for row in rows)]


def _draw(parts: Sequence[Part]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    # Text, not str: a tensor's "[1,3]" must not be read as markup. NO_COLOR is rich's to honour.
    console = Console(highlight=False)
    for index, part in enumerate(parts):
        if index:
            console.print()
        if isinstance(part, str):
            console.print(Text(part), soft_wrap=True)  # a command must survive copying
            continue
        drawn = Drawn(title_justify="left", title_style="bold")
        if isinstance(part, Facts):
            drawn.box, drawn.show_header = None, False
            drawn.add_column(style="bold", no_wrap=True)
            drawn.add_column(overflow="fold")
        else:
            drawn.box, drawn.title = box.SIMPLE_HEAD, Text(part.title)
            for place, column in enumerate(part.columns):
                numeric = all(row[place][:1].isdigit() for row in part.rows)
                drawn.add_column(column, justify="right" if numeric else "left", overflow="fold")
        for row in part.rows:
            drawn.add_row(*(Text(cell) for cell in row))
        console.print(drawn)
