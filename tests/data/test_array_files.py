"""Compressed archives are unpacked all at once, so not beyond a limit."""

import numpy as np
import pytest

from bitwright.data.array_files import load_arrays
from bitwright.errors import DataError
from bitwright.support.input_limits import input_limits

ARRAYS = {"x": np.zeros(50_000, np.float32), "y": np.zeros(10, np.float32)}


def test_an_archive_that_unpacks_to_more_than_the_limit_is_refused_before_it_is(
    tmp_path, monkeypatch
):
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, **ARRAYS)
    monkeypatch.setattr("zipfile.ZipFile.open", None)  # nothing is read of it
    with (
        input_limits(unpacked=100_000),
        pytest.raises(DataError, match=r"bomb.npz' is .* and unpacks to 200\.\d kB at once"),
    ):
        load_arrays(path)


def test_only_what_is_read_and_compressed_counts(tmp_path):
    path = tmp_path / "data.npz"
    np.savez_compressed(path, **ARRAYS)
    with input_limits(unpacked=250_000):
        assert load_arrays(path)["x"].size == 50_000
    np.savez(path, **ARRAYS)
    with input_limits(unpacked=1):
        assert load_arrays(path)["x"].size == 50_000
