"""Completion of shells: it offers what the command takes."""

import pytest

from bitwright.cli import main
from bitwright.cli.recipe_choice import RecipeChoice
from bitwright.jobs.improve.effort import EFFORTS


@pytest.fixture
def complete(monkeypatch, capsys):
    """Return what bash is offered for the last of some words."""

    def offer(*words):
        monkeypatch.setenv("_BITWRIGHT_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(["bitwright", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        monkeypatch.setattr("sys.argv", ["bitwright"])
        with pytest.raises(SystemExit, match="0"):
            main()
        return capsys.readouterr().out.split()

    return offer


def test_commands_options_efforts_recipes_and_targets_are_completed(complete):
    assert complete("qu") == ["quantize"]
    assert complete("quantize", "--eff") == ["--effort"]
    assert complete("quantize", "--effort", "me") == ["medium"]
    assert "int4-gptq" in complete("quantize", "--recipe", "int4")
    assert complete("quantize", "--target", "npu-t") == ["npu-transformer"]


def test_every_effort_is_offered(complete):
    assert {word for word in EFFORTS if complete("quantize", "--effort", word) == [word]} == {
        *EFFORTS
    }


@pytest.mark.parametrize(
    ("option", "begun"),
    [("--ranges", "m"), ("--fine-tune", "ada"), ("--bias-correction", "s"), ("--format", "q")],
)
def test_every_word_that_is_offered_is_one_that_the_recipe_takes(complete, option, begun):
    words = complete("quantize", option, begun)
    assert words
    for word in words:
        field = option.removeprefix("--").replace("-", "_")
        assert RecipeChoice(recipe="int8", **{field: word}).load() is not None
