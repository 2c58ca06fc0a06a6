"""Annotations decide which values are allowed, and say so in words."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Optional

import numpy as np
import pytest

from bitwright.support.annotations import allows, alternatives, describe, show


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
