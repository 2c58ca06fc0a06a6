"""Write small files whole or not at all, create folders, and refuse pipes and devices."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypeVar

from bitwright.errors import BitwrightError, OutputError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


_T = TypeVar("_T")


class Closing:
    """A resource with `close()`, which the end of a `with` block calls."""

    def close(self) -> None:
        """Release the resource."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def check_regular_file(path: Path, error: type[BitwrightError]) -> None:
    """Refuse a pipe, a socket or a device, which could be waited for or read for ever.

    What is not there is left to whoever opens it; what cannot be there is refused.
    """
    try:
        path.lstat()
    except OSError as problem:
        if problem.errno == errno.ENAMETOOLONG:
            start = str(path)[:40]
            raise error(f"the path {start!r}… is longer than paths may be.") from problem
    if path.exists() and not path.is_file() and not path.is_dir():
        raise error(f"{str(path)!r} is a pipe or a device; give the path of a regular file.")


def read_parsed(
    path: str | Path,
    what: str,
    error: type[BitwrightError],
    parse: Callable[[bytes], _T],
    not_so: str,
) -> _T:
    """Return what `parse` makes of a file that a user names; `not_so`: what it is if it cannot."""
    path = Path(path)
    check_regular_file(path, error)
    try:
        return parse(path.read_bytes())
    except OSError as problem:
        raise error(f"cannot read the {what} {str(path)!r}: {problem.strerror}.") from problem
    except UnicodeDecodeError as problem:
        raise error(f"the {what} {str(path)!r} is not a text in UTF-8.") from problem
    except (ValueError, RecursionError) as problem:
        reason = " ".join(str(problem).split())
        raise error(f"the {what} {str(path)!r} {not_so}: {reason}.") from problem


def write_file(path: Path, content: str | bytes) -> None:
    """Write a temporary file beside the target and rename it."""
    check_regular_file(path, OutputError)  # the rename would put a file in its place
    try:
        with temporary_beside(path) as temporary:
            with temporary.open("wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            replace_file(temporary, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"cannot write {str(path)!r}: {reason}; choose another path.") from error


def link_or_copy(source: str, target: Path) -> None:
    """Give a file another name, or its content where disks have no links in common."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


def make_folder(path: Path) -> None:
    """Create a folder and those above it, if they are not there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(
            f"cannot create the folder {str(path)!r}: {reason}; choose another."
        ) from error


def replace_file(temporary: Path, target: Path) -> None:
    """Give a file its name, and the rights of one that had it; it lasts through a power cut."""
    if target.exists():
        with suppress(OSError):
            temporary.chmod(target.stat().st_mode & 0o777)
    temporary.replace(target)
    if os.name == "posix":  # the rename itself stands in the folder
        descriptor = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def temporary_beside(target: Path) -> Iterator[Path]:
    """Give an empty file beside the target, and see to it that nothing is left there."""
    _remove_abandoned(target)
    path = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    file = path.open("xb")
    try:
        if _RENAMES_OPEN_FILES:
            with suppress(OSError):  # a disk without locks: nobody takes it for abandoned
                try_lock(file)
        else:
            file.close()
        yield path
    finally:
        file.close()
        path.unlink(missing_ok=True)


@contextmanager
def temporary_folder_beside(target: Path) -> Iterator[Path]:
    """Give an empty folder beside the target, and see to it that nothing is left there."""
    with temporary_beside(target) as lock:
        folder = lock.with_suffix(_NEW)
        try:
            folder.mkdir()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


_NEW, _OLD = ".new", ".old"
_RENAMES_OPEN_FILES = sys.platform != "win32"
_LONGEST_JOB = 24 * 3600
"""Seconds after which a temporary file is taken for abandoned where it cannot be kept locked."""


def replace_folder(new: Path, target: Path) -> None:
    """Put a folder of `temporary_folder_beside` in the place of its target, if there is one.

    Two folders cannot be swapped in one step: the next job restores the old one where this is
    killed in between.
    """
    if not target.exists():
        new.rename(target)
        return
    old = new.with_suffix(_OLD)
    target.rename(old)
    try:
        new.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _remove_abandoned(target: Path) -> None:
    """Remove what killed jobs left while they wrote this model or folder, or data beside it."""
    ours = re.compile(rf"\.{re.escape(target.name)}(\..+)?\.[0-9a-f]{{12}}\.tmp")
    for path in [path for path in target.parent.glob(".*.tmp") if ours.fullmatch(path.name)]:
        with suppress(OSError):
            if _is_abandoned(path):
                old = path.with_suffix(_OLD)
                if old.exists() and not target.exists():
                    old.rename(target)
                for folder in (old, path.with_suffix(_NEW)):
                    shutil.rmtree(folder, ignore_errors=True)
                path.unlink()


def _is_abandoned(path: Path) -> bool:
    """Return whether the job that made a temporary file is gone: a living one holds its lock.

    Windows renames no open file, so nothing is locked there and only its age tells.
    """
    if not _RENAMES_OPEN_FILES:
        return time.time() - path.stat().st_mtime > _LONGEST_JOB
    with path.open("r+b") as file:
        return try_lock(file)


def try_lock(file: IO[bytes]) -> bool:
    """Lock a file, unless another process has; the lock ends with the process."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (PermissionError, BlockingIOError):
        return False
    return True


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a file, or an empty one where there is none that can be read."""
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}
