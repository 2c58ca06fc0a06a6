"""Small files are written whole or not at all, and temporary ones go with the job."""

import os
import stat
from pathlib import Path

import pytest

from bitwright.errors import DataError, OutputError
from bitwright.support import files
from bitwright.support.files import (
    Closing,
    check_regular_file,
    make_folder,
    replace_folder,
    temporary_beside,
    temporary_folder_beside,
    write_file,
)


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "plan.json"
    write_file(path, "old")
    write_file(path, b"new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    write_file(path, "old")

    def fail(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OutputError, match=r"cannot write '.*plan\.json': No space left on device"):
        write_file(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_a_file_gets_the_permissions_of_any_new_file(tmp_path):
    write_file(tmp_path / "ours", "x")
    (tmp_path / "plain").write_text("x")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ours", "plain")}
    assert len(modes) == 1


def test_folders_are_created_with_those_above_them(tmp_path):
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot create the folder"):
        make_folder(tmp_path / "file" / "inside")


def test_a_resource_is_closed_when_its_block_fails():
    closed = []

    class Resource(Closing):
        def close(self):
            closed.append(True)

    with pytest.raises(ValueError, match="inside"), Resource():
        raise ValueError("inside")
    assert closed == [True]


def test_files_of_others_stay(tmp_path):
    others = [".m.onnx.tmp", ".m.onnx.12345.tmp", ".n.onnx.0123456789ab.tmp", "m.0123456789ab.tmp"]
    for name in others:
        (tmp_path / name).touch()
    with temporary_beside(tmp_path / "m.onnx"):
        assert len(list(tmp_path.iterdir())) == len(others) + 1
    assert {path.name for path in tmp_path.iterdir()} == set(others)


def test_a_failure_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), temporary_beside(tmp_path / "m.onnx") as path:
        assert path.parent == tmp_path and Path(path).exists()
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_a_folder_takes_the_place_of_another_and_nothing_else_is_left(tmp_path):
    target = tmp_path / "small"
    for content in ("old", "new"):
        with temporary_folder_beside(target) as folder:
            (folder / "model").write_text(content)
            replace_folder(folder, target)
    assert (target / "model").read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_that_is_not_finished_is_removed(tmp_path):
    with pytest.raises(ValueError, match="inside"), temporary_folder_beside(tmp_path / "small"):
        raise ValueError("inside")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("swapped", [False, True])
def test_what_a_killed_job_leaves_of_a_folder_goes_and_the_old_one_comes_back(tmp_path, swapped):
    target, name = tmp_path / "small", ".small.0123456789ab"
    (tmp_path / f"{name}.tmp").touch()
    os.utime(tmp_path / f"{name}.tmp", (0, 0))  # Windows goes by its age
    for ending in (".new", ".old"):
        (tmp_path / f"{name}{ending}").mkdir()
        (tmp_path / f"{name}{ending}" / "model").write_text(ending)
    if swapped:  # killed when the new folder was in its place
        (tmp_path / f"{name}.new").rename(target)
    with temporary_folder_beside(target):
        pass
    assert list(tmp_path.iterdir()) == [target]
    assert (target / "model").read_text() == (".new" if swapped else ".old")


@pytest.mark.parametrize("age, stays", [(3600, True), (48 * 3600, False)])
def test_where_open_files_are_not_renamed_a_living_job_is_told_by_its_age(
    tmp_path, monkeypatch, age, stays
):
    monkeypatch.setattr(files, "_RENAMES_OPEN_FILES", False)
    folder, lock = tmp_path / ".small.0123456789ab.new", tmp_path / ".small.0123456789ab.tmp"
    folder.mkdir()
    lock.touch()
    then = lock.stat().st_mtime - age
    os.utime(lock, (then, then))
    write_file(tmp_path / "small", "x")  # closed before it is renamed
    assert (folder.exists(), lock.exists()) == (stays, stays)
    assert (tmp_path / "small").read_text() == "x"


def test_pipes_and_devices_are_refused_and_all_else_is_left_to_the_reader(tmp_path):
    check_regular_file(tmp_path, DataError)
    check_regular_file(tmp_path / "none", DataError)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path(os.devnull)):
        with pytest.raises(DataError, match="is a pipe or a device"):
            check_regular_file(path, DataError)
