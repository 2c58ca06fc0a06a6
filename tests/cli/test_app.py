import re

import pytest
import typer

from bitwright.cli import main
from bitwright.cli.app import _make_app
from bitwright.cli.short_help import EVERY_OPTION


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
        main([name, "--help-all" if name == "quantize" else "--help"])
        shown = capsys.readouterr().out
        assert all(len(line) <= 80 for line in shown.splitlines())
        for sentence in [command.help, *(option.help for option in command.params)]:
            assert letters(sentence) in letters(shown)


def test_the_help_of_quantize_is_one_page_of_options_that_there_are(capsys):
    main(["quantize", "-h"])
    page = capsys.readouterr().out.splitlines()
    assert len(page) <= 30 and all(len(line) <= 80 for line in page)
    command = typer.main.get_command(_make_app()).commands["quantize"]
    known = {name for option in command.params for name in option.opts}
    named = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", "\n".join(page)))
    assert (
        named <= {*known, EVERY_OPTION}
        and {"--for", "--target", "--bits", "-o", "--help-all"} <= named
    )


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
