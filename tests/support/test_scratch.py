import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bitwright.errors import OutputError
from bitwright.run.spool import Spool
from bitwright.support import scratch
from bitwright.support.scratch import ScratchFolder, remove_abandoned

OWNER = """
import sys, time
import numpy as np
from bitwright.run.spool import Spool
spool = Spool(sys.argv[1])
spool.append("x", np.arange(1000))
print("ready", flush=True)
time.sleep(100)
"""


@pytest.fixture
def owner(tmp_path):
    """A process that spools and never ends by itself."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_a_folder_goes_with_its_owner(tmp_path):
    with ScratchFolder("test", tmp_path) as scratch:
        (scratch.path / "inner").mkdir()
        assert scratch.path.parent == tmp_path and scratch.path.name.startswith("bitwright-test-")
    assert not list(tmp_path.iterdir())
    scratch.close()  # a second time does no harm


def test_a_folder_that_nobody_holds_goes_as_well(tmp_path):
    path = ScratchFolder("test", tmp_path).path
    gc.collect()
    assert not path.exists()


def test_a_killed_run_leaves_its_spool_to_the_next_one(tmp_path, owner):
    (left,) = tmp_path.iterdir()
    owner.kill()
    owner.wait()
    assert left.is_dir()
    with Spool(tmp_path) as spool:
        spool.append("y", np.arange(3))
        assert not left.exists()
        assert [row.tolist() for row in spool.rows("y")] == [[0, 1, 2]]
    assert not list(tmp_path.iterdir())


def test_a_removal_that_is_cut_off_is_finished_by_the_next_job(tmp_path, monkeypatch):
    scratch = ScratchFolder("test", tmp_path)
    for name in "abc":
        (scratch.path / name).write_bytes(b"rows")
    removed = []

    def unlink(path):  # a kill after the first file
        if removed:
            raise KeyboardInterrupt
        removed.append(path.rename(tmp_path.parent / f"{path.name}-gone"))

    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(KeyboardInterrupt):
        scratch.close()
    monkeypatch.undo()
    del scratch
    gc.collect()
    assert len(remove_abandoned(tmp_path)) == 1 and not list(tmp_path.iterdir())


def test_what_cannot_go_yet_is_left_to_the_next_job(tmp_path, monkeypatch):
    scratch = ScratchFolder("test", tmp_path)
    (scratch.path / "mapped.data").write_bytes(b"rows")

    def refuse(path):  # as Windows does while a session has the file open
        raise PermissionError

    monkeypatch.setattr(Path, "unlink", refuse)
    scratch.close()
    assert (scratch.path / "mapped.data").exists()
    monkeypatch.undo()
    assert remove_abandoned(tmp_path) == [scratch.path]
    assert not list(tmp_path.iterdir())


def test_what_a_living_process_uses_stays(tmp_path, owner):
    (used,) = tmp_path.iterdir()
    with ScratchFolder("test", tmp_path) as mine:
        assert not remove_abandoned(tmp_path)
        assert set(tmp_path.iterdir()) == {used, mine.path}
    assert owner.poll() is None and list(used.glob("*.bin"))


def test_what_has_no_lock_stays(tmp_path):
    others = [tmp_path / "bitwright-models", tmp_path / "data"]
    for folder in others:
        folder.mkdir()
    (tmp_path / "data" / "owner.lock").touch()
    (tmp_path / "bitwright-notes").touch()
    assert not remove_abandoned(tmp_path)
    assert set(tmp_path.iterdir()) == {*others, tmp_path / "bitwright-notes"}


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_link_leads_nowhere(tmp_path):
    target = tmp_path / "precious"
    target.mkdir()
    (target / "owner.lock").touch()
    (tmp_path / "bitwright-spool-x").symlink_to(target)
    assert not remove_abandoned(tmp_path)
    assert (target / "owner.lock").exists()


def test_an_abandoned_folder_is_told_by_its_lock_alone(tmp_path):
    left = tmp_path / "bitwright-spool-left"
    left.mkdir()
    (left / "owner.lock").touch()
    (left / "1.bin").write_bytes(os.urandom(10))
    assert remove_abandoned(tmp_path) == [left]
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_told_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    sentence = "cannot write temporary files in '.*gone': No such file or directory; .* set TMPDIR"
    with pytest.raises(OutputError, match=sentence):
        ScratchFolder("test")


def test_a_full_disk_is_told_with_what_to_do(tmp_path, monkeypatch):
    with Spool(tmp_path) as spool:
        spool.append("x", np.arange(3))

        def refuse(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(spool, "_files", {"x": SimpleNamespace(seek=refuse, close=int)})
        with pytest.raises(OutputError, match="No space left on device; make room there"):
            spool.append("x", np.arange(3))


def test_a_disk_without_locks_still_has_folders(tmp_path, monkeypatch):
    def refuse(file):
        raise OSError("no locks available")

    monkeypatch.setattr("bitwright.support.scratch.try_lock", refuse)
    with ScratchFolder("test", tmp_path) as scratch:
        assert not remove_abandoned(tmp_path) and scratch.path.is_dir()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("step", ["pathlib.Path.open", "bitwright.support.scratch.try_lock"])
def test_a_signal_while_a_folder_is_made_leaves_nothing(tmp_path, monkeypatch, step):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(step, stop)
    with pytest.raises(KeyboardInterrupt):
        ScratchFolder("test", tmp_path)
    monkeypatch.undo()
    gc.collect()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="removes no open file there")
def test_a_folder_that_is_being_removed_cannot_be_taken(tmp_path):
    folder = tmp_path / "bitwright-spool-0"
    folder.mkdir()
    file = (folder / scratch._LOCK).open("xb")
    seen = []

    class Lock:
        def close(self):
            # Now whoever waits for the lock gets it, and looks whether its file is still there.
            seen.append((folder / scratch._LOCK).exists())
            file.close()

    scratch._remove(folder, Lock())
    assert seen == [False] and not folder.exists()
