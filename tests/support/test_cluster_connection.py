"""Connecting to a Ray cluster that is not there, does not answer, or is too busy."""

from __future__ import annotations

import socket
import sys
import threading
import time

import pytest

from bitwright.errors import ClusterError, MissingPackageError
from bitwright.support.cluster_connection import _LoggedMessages, open_cluster

ray = pytest.importorskip("ray", reason="ray is not installed")


def test_what_threads_of_ray_print_is_not_in_the_output(capsys):
    output = _LoggedMessages(sys.stdout)
    thread = threading.Thread(
        target=print, args=("a worker died",), kwargs={"file": output}, name="ray_listen"
    )
    thread.start()
    thread.join()
    print("our result", file=output)
    assert capsys.readouterr().out == "our result\n" and not output.closed


def test_an_address_that_nobody_listens_at_fails_at_once_with_a_sentence(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.monotonic()
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        with pytest.raises(ClusterError, match="cannot be reached"), open_cluster(address):
            pass
    with pytest.raises(ClusterError, match=r"is no address of a cluster; write host:6379"):
        open_cluster("somewhere").__enter__()
    assert time.monotonic() - began < 30


def test_something_else_that_listens_is_told_in_time(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: time.sleep(5))
    monkeypatch.setattr("bitwright.support.cluster_connection.CONNECT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with (
            pytest.raises(ClusterError, match="does not answer"),
            open_cluster(f"127.0.0.1:{port}"),
        ):
            pass


def test_what_ray_says_when_it_fails_is_one_sentence(monkeypatch):
    def fail(**_):
        raise RuntimeError("version mismatch.\nmore")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(ClusterError, match=r"^a local cluster cannot be used: version mismatch\.$"):
        open_cluster(None).__enter__()


def test_an_address_in_the_environment_has_the_same_limits(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(ClusterError, match="cannot be reached"):
            open_cluster(None).__enter__()


@pytest.mark.parametrize("address", [None, "auto"])
def test_ray_does_not_end_the_program(monkeypatch, address):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: sys.exit(1))
    with pytest.raises(ClusterError, match="cannot be used"):
        open_cluster(address).__enter__()


def test_a_busy_machine_gets_more_than_one_attempt(monkeypatch):
    attempts = []

    def start(**_):
        attempts.append(1)
        if len(attempts) < 3:
            raise RuntimeError("The current node timed out during startup. This could happen")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", start)
    with open_cluster(None):
        assert len(attempts) == 3


@pytest.mark.slow
def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'bitwright\[ray\]'"):
        open_cluster(None).__enter__()
