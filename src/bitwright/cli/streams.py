"""Standard streams that may be closed, full or without a reader: no job fails by them."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


class LastingStream:
    """A stream that drops what comes after the first thing that it could not write."""

    def __init__(self, stream: Any, errors: list[OSError] | None = None) -> None:
        self._stream = stream
        self._errors: list[OSError] = [] if errors is None else errors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def buffer(self) -> LastingStream:
        """The same for bytes."""
        return LastingStream(self._stream.buffer, self._errors)

    @property
    def problem(self) -> str | None:
        """Why something was not written; that a reader (`| head`) has seen enough is none."""
        gone = (errno.EPIPE, errno.EINVAL)  # the second one on Windows
        found = [error for error in self._errors if error.errno not in gone]
        return str(found[0].strerror or found[0]) if found else None

    def write(self, text: Any) -> int:
        """Write, or drop it."""
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Send what was written on its way."""
        self._try(self._stream.flush)

    def _try(self, do: Callable[[], object]) -> None:
        if not self._errors:
            try:
                do()
            except OSError as error:
                self._errors.append(error)
                # What is in the buffer still goes somewhere when the interpreter ends.
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


@contextmanager
def lasting_streams() -> Iterator[None]:
    """Make the standard streams last while a command runs; what is closed (cron) leads nowhere.

    Otherwise the next file that is opened, such as the result, would be the standard output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    before = sys.stdout, sys.stderr
    with ExitStack() as stack:
        ours = [stream or stack.enter_context(open(os.devnull, "w")) for stream in before]  # noqa: PTH123
        for stream in ours:
            # A terminal or pipe that knows no "…" shows a "?", and the job goes on.
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")
        sys.stdout, sys.stderr = (LastingStream(stream) for stream in ours)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
