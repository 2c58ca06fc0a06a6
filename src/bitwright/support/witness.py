"""A process that says what became of another, which Ray ended without a word.

Where the node is gone that a program is connected to, Ray ends the program at once, and nothing
that it wrote in Python is run. The witness is started as a script, imports the standard library
alone, and waits at a pipe: for a word where the work has ended, whichever way, and else for the end
of the process.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_SECONDS = 5.0
_GONE = (
    "error: the Ray node that this job was connected to is gone, and the job ended with it; start "
    "the cluster again and repeat the command (what was kept with --work is not done again)."
)


@contextmanager
def watch_node(path: str | None) -> Iterator[None]:
    """Tell the user if this process ends within, and nothing listens at the node's socket.

    Without a socket there is nothing to tell: a client gets an error, which says it.
    """
    if path is None:
        yield
        return
    # Not in the terminal's group of processes: Ctrl-C is not for it.
    witness = subprocess.Popen(
        [sys.executable, "-I", __file__, path], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield
    finally:
        with suppress(OSError, subprocess.TimeoutExpired):
            witness.communicate(b"done", timeout=_SECONDS)


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_SECONDS)
        return client.connect_ex(path) == 0


def _main(path: str) -> None:
    if not sys.stdin.buffer.read() and not _listens(path):
        print(_GONE, file=sys.stderr)


if __name__ == "__main__":
    _main(sys.argv[1])
