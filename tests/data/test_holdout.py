from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.data import open_data
from bitwright.data.holdout import HoldoutSplit, split_samples
from bitwright.data.specs import InputSpec
from bitwright.errors import DataError


def numbers(samples):
    return [int(sample["x"]) for sample in samples]


def stream(count):
    return ({"x": np.array(number)} for number in range(count))


@given(count=st.integers(0, 120), most=st.integers(0, 9))
def test_every_sample_goes_to_exactly_one_side_in_order(count, most):
    split = HoldoutSplit(stream(count), most=most)
    kept = numbers(split)
    held = numbers(split.holdout)
    assert sorted(kept + held) == list(range(count))
    assert kept == sorted(kept)
    assert held == list(range(7, count, 8))[:most]
    assert numbers(split.first) == ([] if held else list(range(count))[:2])
    assert numbers(split.evaluation) == (held or numbers(split.first))


@given(count=st.integers(1, 120))
def test_the_hint_is_the_number_of_calibration_samples(count):
    spec = InputSpec("x", np.dtype("int64"), ())
    split = HoldoutSplit(open_data(list(stream(count)), [spec]))
    assert split.len_hint == len(list(split))
    assert HoldoutSplit(stream(3)).len_hint is None
    assert HoldoutSplit(list(stream(9))).len_hint == 8


def test_kept_samples_survive_a_reused_buffer():
    buffer = np.zeros(1, np.int64)

    def reuse():
        for number in range(16):
            buffer[0] = number
            yield {"x": buffer}

    split = HoldoutSplit(reuse())
    for _ in split:
        pass
    assert [int(sample["x"][0]) for sample in split.holdout] == [7, 15]


def test_a_second_pass_starts_anew():
    split = HoldoutSplit(list(stream(8)))
    assert numbers(split) == numbers(split)
    assert numbers(split.holdout) == [7]


def test_impossible_splits_are_refused():
    with pytest.raises(DataError, match="most"):
        HoldoutSplit([], most=-1)


@pytest.mark.parametrize("count", [8, 9, 40, 200])
def test_folds_and_the_holdout_make_the_whole(count):
    stream = [{"x": np.float32([number])} for number in range(count)]
    samples = open_data(stream, [InputSpec("x", np.dtype("float32"), (1,))])
    split = split_samples(samples)
    given = (*split.folds, split.holdout)
    parts = [[int(sample["x"][0]) for sample in part] for part in given]
    assert sorted(number for part in parts for number in part) == list(range(count))
    assert [part.len_hint for part in given] == [len(part) for part in parts]
    *folds, holdout = parts
    assert 0 <= len(folds[0]) - len(folds[-1]) <= 1
    assert [int(sample["x"][0]) for sample in split.calibration] == sorted(chain(*folds))
    assert [int(sample["x"][0]) for sample in split.but_last] == sorted(chain(*folds[:-1]))
    held = HoldoutSplit(stream)
    list(held)
    assert holdout == [int(sample["x"][0]) for sample in held.holdout]
