"""Public functions refuse arguments of a wrong name or kind in one sentence, before any work."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Optional

import numpy as np
import pytest

import bitwright
from bitwright.errors import ArgumentError, BitwrightError, RecipeError
from bitwright.support.arguments import allows, alternatives, check_arguments, describe, show

FUNCTIONS = [
    value
    for name, value in inspect.getmembers(bitwright, inspect.isfunction)
    if not value.__module__.startswith(("bitwright.compat", "bitwright._"))
]
# What these take is checked where it is used, with more to say: a model, a word of a few.
OWN_CHECKS = {"model", "models", "float_model", "quantized_model", "data", "source", "specs",
              "effort", "format", "eval_data", "labels"}  # fmt: skip

# Values of the right kind for arguments that have no default; others are text.
NEEDED = {"specs": (), "result": object.__new__(bitwright.Result)}


def options():
    for function in (*FUNCTIONS, bitwright.RandomData, bitwright.TextData):
        for option in inspect.signature(function).parameters:
            if option not in (*OWN_CHECKS, "tokenizer"):
                yield pytest.param(function, option, id=f"{function.__name__}-{option}")


@pytest.mark.parametrize(("function", "option"), options())
def test_every_option_of_every_public_function_is_of_its_kind(function, option):
    needed = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty
    ]
    with pytest.raises(ArgumentError, match=f"^{option} of {function.__name__} must be .+, not an"):
        function(**{name: NEEDED.get(name, "x") for name in needed} | {option: object()})


@pytest.mark.parametrize(("function", "option"), options())
def test_a_misspelt_option_is_named_with_what_was_meant(function, option):
    hint = f"{function.__name__} has no option '{option}x'. Did you mean '{option}'"
    with pytest.raises(ArgumentError, match=hint):
        function(**{f"{option}x": 1})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"limit": "3"}, "limit of quantize must be a whole number or None, not '3'."),
        ({"limit": True}, "limit of quantize must be a whole number or None, not True."),
        ({"recipe": 3}, "recipe of quantize must be text, a path, a dict, a Recipe or None, "
         "not 3."),
        ({"providers": "CPU"}, "providers of quantize must be a list of names or None, not 'CPU'."),
        ({"providers": [3]}, "providers of quantize must be a list of names or None, not a list."),
        ({"progress": 1}, "progress of quantize must be True, False or a function, not 1."),
        ({"holdout": None}, "holdout of quantize must be True or False, not None."),
        ({"engine": 3}, "engine of quantize must be an Engine, text or None, not 3."),
        ({"transform": {}}, "transform of quantize must be an ImagePreprocess, text, a function or "
         "None, not a dict."),
    ],
)  # fmt: skip
def test_the_sentence_says_what_is_taken_and_what_was_given(changes, sentence):
    with pytest.raises(ArgumentError) as refusal:
        bitwright.quantize("nowhere.onnx", **changes)
    assert str(refusal.value) == sentence


def test_a_word_that_is_none_of_a_few_is_refused_whatever_its_kind():
    demo = bitwright.load_demo()
    with pytest.raises(RecipeError, match=r"unknown effort 3\. Known: high, low, medium"):
        bitwright.quantize(demo.model_path, data=demo.calibration[:8], effort=3)
    with pytest.raises(RecipeError, match=r"unknown format 3\. Known: "):
        bitwright.import_qat(demo.model_path, format=3)


def test_methods_are_called_as_the_user_calls_them():
    with pytest.raises(ArgumentError, match=r"path of QuantPlan\.load must be text or a path"):
        bitwright.QuantPlan.load(3)
    with pytest.raises(
        ArgumentError, match=r"TextData: missing a required (keyword-only )?argument: 'text'"
    ):
        bitwright.TextData(tokenizer="x")


def test_a_refusal_is_a_type_error_too():
    assert issubclass(ArgumentError, TypeError) and issubclass(ArgumentError, BitwrightError)


@check_arguments
def take(a: "int | None" = None, *, b: "float" = 1.0, c: "Missing" = 0):  # noqa: F821
    return a, b, c


def test_numbers_of_numpy_and_whole_floats_are_as_good_as_any():
    assert take(np.int64(3), b=np.float32(2)) == (3, 2.0, 0)
    a, b, _ = take(2e9, b=3)
    assert (a, type(a), b) == (2_000_000_000, int, 3)
    with pytest.raises(ArgumentError, match=r"a of take must be a whole number or None, not 2\.5"):
        take(2.5)


def test_names_that_only_type_checkers_know_stand_for_anything():
    assert take(c="x") == (None, 1.0, "x")


@pytest.mark.parametrize(
    ("hint", "value", "allowed"),
    [
        (int, np.int64(3), True),
        (int, True, False),
        (int, 3.0, False),
        (float, 3, True),
        (float, np.float32(3), True),
        (bool, np.bool_(True), True),
        (bool, 1, False),
        (str, "x", True),
        (Path, "x", False),
        (Path, Path("x"), True),
        (None, None, True),
        (int | None, None, True),
        (Any, object(), True),
        (Literal["a", "b"], "c", True),  # which word it is, its function says
        (Literal["a", "b"], 3, False),
        (Callable, len, True),
        (Sequence[str], ["a"], True),
        (Sequence[str], ["a", 3], False),
        (Sequence[str], "a", False),
        (Sequence[int], np.arange(3), True),
        (Mapping[str, int], {"a": 1}, True),
        (Mapping[str, int], {"a": "b"}, False),
        (Sequence, [object()], True),
    ],
)
def test_a_value_is_of_the_annotated_type_or_not(hint, value, allowed):
    assert allows(hint, value) is allowed


def test_both_ways_to_write_a_union_are_one():
    assert alternatives(Optional[int]) == alternatives(int | None)  # noqa: UP045
    assert alternatives(int) == (int,)


@pytest.mark.parametrize(
    ("hints", "words"),
    [
        ((int | None,), "a whole number or None"),
        ((Mapping, Mapping, None), "a mapping or None"),
        ((str | Path | dict[str, int],), "text, a path or a dict"),
        ((bool | Callable,), "True, False or a function"),
        ((Sequence[float],), "a list"),
        ((OSError,), "an OSError"),
    ],
)
def test_what_is_allowed_is_said_once_each_in_words(hints, words):
    assert describe(*hints) == words


def test_what_was_given_is_shown_as_written_or_by_its_type():
    assert (show("a"), show(None), show(2.5), show(True)) == ("'a'", "None", "2.5", "True")
    assert (show([1]), show({}), show(object())) == ("a list", "a dict", "an object")
