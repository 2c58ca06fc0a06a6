"""The guides show the differences that the code has, and each is about something that exists."""

import pkgutil
import re
import runpy
from importlib import import_module
from inspect import getmembers
from pathlib import Path

import pytest

from bitwright.compat.differences import Difference

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "write_differences.py"))
PACKAGES = ("onnxruntime",)


def tables(package):
    """Return the tables of a package by name."""
    module = import_module(f"bitwright.compat.{package}.differences")
    return {name: table for name, table in getmembers(module) if isinstance(table, tuple)}


ROWS = [(package, row) for package in PACKAGES for t in tables(package).values() for row in t]


@pytest.mark.parametrize("guide", SCRIPT["GUIDES"], ids=lambda path: path.name)
def test_the_tables_of_the_guides_are_up_to_date(guide):
    text = guide.read_text(encoding="utf-8")
    assert SCRIPT["filled"](text) == text, "run `make guides`"


def test_every_table_is_shown_once():
    text = "".join(guide.read_text(encoding="utf-8") for guide in SCRIPT["GUIDES"])
    shown = sorted(SCRIPT["TABLE"].findall(text))
    assert shown == sorted((package, name) for package in PACKAGES for name in tables(package))


@pytest.mark.parametrize(("package", "row"), ROWS, ids=lambda part: getattr(part, "there", part))
def test_every_difference_is_about_a_public_name_and_has_its_reason(package, row):
    assert isinstance(row, Difference)
    assert pkgutil.resolve_name(f"bitwright.compat.{package}.{row.name}") is not None
    assert not re.search(r"(^|\.)_", row.name)
    assert row.there and row.here and row.why
    assert row.there not in (row.here, row.why)
    assert not re.search(r"[|\n]|\.$", row.there + row.here + row.why)


def test_no_two_differences_are_the_same():
    facts = [(package, row.name, row.there) for package, row in ROWS]
    assert len(facts) == len({*facts})
