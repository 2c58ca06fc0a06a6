"""Ctrl-C and SIGTERM end a command with its clean-up, at whatever moment they come."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_REPEAT_AFTER = 0.25
"""Seconds in which an interruption reaches whoever handles it, or is taken for lost."""


class Stopping:
    """While this lasts, both signals raise KeyboardInterrupt, until it arrives.

    Python loses an exception that a signal raises inside a callback that nobody calls, as those
    of weak references, of which imports have many: it prints "Exception ignored in" and goes on.
    So an interruption that is not on its way any more is raised again.
    """

    def __init__(self) -> None:
        self.terminated = False
        """Whether it was SIGTERM (`kill`, a container's stop, batch systems)."""
        self._before: dict[int, object] = {}
        self._raised: KeyboardInterrupt | None = None
        self._repeating = False
        self._over = False

    @property
    def word(self) -> str:
        """What has happened to the command."""
        return "terminated" if self.terminated else "interrupted"

    @property
    def code(self) -> int:
        """The exit code that shells know for it."""
        return 128 + (signal.SIGTERM if self.terminated else signal.SIGINT)

    def __enter__(self) -> Stopping:
        # Only the main thread receives signals; in another, its starter decides.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                # Shells start jobs in the background deaf to Ctrl-C.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Leave the signals to whom they belonged; what is under way is raised no more."""
        self._over = True
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        # Where it was raised inside a string of code, as those that make dataclasses are, the
        # interpreter takes it for unhandled and ends itself by SIGINT, until the next such string.
        exec("")

    @contextmanager
    def recognized(self) -> Iterator[None]:
        """Make an interruption of what one became: extension modules raise ImportError for it."""
        try:
            yield
        except Exception as error:
            if self._raised is None:
                raise
            raise KeyboardInterrupt from error

    def _stop(self, number: int, _: FrameType | None) -> None:
        repeated, self._repeating = self._repeating, False
        self.terminated = self.terminated or number == signal.SIGTERM
        if repeated and (self._over or self._is_under_way()):
            return
        first = self._raised is None
        self._raised = KeyboardInterrupt()
        if first:
            # Not threading.Thread, whose locks the interrupted code may hold.
            _thread.start_new_thread(self._repeat, (number,))
        raise self._raised

    def _is_under_way(self) -> bool:
        """Return whether somebody is handling the interruption: cleaning up, or telling of it."""
        error = sys.exc_info()[1]
        while error is not None and error is not self._raised:
            error = error.__context__
        return error is not None

    def _repeat(self, number: int) -> None:
        while not self._over:
            time.sleep(_REPEAT_AFTER)
            if self._over:
                break
            self._repeating = True
            if sys.platform == "win32":
                _thread.interrupt_main(number)
            else:  # a real signal also wakes a thread that waits for a lock
                signal.pthread_kill(threading.main_thread().ident or 0, number)
