"""Write examples/*.ipynb: the code of each script, with the files it reads in a cell of its own.

python scripts/notebooks.py
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"

# What the last cell calls `main` with: names of files to put one's own in place of.
ARGUMENTS = {
    "accuracy": ("model.onnx", "calibration.npy", "q.onnx"),
    "cluster": ("model.onnx", "calibration.npy", "out"),
    "cnn": ("model.onnx", "images", "q.onnx"),
    "detector": ("model.onnx", "images", "q.onnx", "classify.*"),
    "encoder": ("encoder.onnx", "out"),
    "language_model": ("exported", "out"),
    "npu": ("model.onnx", "images", "q.onnx", "batch=1"),
    "qat": ("trained.onnx", "q.onnx"),
    "tuning": ("q.onnx",),
}


def make_notebook(name: str) -> dict[str, Any]:
    """Return the notebook of a script: what it is for, its code, and the call."""
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    tree = ast.parse(text)
    title = (ast.get_docstring(tree) or "").partition(":")[0]
    # Without the docstring on top, and without the part that reads the command line.
    last = tree.body[-1]
    lines = text.splitlines()[tree.body[0].end_lineno : last.lineno - 1]
    code = "\n".join(lines).strip()
    if "sys." not in code:
        code = code.replace("import sys\n", "", 1).strip()
    imports, _, rest = code.partition("\n\n\n")
    function = tree.body[-2]
    assert isinstance(function, ast.FunctionDef)
    tutorial = f"docs/tutorials/{name.replace('_', '-')}.md"
    call = "main(" + ", ".join(f'"{one}"' for one in ARGUMENTS[name]) + ")"
    cells = [
        ("markdown", f"# {title}\n\n{ast.get_docstring(function)} `{tutorial}` explains it."),
        ("code", imports),
        ("code", rest),
        ("markdown", "With your own files in place of these:"),
        ("code", call),
    ]
    return {
        "cells": [_cell(kind, source, f"cell-{n}") for n, (kind, source) in enumerate(cells)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _cell(kind: str, source: str, name: str) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "id": name, "metadata": {}, "source": source}
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    return cell


def main() -> None:
    """Write all of them."""
    for name in ARGUMENTS:
        text = json.dumps(make_notebook(name), indent=1, ensure_ascii=False) + "\n"
        (EXAMPLES / f"{name}.ipynb").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
