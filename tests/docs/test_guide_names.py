"""Rows of a guide that say what differs are about names that exist."""

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "from-onnxruntime.md"
HEADER = "| name | there | here |\n|---|---|---|\n"


def rows():
    for table in GUIDE.read_text(encoding="utf-8").split(HEADER)[1:]:
        for line in table.partition("\n\n")[0].splitlines():
            yield pytest.param(*re.split(r" ?(?<!\\)\| ?", line)[1:-1], id=line[:60])


@pytest.mark.parametrize(("name", "there", "here"), list(rows()))
def test_a_row_is_about_a_public_name_and_says_two_things(name, there, here):
    assert resolve_name(f"bitwright.compat.onnxruntime.{name.strip('`')}") is not None
    assert there and here
    assert there != here
