"""Tests mirror `src/`: every module has a test file of its name, or `coverage_map.toml` says which
test file covers it."""

import ast
import tomllib
from pathlib import Path

import pytest

import bitwright

ROOT = Path(bitwright.__file__).parent
TESTS = Path(__file__).parent
MAP = TESTS / "coverage_map.toml"


def modules():
    """Return every module that defines something, as a path below the package."""
    return [
        path.relative_to(ROOT)
        for path in sorted(ROOT.rglob("*.py"))
        if any(
            isinstance(node, ast.FunctionDef | ast.ClassDef)
            for node in ast.parse(path.read_text(encoding="utf-8")).body
        )
    ]


def own_test(module):
    """Return where the test file of a module's name would be."""
    name = module.parent.name if module.stem == "__init__" else module.stem
    return module.parent / f"test_{name}.py"


def covered_elsewhere():
    with MAP.open("rb") as file:
        return tomllib.load(file)


@pytest.mark.parametrize("module", modules(), ids=str)
def test_every_module_has_a_test_file_of_its_name_or_an_entry(module):
    if (TESTS / own_test(module)).is_file():
        assert str(module) not in covered_elsewhere(), f"drop its entry from {MAP.name}"
    else:
        assert str(module) in covered_elsewhere(), f"write tests/{own_test(module)}"


def test_every_entry_names_a_module_and_a_test_file_that_exist():
    known = set(map(str, modules()))
    for module, test in covered_elsewhere().items():
        assert module in known, f"{module} is no module, or defines nothing"
        assert (TESTS / test).is_file(), f"{test} does not exist"


def test_entries_are_sorted():
    assert list(covered_elsewhere()) == sorted(covered_elsewhere())
