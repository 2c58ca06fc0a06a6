"""Write docs/api.md: each public name where its documentation is, by what it is for."""

from __future__ import annotations

import inspect
from pathlib import Path

import bitwright

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
HEAD = """# API

Everything public is at the top: `import bitwright`. Number types are constants: `bitwright.INT8`,
`UINT8`, `INT16`, `UINT16`, `INT4`, `UINT4`. Named recipes are in `bitwright.RECIPES`, targets in
`bitwright.TARGETS`.
"""
# The package in which a public name is defined -> the heading under which it stands.
GROUPS = {
    "api": "Verbs",
    "demo": "Verbs",
    "jobs": "Results",
    "assess": "Results",
    "verification": "Results",
    "data": "Data",
    "recipe": "Recipes",
    "targets": "Recipes",
    "plan": "Plans",
    "errors": "Errors",
    "support": "Limits",
}


def write_page() -> str:
    """Return the page: a line for mkdocstrings for each name, functions before classes."""
    found: dict[str, list[str]] = {heading: [] for heading in GROUPS.values()}
    values = [(name, getattr(bitwright, name)) for name in bitwright.__all__]
    for _, value in sorted(values, key=lambda pair: (inspect.isclass(pair[1]), pair[0])):
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        package = value.__module__.split(".")[1]
        heading = "Verbs" if inspect.isfunction(value) and package == "jobs" else GROUPS[package]
        found[heading].append(f"::: {value.__module__}.{value.__qualname__}")
    sections = (f"\n## {heading}\n\n" + "\n\n".join(lines) for heading, lines in found.items())
    return HEAD + "\n".join(sections) + "\n"


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
