from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from bitwright.cli.groups import REQUIRED, expand_groups, option, switch


@dataclass(frozen=True, kw_only=True)
class Paint:
    colour: str = option("WORD", "Red or blue.", default="red")
    coats: Annotated[int, typer.Option("--coats", "-c")] = 1
    is_gloss: bool = switch("With a shine.", "-g")


@dataclass(frozen=True, kw_only=True)
class ThickPaint(Paint):
    coats: int = option("N", "Many.", "--coats", "-c", default=9)


def run(command, *words):
    app = typer.Typer(rich_markup_mode=None)
    app.command()(expand_groups(command))
    return CliRunner().invoke(app, words)


def test_a_command_gets_its_groups_made_of_what_was_typed():
    got = []

    def paint(wall: str, *, paint: Paint, dry: bool = False) -> None:
        got.append((wall, paint, dry))

    assert run(paint, "north", "--colour", "blue", "-c", "3", "--dry", "-g").exit_code == 0
    assert run(paint, "south").exit_code == 0
    glossy = Paint(colour="blue", coats=3, is_gloss=True)
    assert got == [("north", glossy, True), ("south", Paint(), False)]


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


def test_a_switch_has_no_opposite_and_a_required_option_must_be_given():
    @dataclass(frozen=True, kw_only=True)
    class Place:
        wall: str = option("NAME", "Which one.", default=REQUIRED)

    def paint(*, paint: Paint, place: Place) -> None:
        pass

    paint.__annotations__["place"] = Place
    assert run(paint, "--wall", "north", "--is-gloss").exit_code == 0
    assert run(paint, "--wall", "north", "--no-is-gloss").exit_code == 2
    assert run(paint).exit_code == 2
