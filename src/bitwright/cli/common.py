"""Options that every command has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from bitwright.support.input_limits import input_limits, read_limits

__all__ = ["CommonOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """Options that hold while a command runs, whichever it is.

    >>> from bitwright.support.input_limits import current_limits
    >>> with CommonOptions(limits=["nesting=40"]).in_force():
    ...     current_limits().nesting
    40
    """

    limits: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=N",
            help="Raise what a file may ask for at most: nodes, nesting of bodies, elements of a "
            "random input; repeatable.",
        ),
    ] = None

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Run a command with these options."""
        with input_limits(**read_limits(",".join(self.limits or ()))):
            yield
