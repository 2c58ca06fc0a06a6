"""Data that can be read once, kept for a second pass."""

from __future__ import annotations

import numpy as np
import pytest

from bitwright.data import InputSpec, cache_samples, open_data
from bitwright.errors import DataError

SPEC = InputSpec("x", np.dtype("float32"), (1, 4))


def samples(count=3):
    return [{"x": np.full((1, 4), i, np.float32)} for i in range(count)]


def test_what_can_be_read_again_is_not_copied():
    data = open_data(samples(), [SPEC])
    assert cache_samples(data, max_bytes=1) is data


def test_a_generator_can_be_read_twice_afterwards():
    kept = cache_samples(open_data(iter(samples()), [SPEC]), max_bytes=48)
    for _ in range(2):
        assert [float(sample["x"][0, 0]) for sample in kept] == [0.0, 1.0, 2.0]
    assert kept.repeatable and kept.len_hint == 3


def test_a_buffer_that_is_filled_again_is_copied():
    def reuse():
        buffer = np.zeros((1, 4), np.float32)
        for number in range(3):
            buffer[:] = number
            yield {"x": buffer}

    kept = cache_samples(open_data(reuse(), [SPEC]), max_bytes=1000)
    assert [float(sample["x"][0, 0]) for sample in kept] == [0.0, 1.0, 2.0]


def test_too_much_is_refused_with_what_to_do():
    with pytest.raises(DataError, match="47 bytes; give a list or files"):
        cache_samples(open_data(iter(samples()), [SPEC]), max_bytes=47)
