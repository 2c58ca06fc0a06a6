"""CONTRIBUTING names the files that a change touches: they exist, and hold what it says."""

import re
from pathlib import Path

import pytest

import bitwright

ROOT = Path(__file__).parents[2]
PACKAGE = Path(bitwright.__file__).parent
TO_ADD = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## To add")[2]
FILE = re.compile(r"(?:\w+/)*[\w-]+\.(?:pyi?|md|txt|toml|json|yml)")
CHANGES = re.findall(r"^\*\*(.+?)\*\*(.+?)(?=^\*\*|\Z)", TO_ADD, re.MULTILINE | re.DOTALL)

MOST_FILES = {"a weight-only method that learns": 6, "a rule of hardware": 1}


def quoted(text):
    """Return what stands between backticks."""
    return re.findall(r"`([^`]+)`", text)


def rows(text):
    return [line for line in text.splitlines() if line.startswith("* ")]


def find(name):
    """Return the file of a name, below the package or the repository; None: there is none."""
    return next((base / name for base in (PACKAGE, ROOT) if (base / name).is_file()), None)


def test_every_file_that_is_named_exists():
    words = [word for text in quoted(TO_ADD) for word in text.split()]
    files = [word for word in words if FILE.fullmatch(word)]
    assert len(files) > 20
    assert [name for name in files if find(name) is None] == []


@pytest.mark.parametrize(("change", "text"), CHANGES, ids=[change for change, _ in CHANGES])
def test_a_change_takes_few_files_and_each_holds_what_is_said_of_it(change, text):
    assert 1 <= len(rows(text)) <= MOST_FILES.get(change, 3)
    for row in rows(text):
        files = [name for name in quoted(row) if FILE.fullmatch(name)]
        assert files, row
        code = "".join(find(name).read_text(encoding="utf-8") for name in files)
        names = [name.rpartition(".")[2] for name in quoted(row) if name not in files]
        assert [name for name in names if not re.search(rf"\b{name}\b", code)] == []


def test_there_are_eighteen_changes():
    assert len(CHANGES) == 18
