"""Every kind of data becomes samples through one function."""

import numpy as np
import pytest

from bitwright.data import InputSpec, RandomData, ShapedData, TextData, open_data
from bitwright.errors import DataError

IDS = InputSpec("input_ids", np.dtype("int64"), ("batch", "length"))


class Letters:
    def encode(self, text):
        return [ord(letter) for letter in text]


def test_requests_and_arrays_become_samples(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("abcdefgh")
    sources = {
        "text": TextData(text=text, tokenizer=Letters(), length=4),
        "random": RandomData(count=2, shapes={"length": 4}),
        "array": np.zeros((2, 4), np.int64),
    }
    for source in sources.values():
        shapes = [sample["input_ids"].shape for sample in open_data(source, [IDS])]
        assert shapes == [(1, 4), (1, 4)]


def test_shapes_beside_data_fix_what_the_model_leaves_open():
    array = np.zeros((2, 4), np.int64)
    given = ShapedData(data=array, shapes={"length": 4})
    assert len(list(open_data(given, [IDS]))) == 2
    with pytest.raises(DataError, match="make dimension 1 5 instead of 4"):
        list(open_data(ShapedData(data=array, shapes={"length": 5}), [IDS]))
