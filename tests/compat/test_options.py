"""Values of options, read and refused in one sentence."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import numpy as np
import pytest

from bitwright.compat.options import (
    RecipeParts,
    checked,
    choice,
    negated,
    number,
    only,
    read_mapping,
    read_names,
    read_pair,
    read_path,
    read_switch,
    refused,
    to,
    translate,
    when_on,
)
from bitwright.errors import RecipeError

KIND = Enum("KIND", ["MinMax", "MinMSE"])


def read_names_to_anything(what, given):
    return read_mapping(what, given, "names")


@pytest.mark.parametrize(
    ("read", "given", "wanted"),
    [
        (read_switch, True, True),
        (read_switch, np.bool_(False), False),
        (read_switch, 1, True),
        (negated, 1, False),
        (read_names, ["a", "b"], ("a", "b")),
        (read_names, None, ()),
        (read_names_to_anything, None, {}),
        (read_pair, (1, 2), (1.0, 2.0)),
        (read_path, Path("x"), Path("x")),
        (number(int, 1), 3, 3),
        (number(int, 1), "3", 3),
        (number(float, 0), "99.5", 99.5),
        (number(float, 0, 1000.0), 0.02, 20.0),
        (choice({"MinMax": 1, "MinMSE": 2}), KIND.MinMSE, 2),
    ],
)
def test_values_are_read(read, given, wanted):
    assert read("it", given) == wanted


@pytest.mark.parametrize(
    ("read", "given", "said"),
    [
        (read_switch, "yes", "it is True or False, not 'yes'."),
        (read_switch, 2, "it is True or False, not 2."),
        (read_names, "conv", "it is a list of names, not 'conv'."),
        (read_names, [None], "it is a list of names, not [None]."),
        (read_names_to_anything, {1: 2}, "it is a dict of names, not {1: 2}."),
        (read_pair, [1], "it is a pair of numbers, not [1]."),
        (read_path, True, "it is a path, not True."),
        (number(int, 1), 1.5, "it is a whole number of at least 1, not 1.5."),
        (number(int, 1), True, "it is a whole number of at least 1, not True."),
        (number(int, 1), float("inf"), "it is a whole number, not inf."),
        (number(float, 0), float("nan"), "it is a number of at least 0, not nan."),
        (number(float, 0), "far", "it is a number, not 'far'."),
        (
            choice({"All": 1, "Most": 2}),
            ["All"],
            "it is 'All' or 'Most', not ['All']. Did you mean 'All'?",
        ),
        (choice({0: 0, 1: 1, 2: 2}), 3, "it is 0, 1 or 2, not 3."),
        (
            choice({"All": 1, "Most": 2}),
            "Mots",
            "it is 'All' or 'Most', not 'Mots'. Did you mean 'Most'?",
        ),
        (only(True, "it is so"), False, "it must be True, not False: it is so."),
        (only("max", "it is so"), "min", "it must be 'max', not 'min': it is so."),
        (refused("it is not here"), 1, "it is not supported: it is not here."),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(read, given, said):
    with pytest.raises(RecipeError) as caught:
        read("it", given)
    assert str(caught.value) == said


def test_rows_give_the_fields_that_an_option_sets():
    rows = {
        "Pairs": to("emulate.weight_pairs"),
        "Bias": when_on({"bias.int32": True}),
        "Memory": checked(number(int, 1)),
        "Gone": refused("nothing answers to it"),
    }
    parts = RecipeParts()
    for option, changes in translate({"Pairs": 1, "Bias": False, "Memory": 3, "Gone": False}, rows):
        parts.apply(option, changes)
    assert (parts.emulate, parts.bias) == ({"weight_pairs": True}, {})
    assert parts.options == {"emulate.weight_pairs": "Pairs"}


def test_an_option_of_none_asks_for_nothing():
    rows = {"Pairs": to("emulate.weight_pairs")}
    assert list(translate({"Pairs": None}, rows)) == [("Pairs", {})]


def test_options_inside_others_are_named_with_them():
    with pytest.raises(RecipeError, match=r"unknown option 'Pear' in Fruit\. Did you mean 'Pears'"):
        list(translate({"Pear": 1}, {"Pears": to("a.b")}, name="Fruit"))
