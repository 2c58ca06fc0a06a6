"""Help that is short: the first commands apart from the others, the first options on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

EVERY_OPTION = "--help-all"
FIRST_COMMANDS = ("quantize", "tune", "check", "publish", "report", "inspect", "recipes", "demo")


class Overview(TyperGroup):
    """The whole program, of which the help lists the first commands apart from the others."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write two lists of commands."""
        others = [name for name in self.list_commands(ctx) if name not in FIRST_COMMANDS]
        for title, names in (("Commands", FIRST_COMMANDS), ("More commands", others)):
            with formatter.section(title):
                width = formatter.width - 6 - max(map(len, self.commands))
                formatter.write_dl(
                    [(name, self.commands[name].get_short_help_str(width)) for name in names]
                )


def with_short_help(page: str) -> type[TyperCommand]:
    """Return the kind of command that says for its help what a file beside this one says."""

    class ShortHelp(TyperCommand):
        def get_help(self, ctx: Any) -> str:
            return Path(__file__).with_name(page).read_text("utf-8").rstrip()

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if EVERY_OPTION in args:
                typer.echo(TyperCommand.get_help(self, ctx))
                raise typer.Exit
            return super().parse_args(ctx, args)

    return ShortHelp
