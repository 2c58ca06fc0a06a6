"""Shapes that are given for inputs: whole ones, and sizes of open dimensions."""

import numpy as np
import pytest

from bitwright.data import InputSpec
from bitwright.data.shapes import fix_shapes
from bitwright.errors import DataError

IMAGE = InputSpec("image", np.dtype("float32"), ("batch", 3, "height", "width"))


def test_sizes_of_symbols_fix_every_input_that_has_them():
    mask = InputSpec("mask", np.dtype("float32"), ("height", "width"))
    (image, fixed), sizes = fix_shapes([IMAGE, mask], {"height": 8, "width": 9})
    assert image.shape == ("batch", 3, 8, 9)
    assert fixed.shape == (8, 9)
    assert sizes == {"height": 8, "width": 9}


def test_the_shape_of_one_input_gives_its_symbols_to_others():
    mask = InputSpec("mask", np.dtype("float32"), ("height", "width"))
    (_, fixed), _ = fix_shapes([IMAGE, mask], {"image": (1, 3, 8, 9)})
    assert fixed.shape == (8, 9)


def test_a_size_of_zero_stays_a_size():
    past = InputSpec("past", np.dtype("float32"), ("batch", "length"))
    (spec,), sizes = fix_shapes([past], {"length": 0})
    assert spec.shape == ("batch", "length")
    assert sizes == {"length": 0}


@pytest.mark.parametrize("shapes", [{"hight": 8}, {"image": (1, -1, 8, 8)}, [(1, 2), (3, 4)]])
def test_shapes_that_cannot_be_are_refused(shapes):
    with pytest.raises(DataError, match=r"no dimension symbol|negative size|2 shapes"):
        fix_shapes([IMAGE], shapes)


@pytest.mark.parametrize("first", [None, 1, "batch"])
def test_batch_is_the_first_dimension_whether_or_not_it_has_a_name(first):
    image = InputSpec("image", np.dtype("float32"), (first, 3, None, None))
    rate = InputSpec("rate", np.dtype("int64"), ())
    (fixed, same), _ = fix_shapes([image, rate], {"batch": 1})
    assert fixed.shape == (1, 3, None, None)
    assert same == rate


def test_a_batch_of_another_size_is_refused():
    image = InputSpec("image", np.dtype("float32"), (4, 3, 8, 8))
    with pytest.raises(DataError, match="'batch', which is no dimension symbol"):
        fix_shapes([image], {"batch": 1})
