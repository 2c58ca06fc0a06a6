"""Rows are read in pieces, each once, by as many threads as asked for."""

import threading

import numpy as np
import pytest

from bitwright.numerics import row_reading
from bitwright.numerics.arrays import arrays_on
from bitwright.numerics.row_reading import count_threads, load_rows, map_rows


@pytest.mark.parametrize("unit", [1, 4, 100])
def test_each_row_is_in_one_piece_of_whole_units(monkeypatch, unit):
    monkeypatch.setattr(row_reading, "_NUMBERS_AT_ONCE", 64)
    seen = []
    map_rows(lambda start, stop: seen.append((start, stop)), 30, 8, unit=unit, threads=3)
    seen.sort()
    assert [row for start, stop in seen for row in range(start, stop)] == list(range(30))
    assert all(start % unit == 0 for start, _ in seen)


def test_an_error_in_a_thread_is_raised():
    def fail(start, stop):
        raise OSError("cut off")

    with pytest.raises(OSError, match="cut off"):
        map_rows(fail, 3, 3, threads=2)


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_matrix_is_loaded_as_it_is(monkeypatch, name, dtype):
    if name == "torch":
        pytest.importorskip("torch")
    monkeypatch.setattr(row_reading, "_NUMBERS_AT_ONCE", 16)
    xp = arrays_on(name)
    array = np.random.default_rng(0).standard_normal((20, 6)).astype(dtype)
    found = load_rows(lambda start, stop: array[start:stop], (20, 6), xp)
    np.testing.assert_array_equal(xp.numpy(found), array.astype(np.float32))


def test_threads_are_as_many_as_asked_for(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert count_threads() == 1
    names = set()
    map_rows(lambda a, b: names.add(threading.current_thread().name), 1 << 22, 1)
    assert len(names) == 1
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert count_threads() >= 1
