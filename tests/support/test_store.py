"""Parts on disk: they come back as they were, and only to the job that they belong to."""

import numpy as np
import pytest

from bitwright.errors import DataError, OutputError
from bitwright.support.store import PartStore, read_part

ARRAYS = {"a": np.arange(6, dtype=np.uint8).reshape(2, 3), "b": np.float32(1.5)}


def test_a_part_comes_back_as_it_was(tmp_path):
    with PartStore(tmp_path / "work") as store:
        store.write("layer/0", ARRAYS, {"bits": "8", "é": "1"})
    arrays, notes = PartStore(tmp_path / "work").read("layer/0")
    assert notes == {"bits": "8", "é": "1"} and arrays.keys() == ARRAYS.keys()
    for name, array in arrays.items():
        assert (array.dtype, array.shape) == (ARRAYS[name].dtype, ARRAYS[name].shape)
        np.testing.assert_array_equal(array, ARRAYS[name])


def test_a_damaged_part_is_refused(tmp_path):
    store = PartStore(tmp_path / "work")
    store.write("x", ARRAYS, {})
    store.path("x").write_bytes(store.path("x").read_bytes()[:-1])
    with pytest.raises(DataError, match=r"is damaged or cut off; delete it to do that part again"):
        store.read("x")
    with pytest.raises(DataError, match="cannot read"):
        read_part(tmp_path / "nothing")


def test_a_folder_of_another_job_is_refused(tmp_path):
    PartStore(tmp_path / "work", job="a")
    PartStore(tmp_path / "work", job="a")
    with pytest.raises(DataError, match="another model"):
        PartStore(tmp_path / "work", job="b")


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "holiday.jpg").write_bytes(b"")
    with pytest.raises(DataError, match="not empty"):
        PartStore(tmp_path)


def test_a_file_is_no_folder_to_keep_parts_in(tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(OutputError, match=r"cannot keep what is finished in .*notes"):
        PartStore(tmp_path / "notes")


def test_a_lent_folder_vanishes_and_an_own_one_stays(tmp_path):
    with PartStore() as lent:
        assert lent.folder.exists()
    assert not lent.folder.exists()
    with PartStore(tmp_path / "work") as own:
        pass
    assert own.folder.exists()
