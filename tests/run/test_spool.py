"""Rows of a spool, here and in other processes."""

import subprocess
import sys

import ml_dtypes
import msgspec
import numpy as np
import pytest

from bitwright.errors import OutputError
from bitwright.run import Spool
from bitwright.run.spool import SharedRow

ROWS = {
    "float32": [np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((1, 3), np.float32)],
    "bfloat16": [np.arange(5).astype(ml_dtypes.bfloat16)],
    "int64": [np.array(7), np.array(8)],
    "bool": [np.array([True, False])],
    "empty": [np.zeros((0, 4), np.float32), np.zeros((2, 4), np.float32)],
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("memory", [0, 30, 1000])
def test_a_shared_row_outlives_the_spool(name, linked, memory, tmp_path, monkeypatch):
    if not linked:
        monkeypatch.setattr("pathlib.Path.hardlink_to", _refuse)
    with Spool(memory=memory) as spool:
        for array in ROWS[name]:
            spool.append(name, array)
        row = spool.share(name, tmp_path / "row.bin")
    row = msgspec.json.decode(msgspec.json.encode(row), type=SharedRow)
    for found, wanted in zip(row, ROWS[name], strict=True):
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        np.testing.assert_array_equal(found, wanted)
    assert len(list(row)) == len(list(row))  # it can be read again


def _refuse(self, target):
    raise OSError("no links here")


def test_another_process_reads_it(tmp_path):
    with Spool() as spool:
        spool.append("x", np.arange(4, dtype=np.float32))
        described = msgspec.json.encode(spool.share("x", tmp_path / "x.bin")).decode()
        program = (
            "import msgspec, sys; from bitwright.run.spool import SharedRow; "
            "print(sum(a.sum() for a in msgspec.json.decode(sys.argv[1], type=SharedRow)))"
        )
        told = subprocess.run(
            [sys.executable, "-c", program, described], capture_output=True, text=True, check=True
        )
    assert float(told.stdout) == 6


def test_memory_comes_before_the_disk(tmp_path):
    first, second, third = (np.full(10, i, np.float32) for i in range(3))
    with Spool(tmp_path, memory=80) as spool:
        for array in (first, second, third):
            spool.append("x", array)
        assert spool.row("x", 0).base is first and not spool.row("x", 0).flags.writeable
        assert _bytes_in(tmp_path) == third.nbytes
        assert [row.tolist() for row in spool.rows("x")] == [
            first.tolist(),
            second.tolist(),
            third.tolist(),
        ]
        spool.drop("x")
        assert _bytes_in(tmp_path) == 0
        spool.append("y", np.zeros(100, np.float32)[:10])  # which would keep the rest of it
        assert _bytes_in(tmp_path) == 40
        spool.append("y", first)
        spool.append("y", second)
        assert _bytes_in(tmp_path) == 40


def _bytes_in(folder):
    return sum(file.stat().st_size for file in folder.rglob("*.bin"))


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_a_full_disk_is_one_sentence_also_when_the_spool_closes():
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(OutputError, match=r"cannot write temporary files"), Spool() as spool:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
            spool.append("x", np.zeros(100))
        finally:
            spool.close()
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
