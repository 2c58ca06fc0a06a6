"""Sessions have as many threads as the process may use cores."""

import os
import sys

import pytest

from bitwright.run import open_session
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
    assert open_session(make_mlp()).get_session_options().intra_op_num_threads == 3
