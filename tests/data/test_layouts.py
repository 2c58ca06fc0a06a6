"""Samples in NCHW for inputs that became NHWC."""

from __future__ import annotations

import numpy as np
import pytest

from bitwright.data import InputSpec, channels_first_specs, open_data, to_channels_last
from bitwright.errors import DataError

IMAGE = InputSpec("image", np.dtype("float32"), ("n", 3, 8, 9))
SIZE = InputSpec("size", np.dtype("int64"), (2,))
SAMPLE = {
    "image": np.arange(216, dtype=np.float32).reshape(1, 3, 8, 9),
    "size": np.array([8, 9]),
}


def test_only_the_turned_inputs_change():
    turned = to_channels_last(open_data([SAMPLE] * 3, [IMAGE, SIZE]), {"image"})
    samples = list(turned)
    np.testing.assert_array_equal(samples[0]["image"], SAMPLE["image"].transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(samples[0]["size"], SAMPLE["size"])
    assert samples[0]["image"].flags.c_contiguous
    assert (len(samples), turned.len_hint, turned.description) == (3, 3, "list of samples")
    assert turned.specs[0].shape == ("n", 8, 9, 3)
    assert channels_first_specs(turned.specs, {"image"}) == (IMAGE, SIZE)


def test_it_can_be_read_as_often_as_the_data():
    again = to_channels_last(open_data([SAMPLE], [IMAGE, SIZE]), {"image"})
    assert len(list(again)) == len(list(again)) == 1
    once = to_channels_last(open_data(iter([SAMPLE]), [IMAGE, SIZE]), {"image"})
    assert (once.repeatable, len(list(once))) == (False, 1)
    with pytest.raises(DataError, match="only once"):
        list(once)


def test_data_in_the_new_layout_is_refused():
    sample = SAMPLE | {"image": SAMPLE["image"].transpose(0, 2, 3, 1)}
    with pytest.raises(DataError, match="dimension 1 3 instead of 8"):
        list(to_channels_last(open_data([sample], [IMAGE, SIZE]), {"image"}))


def test_nothing_turned_is_the_same_stream():
    samples = open_data([SAMPLE], [IMAGE, SIZE])
    assert to_channels_last(samples, set()) is samples
