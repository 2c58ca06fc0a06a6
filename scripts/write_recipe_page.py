"""Write docs/reference/recipes.md: every named recipe, every field, its default and its meaning.

What a field means is its docstring in `src/bitwright/recipe`: the page and an editor say the same.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from bitwright import RECIPES, recipe
from bitwright.support.settings import Settings

SOURCE = Path(recipe.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "recipes.md"
HEAD = """# Fields of recipes

Every field of a recipe, by section; [recipes](../recipes.md) says what they are for. In JSON and
YAML, and for `--set`, a field has the name that it has here.

This page is written by `scripts/write_recipe_page.py`, from the code.
"""
NAMED = """
## Named recipes

What each sets beside the defaults below. `bitwright recipes` shows their number types in a table,
and `bitwright recipes NAME` prints one in full, to edit. Names are found in upper or lower case and
with `_` or `-`.

| name | what it sets |
|---|---|
"""


class Field(NamedTuple):
    """One field: its name, what it takes, its default and its docstring."""

    name: str
    takes: str
    default: str
    meaning: str


class Section(NamedTuple):
    """The fields that a class of settings defines; `tag` is what names it in JSON."""

    name: str
    base: str
    tag: str
    meaning: str
    fields: tuple[Field, ...]


def read_sections() -> dict[str, Section]:
    """Return the classes of settings that recipes are made of, by name; `Recipe` comes first."""
    # Sizes are rules, as targets have them: docs/targets.md says what is in them.
    files = [path for path in SOURCE.glob("*.py") if path.name != "sizes.py"]
    paths = sorted(files, key=lambda path: (path.name != "fields.py", path.name))
    found = [
        read_section(node)
        for path in paths
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and any(word.arg == "frozen" for word in node.keywords)
    ]
    sections = {one.name: one for one in found if one.fields or not one.name.startswith("_")}
    # What only one class extends is a part of it.
    for base in [one.base for one in found if one.base in sections]:
        heirs = [one for one in sections.values() if one.base == base]
        if len(heirs) == 1:
            heir, part = heirs[0], sections.pop(base)
            merged = part._replace(name=heir.name, fields=part.fields + heir.fields)
            sections = {heir.name: merged} | {
                name: one for name, one in sections.items() if name != heir.name
            }
    return sections


def read_section(node: ast.ClassDef) -> Section:
    """Return what a class says of itself and of its own fields."""
    words = {word.arg: word.value for word in node.keywords}
    tag = ""
    if "tag" in words:
        tag = f"{ast.literal_eval(words['tag_field'])}: {ast.literal_eval(words['tag'])}"
    meaning = inspect.cleandoc(ast.get_docstring(node) or "").partition(">>>")[0].strip()
    fields = []
    for line, after in pairwise([*node.body, ast.Pass()]):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            said = after.value if isinstance(after, ast.Expr) else None
            text = str(said.value) if isinstance(said, ast.Constant) else ""
            default = "" if line.value is None else show_default(line.value)
            takes = show_type(line.annotation)
            fields.append(Field(line.target.id, takes, default, text))
    return Section(node.name, ast.unparse(node.bases[0]), tag, meaning, tuple(fields))


def read_unions() -> dict[str, set[str]]:
    """Return the names that stand for one of several classes, as `RangeMethod`."""
    return {
        node.targets[0].id: set(re.findall(r"\w+", ast.unparse(node.value)))
        for path in SOURCE.glob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.BinOp)
    }


def show_type(annotation: ast.expr) -> str:
    """Return an annotation in the words of a recipe's reader.

    >>> show_type(ast.parse("Literal['a', 'b'] | None", mode="eval").body)
    '"a", "b" or null'
    """
    if isinstance(annotation, ast.BinOp):
        return f"{show_type(annotation.left)} or {show_type(annotation.right)}"
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        inside = annotation.slice
        values = inside.elts if isinstance(inside, ast.Tuple) else [inside]
        return ", ".join(json.dumps(ast.literal_eval(value)) for value in values)
    names = {
        "None": "null",
        "int": "number",
        "float": "number",
        "bool": "true or false",
        "str": "name",
    }
    names |= {"QType": "number type", "tuple[str, ...]": "names"}
    return names.get(ast.unparse(annotation), ast.unparse(annotation))


def show_default(value: ast.expr) -> str:
    """Return a default as a recipe in JSON has it.

    >>> show_default(ast.parse("MinMax()", mode="eval").body)
    'MinMax'
    """
    if isinstance(value, ast.Call):
        factory = next(
            (word.value for word in value.keywords if word.arg == "default_factory"), None
        )
        return "{}" if factory is not None else ast.unparse(value.func)
    if isinstance(value, ast.Name):
        return value.id.lower()
    return json.dumps(ast.literal_eval(value))


def show_changes(given: Settings) -> list[str]:
    """Return what of a section is not its default, in Python; of long lists how long they are.

    >>> show_changes(RECIPES["int8-per-channel"])
    ["name='int8-per-channel'", 'per_channel=True']
    """
    default = type(given)()
    changed = []
    for name in given.__struct_fields__:
        value = getattr(given, name)
        if isinstance(value, Settings) and value != getattr(default, name):
            changed.append(f"{name}={type(value).__name__}({', '.join(show_changes(value))})")
        elif isinstance(value, tuple) and len(value) > 6:
            changed.append(f"{name}=({len(value)} names)")
        elif value != getattr(default, name):
            changed.append(f"{name}={value!r}")
    return changed


def show_section(section: Section, sections: dict[str, Section]) -> str:
    """Return a heading, what the section is, and the table of its fields."""
    unions = read_unions()
    kinds = {section.name, *(union for union, members in unions.items() if section.name in members)}
    places = [
        f"`{field.name}` of {link(owner)}"
        for owner in sections.values()
        for field in owner.fields
        if kinds & set(re.findall(r"\w+", field.takes))
    ]
    facts = [f"Where: {', '.join(places)}."] if places else []
    facts += [f"In a file: `{section.tag}`."] if section.tag else []
    base = sections.get(section.base)
    facts += [f"Besides, it has the fields of {link(base)}."] if base else []
    lines = [f"\n## {section.name.strip('_')}\n", section.meaning]
    lines += ["", " ".join(facts)] if facts else []
    if section.fields:
        lines += ["", "| field | takes | default | meaning |", "|---|---|---|---|"]
    inherited = {field.name: field.meaning for field in base.fields} if base else {}
    for name, takes, default, meaning in section.fields:
        said = meaning or inherited.get(name, "")
        lines.append(f"| `{name}` | {cell(takes)} | {cell(default)} | {cell(said)} |")
    return "\n".join(lines) + "\n"


def link(section: Section) -> str:
    """Return a link to a section of the page."""
    name = section.name.strip("_")
    return f"[{name}](#{name.lower()})"


def cell(text: str) -> str:
    """Return text that a cell of a table can hold."""
    return " ".join(text.split()).replace("|", "\\|")


def write_page() -> str:
    """Return the page."""
    rows = ""
    for name, one in RECIPES.items():
        changed = (f"`{change}`" for change in show_changes(one) if not change.startswith("name="))
        rows += f"| `{name}` | {', '.join(changed) or 'the defaults'} |\n"
    sections = read_sections()
    return HEAD + NAMED + rows + "".join(show_section(one, sections) for one in sections.values())


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(write_page(), encoding="utf-8")
