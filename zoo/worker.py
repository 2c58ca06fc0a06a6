"""Processes with time limits: a crash or a hang takes one verb with it, never the run."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

# Libraries are imported once, before the fork; nothing runs on threads in this process.
_FORK = multiprocessing.get_context("fork")
Send = Callable[[str, Any], None]
WAITING = 10


def run_in_process(task: Callable[[Send], None], limit: float) -> Iterator[tuple[str, Any]]:
    """Run a task in a process of its own and give what it sends, as it sends it.

    The last message is ("died", how) where it did not end by itself. The limit is the processor
    time between two messages, which other work on the machine does not change; a process that
    waits for nothing is ended after WAITING times as long by the clock.
    """
    receiver, sender = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_serve, args=(task, sender, limit))
    process.start()
    sender.close()
    started = time.monotonic()
    try:
        while True:
            if not receiver.poll(max(0.0, started + limit * WAITING - time.monotonic())):
                process.kill()
                yield "died", f"hung for {limit * WAITING:g} s"
                return
            try:
                message = receiver.recv()
            except EOFError:
                process.join()
                if process.exitcode:
                    yield "died", _describe_exit(process.exitcode)
                return
            yield message
            started = time.monotonic()
    finally:
        receiver.close()
        if process.is_alive():
            process.kill()
        process.join()


def _describe_exit(code: int) -> str:
    if code == -signal.SIGXCPU:
        return "took too much processor time"
    return f"the process was ended by signal {-code}" if code < 0 else f"exit code {code}"


def _serve(
    task: Callable[[Send], None], sender: multiprocessing.connection.Connection, limit: float
) -> None:
    # What libraries print would drown the runner's lines.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    if "ZOO_VERBOSE" not in os.environ:
        os.dup2(null, 2)

    def send(kind: str, value: Any) -> None:
        _allow(limit)
        sender.send((kind, value))

    _allow(limit)
    task(send)


def _allow(seconds: float) -> None:
    """Let this process have so many more seconds of processor time."""
    used = int(time.process_time() + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (used, resource.getrlimit(resource.RLIMIT_CPU)[1]))
