"""Sessions have as many threads as the process may use cores."""

import os
import sys

import pytest

from bitwright.run import Session
from bitwright.support import threads
from support.models import make_mlp


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which cores may be used")
@pytest.mark.parametrize(("usable", "wanted"), [({0}, 1), ({0, 2, 3}, 3), ({0, 1, 2, 3}, None)])
def test_a_process_that_is_pinned_to_some_cores_has_a_thread_for_each(monkeypatch, usable, wanted):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: usable)
    assert threads.default_threads() == wanted


def test_a_limit_counts_before_the_cores(monkeypatch):
    monkeypatch.setattr(threads, "_limits", [])
    threads.limit_threads(7)
    assert threads.default_threads() == 7


def test_sessions_have_these_threads(monkeypatch):
    monkeypatch.setattr(threads, "_limits", [3])
    assert Session(make_mlp()).runtime.get_session_options().intra_op_num_threads == 3


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu.max": "10000 100000"}, 1),
        ({}, 8),
    ],
)
def test_a_container_has_the_cores_that_its_quota_pays_for(monkeypatch, tmp_path, files, cores):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{content}\n")
    quota = threads._read_quota(tmp_path)
    monkeypatch.setattr(threads, "_read_quota", lambda: quota)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8), raising=False)
    assert threads.count_cores() == cores
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "5")  # what the user says counts
    threads.limit_blas()
    assert os.environ.get("OPENBLAS_NUM_THREADS") == (str(cores) if cores < 8 else None)
    assert os.environ["MKL_NUM_THREADS"] == "5"
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
