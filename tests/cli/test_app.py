from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from bitwright.cli import main
from bitwright.cli.app import _make_app, expand_groups


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


def letters(text):
    """The text without spaces, so that it does not matter where a line or a word is broken."""
    return "".join(text.split())


def test_help_fits_80_columns_and_no_sentence_is_cut(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    commands = typer.main.get_command(_make_app()).commands
    main(["--help"])
    overview = capsys.readouterr().out
    assert all(len(line) <= 80 for line in overview.splitlines())
    for name, command in commands.items():
        first = command.help.partition("\n\n")[0]
        assert name + letters(first) in letters(overview)
        main([name, "--help"])
        shown = capsys.readouterr().out
        assert all(len(line) <= 80 for line in shown.splitlines())
        for sentence in [command.help, *(option.help for option in command.params)]:
            assert letters(sentence) in letters(shown)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("bitwright quan", ["quantize"]),
        ("bitwright quantize m.onnx --random", ["--random-data"]),
        ("bitwright quantize m.onnx --recipe int4-g", ["int4-gptq"]),
        ("bitwright plan m.onnx --target npu-t", ["npu-transformer"]),
        ("bitwright recipes mxint", ["mxint8"]),
    ],
)
def test_shells_complete_commands_options_and_names(capsys, monkeypatch, line, offered):
    monkeypatch.setenv("_BITWRIGHT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code in (0, None)
    assert capsys.readouterr().out.split() == offered
