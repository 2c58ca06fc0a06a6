"""The journal of a search: what was measured stands in a file as soon as it is known.

A line of JSON for each figure. A run that was killed goes on behind the last whole line, and one
with another drop, another purpose or more time finds all that was measured before.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from bitwright.errors import DataError, OutputError
from bitwright.support import Closing, counted, make_folder, try_lock, warn_user

_FILE, _LOCK = "journal.jsonl", "journal.lock"
_VERSION = 4
_BEGINNING = b'{"journal"'


class Journal(Closing):
    """Figures by name; those of a folder survive the process."""

    def __init__(self, folder: str | Path | None, identity: Mapping[str, str]) -> None:
        """Open the journal of a folder; None keeps it in memory.

        `identity` says what the figures are of; a folder with those of something else is refused.
        """
        self.folder = None if folder is None else Path(folder)
        self._known: dict[str, Any] = {}
        self._file: IO[bytes] | None = None
        self._lock: IO[bytes] | None = None
        if self.folder is not None:
            make_folder(self.folder)
            self._lock = _lock(self.folder)
            try:
                self._file = self._open(self.folder / _FILE, dict(identity))
            except BaseException:
                self.close()
                raise

    def _open(self, path: Path, identity: dict[str, str]) -> IO[bytes]:
        begun = path.exists() and path.stat().st_size > 0
        try:
            kept = _read(path, identity, self._known) if begun else 0
            file = path.open("r+b" if begun else "wb")
        except OSError as error:
            raise OutputError(
                f"cannot write the journal {str(path)!r}: {error.strerror}."
            ) from error
        file.truncate(kept)  # a line that a kill cut off
        file.seek(kept)
        if not kept:
            self._file = file
            self._append({"journal": _VERSION, "identity": identity})
        return file

    def get(self, name: str) -> Any:
        """Return what was measured under a name, or None."""
        return self._known.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def __setitem__(self, name: str, value: Any) -> None:
        self._known[name] = value
        self._append({"name": name, "value": value})

    def path(self, name: str) -> Path | None:
        """Return where a file of this search stands; None: nothing is kept."""
        return None if self.folder is None else self.folder / name

    def _append(self, line: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps({**line, "sum": _sum_of(line)}).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OutputError(
                f"cannot write the journal in {str(self.folder)!r}: {error.strerror}; make room, "
                "and the same command goes on from here."
            ) from error

    def close(self) -> None:
        """Let go of the folder."""
        for file in (self._file, self._lock):
            if file is not None:
                file.close()
        self._file = self._lock = None


def _lock(folder: Path) -> IO[bytes]:
    try:
        file = (folder / _LOCK).open("ab")
    except OSError as error:
        raise OutputError(
            f"cannot write in the folder {str(folder)!r}: {error.strerror}; choose another."
        ) from error
    try:
        if not try_lock(file):
            file.close()
            raise OutputError(
                f"another run is tuning in {str(folder)!r}; wait for it, or name another folder."
            )
    except OSError:
        pass  # a disk without locks
    return file


def _sum_of(line: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps({k: v for k, v in line.items() if k != "sum"}).encode())


def _read(path: Path, identity: Mapping[str, str], known: dict[str, Any]) -> int:
    """Read all whole lines of a journal; return where the last of them ends.

    A line that is damaged is left out, and what it says is measured again.
    """
    end = damaged = 0
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if number == 0 and line[: len(_BEGINNING)] != _BEGINNING[: len(line)]:
                raise DataError(f"{str(path)!r} is no journal; name another folder.")
            if not line.endswith(b"\n"):
                break
            try:
                found = json.loads(line)
                whole = found["sum"] == _sum_of(found)
            except (ValueError, TypeError, KeyError, AttributeError):
                found, whole = {}, False
            if number == 0 and not whole and found.get("journal", _VERSION) == _VERSION:
                warn_user(f"the journal {str(path)!r} is damaged; all is measured again.")
                return 0
            if number == 0:
                _check(found, identity, path)
            elif whole:
                known[found["name"]] = found["value"]
            damaged += not whole
            end += len(line)
    if damaged:
        lines = counted(damaged, "line")
        warn_user(f"{lines} of {str(path)!r} are damaged; what they said is measured again.")
    return end


def _check(head: Mapping[str, Any], identity: Mapping[str, str], path: Path) -> None:
    before = head.get("identity")
    if head.get("journal") != _VERSION or not isinstance(before, dict):
        raise DataError(f"{str(path)!r} is no journal of this version; name another folder.")
    changed = [name for name in identity if before.get(name) != identity[name]]
    if changed:
        raise DataError(
            f"the folder {str(path.parent)!r} holds the journal of another {changed[0]}; name "
            "another folder, or delete it."
        )
