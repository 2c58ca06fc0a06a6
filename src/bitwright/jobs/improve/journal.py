"""The journal of a search: what was measured stands in a file as soon as it is known.

A part of a store for each figure. A run that was killed goes on behind the last whole one, and one
with another drop, another purpose or more time finds all that was measured before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from bitwright.errors import OutputError
from bitwright.support import Closing, PartStore, make_folder, try_lock

FIGURES = "figures"
"""The folder of the store, in the journal's own, which also has the best model so far."""


class Journal(Closing):
    """Figures by name; those of a folder survive the process."""

    def __init__(self, folder: str | Path | None, identity: Mapping[str, str]) -> None:
        """Open the journal of a folder; None keeps it in memory.

        `identity` says what the figures are of; a folder with those of something else is refused.
        """
        self.folder = None if folder is None else Path(folder)
        self._known: dict[str, Any] = {}
        self._store: PartStore | None = None
        self._lock: IO[bytes] | None = None
        if self.folder is not None:
            make_folder(self.folder)
            self._lock = _lock(self.folder)
            try:
                self._store = PartStore(self.folder / FIGURES, job=dict(identity))
            except BaseException:
                self.close()
                raise

    def get(self, name: str) -> Any:
        """Return what was measured under a name, or None."""
        if name not in self._known and self._store is not None and name in self._store:
            self._known[name] = json.loads(self._store.read(name).notes["value"])
        return self._known.get(name)

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def __setitem__(self, name: str, value: Any) -> None:
        self._known[name] = value
        if self._store is not None:
            self._store.write(name, {}, {"name": name, "value": json.dumps(value)})

    def path(self, name: str) -> Path | None:
        """Return where a file of this search stands; None: nothing is kept."""
        return None if self.folder is None else self.folder / name

    def close(self) -> None:
        """Let go of the folder."""
        if self._lock is not None:
            self._lock.close()
        self._store = self._lock = None


def _lock(folder: Path) -> IO[bytes]:
    try:
        file = (folder / "journal.lock").open("ab")
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
