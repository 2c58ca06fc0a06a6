"""`scripts/ratchet.py` counts what it says, and `make check` fails where a count grew."""

import ast
import runpy
from pathlib import Path

import pytest

RATCHET = Path(__file__).parents[1] / "scripts" / "ratchet.py"


def test_fields_are_counted_in_each_class_that_inherits_them_and_not_in_its_base() -> None:
    source = """
class Base(Settings):
    a: int
    shared: ClassVar[int]
class First(Base):
    b: int
class Second(Base):
    pass
class Other:
    c: int
"""
    # First has a and b, Second has a.
    assert runpy.run_path(str(RATCHET))["recipe_fields"]([ast.parse(source)]) == 3


@pytest.mark.parametrize(("limit", "fails"), [(2, True), (3, False), (4, False)])
def test_only_what_is_above_its_limit_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, fails: bool
) -> None:
    limits = tmp_path / "ratchet.toml"
    limits.write_text(f"lines = {limit}\n", encoding="utf-8")
    main = runpy.run_path(str(RATCHET))["main"]
    monkeypatch.setitem(main.__globals__, "LIMITS", limits)
    monkeypatch.setitem(main.__globals__, "count", lambda: {"lines": 3})
    monkeypatch.setattr("sys.argv", ["ratchet.py"])
    assert bool(main()) is fails
