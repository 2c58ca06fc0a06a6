"""Write docs/reference/rules.md: every kind of rule that the file of a target can have."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
from pathlib import Path

from bitwright.verification.rules import KINDS, Rule
from bitwright.verification.rules.rule import Ask

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "rules.md"
READ_SECTION = runpy.run_path(str(Path(__file__).with_name("write_recipe_page.py")))["read_section"]
HEAD = """# Rules of targets

What a `kind` of rule asks in the [file of a target](../targets.md#a-target-of-your-own), and the
fields that it has beside `consequence`, `fix` and `source`. Those in bold must be given. What
*changes recipes* is kept by `quantize --target`; the others are only checked.

This page is written by `scripts/write_rules_page.py`, from the code.
"""


def write_page() -> str:
    """Return the page: a table for each class of rules."""
    return "".join([HEAD, *map(_section, KINDS)])


def _section(kind: type[Rule]) -> str:
    text = inspect.getdoc(kind) or ""
    title, _, rest = text.partition("\n")
    said = dict(re.findall(r"^\* `(\w+)`: (.+?)[;.]?$", _joined(rest), re.MULTILINE))
    common = {*Rule.__struct_fields__}
    tree = ast.parse(inspect.getsource(kind)).body[0]
    meanings = {one.name: one.meaning for one in READ_SECTION(tree).fields}
    fields = [name for name in kind.__struct_fields__ if name not in common]
    rows = [_row(name, ask, said.get(name, ""), fields) for name, ask in kind.ASKS.items()]
    table = "| kind | asks that | |\n|---|---|---|\n" + "\n".join(rows)
    shown = "\n".join(f"| `{name}` | {meanings.get(name, '')} |" for name in fields)
    return f"\n## {title.rstrip('.')}\n\n{table}\n\n| field | |\n|---|---|\n{shown}\n"


def _joined(text: str) -> str:
    """Return items of a list on one line each."""
    return re.sub(r"\n {2}(?=\S)", " ", text)


def _row(name: str, ask: Ask, meaning: str, fields: list[str]) -> str:
    plain = Ask()
    changes = ask.change is not plain.change or ask.change_weights is not plain.change_weights
    notes = [f"**{one}**" for one in ask.needs if one in fields]
    notes += ["*changes recipes*"] if changes else []
    return f"| `{name}` | {meaning} | {', '.join(notes)} |"


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
