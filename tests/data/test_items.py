import numpy as np
import pytest

from bitwright.data.items import name_item
from bitwright.data.specs import InputSpec
from bitwright.errors import DataError

X = InputSpec("x", np.dtype("float32"), ("batch", 2))
FIXED = InputSpec("x", np.dtype("float32"), (4, 2))


def test_a_batch_dimension_is_added_only_where_one_sample_goes_in_at_a_time():
    row = np.zeros(2, np.float32)
    assert name_item(row, [X], 0)["x"].shape == (1, 2)
    assert name_item(row, [FIXED], 0)["x"].shape == (2,)
    assert name_item(row[np.newaxis], [X], 0)["x"].shape == (1, 2)


def test_what_fits_no_input_is_left_to_whoever_checks_it():
    assert name_item({"y": 1}, [X], 0) == {"y": 1}
    assert name_item({"x": [[1.0], [1.0, 2.0]]}, [X], 0) == {"x": [[1.0], [1.0, 2.0]]}


def test_words_are_no_sample():
    with pytest.raises(DataError, match="sample 3 is a str; give a list"):
        name_item("cat", [X], 3)
