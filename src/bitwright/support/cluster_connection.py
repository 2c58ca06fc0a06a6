"""Connections to a Ray cluster: each ends in a time, with a sentence where there is none."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from bitwright.errors import BitwrightError, ClusterError, MissingPackageError
from bitwright.support.witness import watch_node
from bitwright.support.wording import reason_of

_LOGGER = logging.getLogger(__name__)

CONNECT_SECONDS = 30.0
"""How long to wait for a cluster to answer."""
START_ATTEMPTS = 3
"""How often to start a cluster on a machine that is too busy for it."""
START_SECONDS = 180.0
"""How long to wait for a first worker: a new machine imports for a while."""


@contextmanager
def open_cluster(address: str | None) -> Iterator[Any]:
    """Connect to a cluster and give the `ray` module; a local one is started without an address.

    A connection that the program has already is used, and stays.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingPackageError(
            "working on a cluster needs ray; run: pip install 'bitwright[ray]'."
        ) from error
    # What failed is raised once already, in our words.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    if ray.is_initialized():
        yield ray
        return
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address in (None, "local"):
        with _in_words("a local cluster"):
            _start_local(ray, quiet)
    else:
        _check_reachable(address)
        _connect(lambda: ray.init(address=address, **quiet), f"the cluster at {address!r}")
    try:
        with redirect_stdout(_LoggedMessages(sys.stdout)), watch_node(_socket_of_node(ray)):
            yield ray
    finally:
        ray.shutdown()


def _socket_of_node(ray: Any) -> str | None:
    """Return the socket of the node whose end is ours; None for a client outside of the cluster."""
    outside = not ray.is_initialized() or ray.util.client.ray.is_connected()
    if outside or not hasattr(socket, "AF_UNIX"):
        return None
    node = ray.get_runtime_context().get_node_id()
    sockets = {one["NodeID"]: one.get("RayletSocketName") for one in ray.nodes()}
    return sockets.get(node)


class _LoggedMessages:
    """Standard output; what Ray's threads print of processes that died goes to the log.

    Ray has no option for that, and our command may be writing its result there.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if not threading.current_thread().name.startswith("ray_"):
            return int(self._stream.write(text))
        _LOGGER.debug("%s", text)
        return len(text)


def _start_local(ray: Any, options: dict[str, Any]) -> None:
    """Start a cluster on this machine; again where it was too busy to start one in Ray's time."""
    for attempt in range(START_ATTEMPTS):
        try:
            ray.init(include_dashboard=False, **options)
        except Exception as error:
            # Ray has no type for it, and no way to wait for longer than half a minute.
            if "timed out during startup" not in str(error) or attempt + 1 == START_ATTEMPTS:
                raise
            ray.shutdown()
        else:
            return


def _check_reachable(address: str) -> None:
    """Refuse an address that nothing listens at: Ray itself tries for minutes."""
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    if not separator or not port.isdigit():
        raise ClusterError(
            f"{address!r} is no address of a cluster; write host:6379, or ray://host:10001 for "
            "its client port."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS / 3).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"the cluster at {address!r} cannot be reached ({error}); check the address, and that "
            "`ray status` on its head node answers."
        ) from error


def _connect(start: Callable[[], Any], what: str) -> None:
    """Connect in a thread, as Ray has no limit of its own for whatever listens there.

    A cluster cannot be started so: its processes end with the thread that started them.
    """
    failed: list[BaseException] = []

    def run() -> None:
        try:
            start()
        except BaseException as error:  # noqa: BLE001 (of any kind: raised below, in words)
            failed.append(error)

    thread = threading.Thread(target=run, name="bitwright-ray", daemon=True)
    thread.start()
    thread.join(2 * CONNECT_SECONDS / 3)  # the rest went into looking whether anybody listens
    if thread.is_alive():
        raise ClusterError(
            f"{what} does not answer; check that a Ray head node runs there, of the same version."
        )
    if failed:
        with _in_words(what):
            raise failed[0]


@contextmanager
def _in_words(what: str) -> Iterator[None]:
    try:
        yield
    except BitwrightError:
        raise
    except (Exception, SystemExit) as error:  # Ray ends the program of who waited in vain
        raise ClusterError(f"{what} cannot be used: {reason_of(error)}.") from error


def all_nodes_see(ray: Any, paths: Sequence[str]) -> bool:
    """Whether each machine of a cluster has files and folders as this one has them."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look = ray.remote(_look_at)
    found = []
    for node in ray.nodes():
        if node["Alive"]:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": there}
            found.append(look.options(**options).remote(list(paths)))
    try:
        here = _look_at(paths)
        return all(there == here for there in ray.get(found, timeout=START_SECONDS))
    except ray.exceptions.RayError:
        return False  # one that dies, or does not answer: what is read here reaches all others


def _look_at(paths: Sequence[str]) -> list[tuple[int, int] | None]:
    """Return the size and the time of each file or folder; None where it is not there."""
    found: list[tuple[int, int] | None] = []
    for path in paths:
        try:
            facts = Path(path).stat()
        except OSError:
            found.append(None)
        else:
            found.append((facts.st_size, facts.st_mtime_ns))
    return found
