"""Errors have one root, and their hints name what was meant."""

import pickle

import pytest

from bitwright import errors
from bitwright.errors import BitwrightError, DataError, did_you_mean


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name.endswith("Error")])
def test_every_error_is_a_bitwright_error(name):
    assert issubclass(getattr(errors, name), BitwrightError)


@pytest.mark.parametrize(
    ("given", "known", "hint"),
    [
        ("per_chanel", ["per_channel", "name"], " Did you mean 'per_channel'?"),
        ("npu", ["cpu", "npu-cnn"], " Did you mean 'npu-cnn'?"),
        ("QINT8", ["qint8", "quint16"], " Did you mean 'qint8'?"),
        ("zzz", ["a", "b"], " Known: a, b."),
        ("zzz", [], ""),
        (3, ["minmax"], " Known: minmax."),
    ],
)
def test_a_hint_is_the_closest_word_or_a_list(given, known, hint):
    assert did_you_mean(given, known) == hint


def test_both_sentences_of_an_error_survive_pickling():
    error = DataError("no data", remedy="give data", command="give --data PATH")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.for_command) == ("no data; give data.", "no data; give --data PATH.")
    assert DataError("plain.").for_command == "plain."
