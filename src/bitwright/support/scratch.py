"""Temporary folders, removed with their process, or by the next one if it was killed."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from bitwright.errors import OutputError
from bitwright.support.files import Closing, try_lock

_PREFIX = "bitwright-"
_LOCK = "owner.lock"
"""A file that the owner holds locked. The system lets go of it when a process ends, however it
ends, and knows no two processes for one, as their numbers may be in two containers."""


class ScratchFolder(Closing):
    """A new folder for one job, which is removed when it is closed, or nobody holds it any more."""

    def __init__(self, kind: str, parent: str | Path | None = None) -> None:
        remove_abandoned(parent)
        with _naming_folder(parent):
            while not self._make(kind, parent):
                pass

    def _make(self, kind: str, parent: str | Path | None) -> bool:
        """Make the folder and lock it; False where another job took it for abandoned."""
        name = f"{_PREFIX}{kind}-{secrets.token_hex(8)}"
        self.path = Path(parent or tempfile.gettempdir()).absolute() / name
        lock = ExitStack()
        # Registered before the folder is there: a signal may stop the job between any two lines.
        self._remove = weakref.finalize(self, _remove, self.path, lock)
        self.path.mkdir(mode=0o700)
        file = lock.enter_context((self.path / _LOCK).open("xb"))
        try:
            if try_lock(file) and (self.path / _LOCK).exists():
                return True
        except OSError:  # a disk without locks: without the file, nobody removes the folder
            (self.path / _LOCK).unlink()
            return True
        self._remove()
        return False

    def writing(self) -> AbstractContextManager[None]:
        """Raise errors of writes in a `with` block, such as a full disk, as `OutputError`."""
        return _naming_folder(self.path.parent)

    def close(self) -> None:
        """Remove it with all that is in it."""
        self._remove()


def remove_abandoned(parent: str | Path | None = None) -> list[Path]:
    """Remove folders whose owner is gone from a folder, the usual one if not given.

    What a living process owns, here or in a container beside, is left alone; so is what belongs
    to another user or has no lock.
    """
    removed: list[Path] = []
    with suppress(OSError), os.scandir(parent or tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and _is_ours(entry):
                folder = Path(entry.path)
                # Gone or locked by somebody else in the meantime: theirs to see to.
                with suppress(OSError):
                    lock = (folder / _LOCK).open("r+b")
                    if try_lock(lock):
                        _remove(folder, lock)
                        removed.append(folder)
                    else:
                        lock.close()
    return removed


@contextmanager
def _naming_folder(parent: str | Path | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        place = f" in {str(parent or tempfile.tempdir)!r}" if parent or tempfile.tempdir else ""
        reason = error.strerror or str(error)
        raise OutputError(
            f"cannot write temporary files{place}: {reason}; make room there, or set TMPDIR to "
            "another folder."
        ) from error


def _is_ours(entry: os.DirEntry[str]) -> bool:
    if not entry.is_dir(follow_symlinks=False):
        return False
    return sys.platform == "win32" or entry.stat(follow_symlinks=False).st_uid == os.getuid()


def _remove(folder: Path, lock: IO[bytes] | ExitStack) -> None:
    """Remove a folder, its lock last: by that the next job finds what is left here.

    Something is where this is killed halfway, or, on Windows, where a file is still open.
    """
    for inner in [path for path in folder.glob("*") if path.name != _LOCK]:
        if inner.is_dir() and not inner.is_symlink():
            shutil.rmtree(inner, ignore_errors=True)
        else:
            with suppress(OSError):
                inner.unlink()
    is_empty = all(path.name == _LOCK for path in folder.glob("*"))
    if is_empty:
        # While it is held: who waits for the lock must not take the folder for their own. Windows
        # removes no open file.
        with suppress(OSError):
            (folder / _LOCK).unlink()
    lock.close()
    if is_empty:
        shutil.rmtree(folder, ignore_errors=True)
