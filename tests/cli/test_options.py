from pathlib import Path

import pytest
import typer

from bitwright import RandomData
from bitwright.cli.app import _make_app
from bitwright.cli.options import DataOptions, SampleOptions
from bitwright.data import TextData

DATA_OPTIONS = ("--transform", "--tokenizer", "--tokens", "--random-data", "--input-shape")


def test_a_path_is_the_source_itself_and_nothing_is_no_source():
    assert SampleOptions(data=Path("x.npy"), limit=3).source() == Path("x.npy")
    assert SampleOptions().source() is None


def test_random_samples_are_asked_for_by_their_number():
    asked = SampleOptions(random_data=3, input_shape=["length=7"]).source()
    assert asked == RandomData(count=3, shapes={"length": 7})


def test_a_tokenizer_makes_a_text_of_the_data():
    given = DataOptions(data=Path("t.txt"), tokenizer=Path("tokenizer.json"))
    assert given.source() == TextData(text=Path("t.txt"), tokenizer=Path("tokenizer.json"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tokens": 8}, "--tokens is for a text; give it with --data"),
        ({"tokenizer": Path("t.json")}, "give it with --data"),
        ({"tokenizer": Path("t.json"), "random_data": 1}, "--random-data and --tokenizer exclude"),
        (
            {"tokenizer": Path("t.json"), "data": Path("t"), "transform": "unit"},
            "--tokenizer and --transform exclude",
        ),
        ({"random_data": 1, "data": Path("x")}, "--random-data and --data exclude"),
        ({"random_data": 1, "limit": 1}, "--random-data and --limit exclude"),
        ({"random_data": 1, "transform": "unit"}, "--random-data and --transform exclude"),
        ({"random_data": 1, "tokens": 8}, "--random-data and --tokens exclude"),
        ({"input_shape": ["x=1"]}, "--input-shape goes with --data or"),
        ({"random_data": 1, "input_shape": ["x"]}, "is not NAME=SHAPE"),
    ],
)
def test_options_that_clash_are_refused(options, sentence):
    with pytest.raises(typer.BadParameter, match=sentence):
        SampleOptions(**options).source()


def test_every_command_explains_these_options_in_the_same_words():
    commands = typer.main.get_command(_make_app()).commands
    helps = {
        option: {
            parameter.help
            for name in ("quantize", "plan", "compare", "sensitivity", "report")
            for parameter in commands[name].params
            if option in parameter.opts
        }
        for option in DATA_OPTIONS
    }
    assert all(len(said) == 1 for said in helps.values()), helps


def test_shapes_go_beside_data():
    asked = SampleOptions(data=Path("images"), input_shape=["height=8"]).source()
    assert (asked.data, asked.shapes) == (Path("images"), {"height": 8})
    text = SampleOptions(
        data=Path("t.txt"), tokenizer=Path("t.json"), input_shape=["num_heads=4"]
    ).source()
    assert text.shapes == {"num_heads": 4}
