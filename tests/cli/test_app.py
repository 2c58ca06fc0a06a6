from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from bitwright.cli.app import expand_groups


@dataclass(frozen=True, kw_only=True)
class Paint:
    colour: Annotated[str, typer.Option(help="Red or blue.")] = "red"
    coats: Annotated[int, typer.Option("--coats", "-c")] = 1


@dataclass(frozen=True, kw_only=True)
class ThickPaint(Paint):
    coats: Annotated[int, typer.Option("--coats", "-c", help="Many.")] = 9


def run(command, *words):
    app = typer.Typer(rich_markup_mode=None)
    app.command()(expand_groups(command))
    return CliRunner().invoke(app, words)


def test_a_command_gets_its_groups_made_of_what_was_typed():
    got = []

    def paint(wall: str, *, paint: Paint, dry: bool = False) -> None:
        got.append((wall, paint, dry))

    assert run(paint, "north", "--colour", "blue", "-c", "3", "--dry").exit_code == 0
    assert run(paint, "south").exit_code == 0
    assert got == [("north", Paint(colour="blue", coats=3), True), ("south", Paint(), False)]


def test_a_group_may_change_an_option_of_the_group_it_comes_from():
    got = []

    def paint(*, paint: ThickPaint) -> None:
        got.append(paint)

    assert run(paint, "--colour", "blue").exit_code == 0
    assert got == [ThickPaint(colour="blue", coats=9)]
    assert "Many." in run(paint, "--help").stdout


def test_an_option_that_two_groups_declare_is_refused():
    def paint(*, paint: Paint, more: ThickPaint) -> None:
        raise AssertionError("never called")

    with pytest.raises(ValueError, match="duplicate parameter name"):
        expand_groups(paint)
