"""The client of a worker process: calls and results are lines of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bitwright.support.files import Closing

_SERVER = Path(__file__).with_name("server.py")
_CLOSE_TIMEOUT = 5.0
"""Seconds that a worker has to end by itself."""


class WorkerLost(Exception):
    """The worker process has ended, or sent what is no result; it cannot be called again.

    The caller tells the user what that means for the job.
    """

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        """The exit code of one that ended by itself."""


class WorkerError(Exception):
    """The called method raised this; the worker goes on and can be called again."""


class WorkerProcess(Closing):
    """A process that runs the methods of the `Worker` in a file, one at a time.

    Python runs it, or another `command` that answers the same lines.
    """

    def __init__(self, file: Path, command: Sequence[str | Path] | None = None) -> None:
        # -P: the folder of the script must not shadow modules of the standard library.
        self._process = subprocess.Popen(
            command or [sys.executable, "-P", str(_SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        # A worker that is gone already is noticed by the first call.
        with suppress(OSError):
            # The same modules as here, wherever they come from.
            self._write({"file": str(file.absolute()), "path": sys.path})

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def call(self, method: str, /, **arguments: Any) -> Any:
        """Call a method of the worker with arguments that JSON can hold, and return its result.

        What the method raises is raised here as `WorkerError`.
        """
        try:
            self._write({"method": method, "arguments": arguments})
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
        except (OSError, ValueError):  # the pipe is broken, or was closed here
            line = ""
        if not line.endswith("\n"):  # it died while it wrote
            code = self._process.wait()
            raise WorkerLost(f"ended with code {code}", code)
        try:
            reply = json.loads(line)
            if "error" not in reply:
                return reply["result"]
        except (ValueError, TypeError, KeyError) as error:
            self.kill()
            raise WorkerLost(f"sent {line.strip()[:80]!r}, which is no result") from error
        raise WorkerError(reply["error"])

    def close(self) -> None:
        """End it: it finishes what it does, if that does not take long."""
        self._close_pipes()
        try:
            self._process.wait(_CLOSE_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._close_pipes()

    def _write(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def _close_pipes(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                # Closing flushes, and there may be nobody left to read.
                with suppress(OSError, ValueError):
                    stream.close()
