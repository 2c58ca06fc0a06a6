"""Write docs/reference/options.md: where each option of another tool goes in a recipe.

The tables are those by which `bitwright.compat` translates (`OPTIONS`, `ARGUMENTS`), as they stand
in the source.
"""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import bitwright
from bitwright.compat.vai_q_onnx.options import REFUSED

PACKAGE = Path(bitwright.__file__).parent / "compat"
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "options.md"
TABLES = {
    "`extra_options` of `onnxruntime.quantization`": ("onnxruntime/options.py", "OPTIONS"),
    "Arguments of `vai_q_onnx.quantize_static`": ("vai_q_onnx/options.py", "ARGUMENTS"),
    "`extra_options` of Vitis AI and Quark": ("vai_q_onnx/options.py", "OPTIONS"),
    "`FastFinetune` of Quark": ("vai_q_onnx/finetuning.py", "OPTIONS"),
}
HEAD = """# Options of other tools

Where `bitwright.compat` takes an option of another tool: the field of a [recipe](recipes.md), or
what becomes of it. An option that is not listed is ignored with a warning, or refused where the
tool itself refuses it.

This page is written by `scripts/write_options_page.py`, from the code.
"""


def write_page() -> str:
    """Return the page: a table for each translation."""
    parts = [HEAD]
    for title, (file, name) in TABLES.items():
        tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
        rows = read_table(tree, name)
        lines = "\n".join(f"| `{option}` | {meaning} |" for option, meaning in rows)
        parts.append(f"\n## {title}\n\n| option | here |\n|---|---|\n{lines}\n")
    refused = "".join(f"| `{name}` | {reason} |\n" for name, reason in REFUSED.items())
    parts.append(
        f"\n## Options of Quark that are refused\n\n| option | why |\n|---|---|\n{refused}"
    )
    return "".join(parts)


def read_table(tree: ast.Module, name: str) -> list[tuple[str, str]]:
    """Return the options of a table of rows in a module, and what each row says."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    constants = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    [table] = [
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == name
    ]
    assert isinstance(table, ast.Dict)
    return [
        (key.value, describe(row, functions, constants))
        for key, row in zip(table.keys, table.values, strict=True)
        if isinstance(key, ast.Constant)
    ]


def describe(
    row: ast.expr, functions: dict[str, ast.FunctionDef], constants: dict[str, object]
) -> str:
    """Say what a row does with its option."""
    if not isinstance(row, ast.Call):
        return _summary(row, functions)
    maker = ast.unparse(row.func)
    given = [_value(argument, constants) for argument in row.args]
    if maker == "to":
        reverse = len(row.args) > 1 and ast.unparse(row.args[1]) == "negated"
        return _field(given[0]) + (", the other way round" if reverse else "")
    if maker == "when_on" and isinstance(given[0], dict):
        return ", ".join(map(_field, given[0]))
    if maker == "checked":
        return "accepted: what it asks for happens anyway"
    if maker == "only":
        return f"always `{given[0]!r}`: {given[1]}"
    if maker == "refused":
        return f"refused: {given[0]}"
    paths = [one for one in given if isinstance(one, str) and re.fullmatch(r"\w+\.\w+", one)]
    return _field(paths[0]) if paths else _summary(row.func, functions)


def _value(node: ast.expr, constants: dict[str, object]) -> object:
    if isinstance(node, ast.Name):
        return constants.get(node.id, node.id)
    if isinstance(node, ast.Dict):
        return {key.value: None for key in node.keys if isinstance(key, ast.Constant)}
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


# What the translation calls a part of a recipe, or of a call -> how a user says it.
_PLACES = {
    "recipe": "`{}`",
    "asked": "`{}`",
    "calibration": "`{}` of the range method",
    "data": "`{}` of `bitwright.quantize`",
    "fuse": "`{}` in `place.fuse_activations`",
    "fuse_pairs": "`{}` in `emulate.fuse_pairs`",
    "bias": "`{}` as `bias`",
}


def _field(path: object) -> str:
    section, _, name = str(path).partition(".")
    return _PLACES[section].format(name) if section in _PLACES else f"`{path}`"


def _summary(node: ast.expr, functions: dict[str, ast.FunctionDef]) -> str:
    function = functions.get(ast.unparse(node))
    text = None if function is None else ast.get_docstring(function)
    return textwrap.shorten(text, 120) if text else "read together with others"


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
