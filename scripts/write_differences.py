"""Write the tables of differences into the guides, from the code: `make guides`.

A table stands between `<!-- differences: onnxruntime.STATIC -->` and `<!-- end -->`: the package
below `bitwright.compat`, and the name of the table in its `differences.py`.
"""

import re
from importlib import import_module
from pathlib import Path

from bitwright.compat.differences import as_table

GUIDES = sorted((Path(__file__).parents[1] / "docs").glob("from-*.md"))
TABLE = re.compile(r"<!-- differences: (\w+)\.(\w+) -->\n.*?<!-- end -->", re.DOTALL)


def filled(page: str) -> str:
    """Return the text of a page with its tables as the code has them."""

    def table(found: re.Match[str]) -> str:
        package, name = found.groups()
        rows = getattr(import_module(f"bitwright.compat.{package}.differences"), name)
        return f"<!-- differences: {package}.{name} -->\n{as_table(rows)}\n<!-- end -->"

    return TABLE.sub(table, page)


if __name__ == "__main__":
    for guide in GUIDES:
        guide.write_text(filled(guide.read_text(encoding="utf-8")), encoding="utf-8")
