"""Write docs/reference/commands.md: every command with every option, as its help prints it."""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "commands.md"
HEAD = """# Commands

Every command with all its options, as its help prints them. The exit code is 0 where the job is
done (of `check` and `tune`: and within its limits, else 3), 1 where it is refused, 2 where the
words of the command are wrong, 130 after Ctrl-C and 143 after SIGTERM.

This page is written by `scripts/write_commands_page.py`, from the code.
"""


def write_page() -> str:
    """Return the page: a section for each command."""
    names = re.findall(r"^  ([a-z]+)  ", show("--help"), re.MULTILINE)
    parts = [HEAD]
    for name in names:
        asked = "--help-all" if name == "quantize" else "--help"
        parts.append(f"\n## {name}\n\n```text\n{show(name, asked).strip()}\n```\n")
    return "".join(parts)


def show(*words: str) -> str:
    """Return what the command prints, 96 columns wide."""
    os.environ |= {"COLUMNS": "96", "TERMINAL_WIDTH": "96", "NO_COLOR": "1"}
    from bitwright.cli import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        main(list(words))
    return "\n".join(line.rstrip() for line in printed.getvalue().splitlines())


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
