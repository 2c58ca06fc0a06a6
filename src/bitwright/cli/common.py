"""Options that every command has."""

from __future__ import annotations

import logging
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from bitwright.cli.groups import option
from bitwright.errors import OutputError
from bitwright.support import check_regular_file, indented, printable
from bitwright.support.input_limits import input_limits, read_limits
from bitwright.support.progress import LOGGER as PROGRESS


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """Options that hold while a command runs, whichever it is."""

    limits: list[str] | None = option(
        "NAME=N",
        "Raise what a file may ask for at most: nodes, nesting of bodies, elements of a "
        "random input, bytes of compressed arrays unpacked; repeatable.",
    )
    log_file: Path | None = option(
        "FILE", "Write all steps, their times, decisions and warnings to this file."
    )

    @contextmanager
    def in_force(self, *, verbose: bool = False, quiet: bool = False) -> Iterator[None]:
        """Run a command with these options; its steps are shown if it is verbose."""
        handlers: list[logging.Handler] = []
        if not quiet:
            handlers.append(_ScreenHandler(verbose))
        if self.log_file is not None:
            handlers.append(_file_handler(self.log_file))
        with _listening(handlers), input_limits(**read_limits(",".join(self.limits or ()))):
            yield


class _ScreenHandler(logging.StreamHandler[TextIO]):
    """Shows progress, and steps where they are asked for; warnings and errors have other ways."""

    def __init__(self, verbose: bool) -> None:
        super().__init__(sys.stderr)
        self._verbose = verbose

    def filter(self, record: logging.LogRecord) -> bool:
        is_progress = record.name == PROGRESS.name
        return is_progress or (self._verbose and record.levelno == logging.INFO)

    def format(self, record: logging.LogRecord) -> str:
        word = "progress" if record.name == PROGRESS.name else "step"
        return f"{word}: {printable(record.getMessage())}"


class _OneLine(logging.Formatter):
    """Gives a record one line, and those of a traceback below it: a name forges no other."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (its name in logging)
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 (its name in logging)
        return indented(super().formatException(ei))


_FIRST_LINE = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ [A-Z]+ bitwright")


class _LogFile(logging.FileHandler):
    """A log that ends with a warning where its disk is full; the command goes on without it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, mode="a", encoding="utf-8", errors="replace")
        self._ended = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self._ended:
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (its name in logging)
        error = sys.exc_info()[1]
        self._ended = True  # before the warning, which is a line of the log, too
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            warnings.warn(
                f"the log {self.baseFilename!r} ends here: {reason}.", UserWarning, stacklevel=2
            )
        else:
            super().handleError(record)

    def close(self) -> None:
        with suppress(OSError):  # it tries once more to write what did not fit
            super().close()


def _check_log(path: Path) -> None:
    """Refuse to append to what is no log of ours, such as the model or an image of the data."""
    check_regular_file(path, OutputError)
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            if not _FIRST_LINE.match(file.read(100)):
                raise OutputError(
                    f"{str(path)!r} is there and is no log of bitwright; choose another log file."
                )


def _file_handler(path: Path) -> logging.Handler:
    try:
        _check_log(path)
        handler = _LogFile(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(
            f"cannot write the log {str(path)!r}: {reason}; choose another."
        ) from error
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    return handler


@contextmanager
def _listening(handlers: list[logging.Handler]) -> Iterator[None]:
    """Give our log to these while a command runs; the level is what the most curious one wants."""
    logger = logging.getLogger("bitwright")
    before = logger.level
    curious = any(isinstance(handler, logging.FileHandler) for handler in handlers)
    logger.setLevel(logging.DEBUG if curious else logging.INFO)
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.setLevel(before)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
