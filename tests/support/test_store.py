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
    with pytest.raises(DataError, match="is damaged; delete it to do that part again"):
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


def store_with_a_part(folder):
    store = PartStore(folder, job="a")
    store.write("x", ARRAYS, {"bits": "8"})
    return store.path("x")


def splice(content):
    other = bytearray(content)
    other[-5] ^= 4
    return bytes(other)


@pytest.mark.parametrize(
    "damage", [lambda c: b"", lambda c: c[:-1], lambda c: c[: len(c) // 2], splice, lambda c: c * 2]
)
def test_a_damaged_part_is_done_again_with_a_warning(tmp_path, damage):
    path = store_with_a_part(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    store = PartStore(tmp_path, job="a")
    with pytest.warns(UserWarning, match="is damaged, or of another job; that part is done again"):
        assert "x" not in store
    store.write("x", ARRAYS, {"bits": "8"})
    assert "x" in PartStore(tmp_path, job="a")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"job"', "\0" * 8, None])
def test_a_damaged_or_lost_marker_is_written_again_and_the_parts_are_kept(
    tmp_path, content, recwarn
):
    store_with_a_part(tmp_path)
    marker = tmp_path / "job.json"
    if content is None:
        marker.unlink()
    else:
        marker.write_text(content)
    assert "x" in PartStore(tmp_path, job="a")
    assert len(recwarn) == (content is not None)
    assert "x" in PartStore(tmp_path, job="a")


def test_parts_of_another_job_are_told_by_themselves(tmp_path):
    store_with_a_part(tmp_path)
    (tmp_path / "job.json").unlink()
    with pytest.warns(UserWarning, match="of another job"):
        assert "x" not in PartStore(tmp_path, job="b")


def test_a_folder_in_place_of_a_file_is_one_sentence(tmp_path):
    path = store_with_a_part(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match="is a folder, where a file was kept; delete it"):
        assert "x" in PartStore(tmp_path, job="a")
    (tmp_path / "job.json").unlink()
    (tmp_path / "job.json").mkdir()
    with pytest.raises(DataError, match=r"cannot read .*job.json.*Is a directory; delete it"):
        PartStore(tmp_path, job="a")
