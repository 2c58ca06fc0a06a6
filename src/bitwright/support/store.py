"""Finished parts of a job on disk: what an interrupted run has done is not done again.

Each part is a safetensors file, written whole or not at all, with a digest of what it holds and of
the job that it is of: one that a disk has damaged since is done again, with a warning.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bitwright.errors import DataError, OutputError
from bitwright.support.files import Closing, write_file
from bitwright.support.scratch import ScratchFolder
from bitwright.support.wording import warn_user

_OURS = re.compile(r"[0-9a-f]{32}\.safetensors|\..+\.tmp")
"""Files of parts, and what a kill left of one."""


class Part(NamedTuple):
    """Arrays by name, and what else is known of them."""

    arrays: dict[str, npt.NDArray[Any]]
    notes: dict[str, str]


def to_bytes(arrays: Mapping[str, Any], notes: Mapping[str, str]) -> bytes:
    """Return arrays and notes as the content of a file."""
    from safetensors.numpy import save

    stored = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    return save(stored, metadata=dict(notes))  # type: ignore[no-any-return]


def read_part(path: Path) -> Part:
    """Read a file of arrays and notes; a damaged one is a ValueError."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return Part(arrays, file.metadata() or {})
    except OSError as error:
        raise DataError(f"cannot read {str(path)!r}: {error.strerror or error}.") from error
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def digest_arrays(arrays: Mapping[str, Any], digest: Any) -> None:
    """Add names, types, shapes and bytes to a digest of hashlib's."""
    for name, array in sorted(arrays.items()):
        array = np.ascontiguousarray(array)
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        if array.size:
            digest.update(array.reshape(-1).view(np.uint8).data)


class PartStore(Closing):
    """A folder of finished parts of one job, a file of arrays and notes each.

    `job` says what the parts belong to, in all or fact by fact. A folder that holds those of
    another job is refused; one without a path of its own vanishes when closed.
    """

    def __init__(
        self, folder: str | Path | None = None, *, job: str | Mapping[str, str] = ""
    ) -> None:
        # Whoever reads from the store holds it, and with it the folder.
        self._lent: ScratchFolder | None = None
        self.job = job
        self._whole: set[str] = set()
        if folder is None:
            self._lent = ScratchFolder("weights")
            folder = self._lent.path / "parts"
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"cannot keep what is finished in {str(self.folder)!r}: {error.strerror}; "
                "name a folder that can be written to."
            ) from error
        marker = self.folder / "job.json"
        found = self._read_marker(marker)
        if found is None:
            write_file(marker, json.dumps({"job": job}))
        elif found != job:
            other = "model, recipe or data"
            if isinstance(job, Mapping) and isinstance(found, Mapping):
                other = next(name for name in {**job, **found} if job.get(name) != found.get(name))
            raise DataError(
                f"the folder {str(self.folder)!r} holds what was finished of another {other}; "
                "delete it, or name another one."
            )

    def _read_marker(self, marker: Path) -> object:
        """Return which job the parts are of; None: of each part its digest says so."""
        if not marker.exists():
            if all(_OURS.fullmatch(path.name) for path in self.folder.iterdir()):
                return None
            raise DataError(
                f"the folder {str(self.folder)!r} is not empty and holds nothing of ours; name "
                "another one."
            )
        try:
            return json.loads(marker.read_text(encoding="utf-8"))["job"]
        except OSError as error:
            raise DataError(f"cannot read {str(marker)!r}: {error.strerror}; delete it.") from error
        except (ValueError, TypeError, KeyError):
            warn_user(f"{str(marker)!r} is damaged or cut off; it is written again.")
            return None

    def __contains__(self, name: object) -> bool:
        """Whether a part is there, and whole; another one is removed, with a warning."""
        path = self.path(str(name))
        if self._lent is not None or str(name) in self._whole or not path.exists():
            return path.exists()
        if path.is_dir():
            raise DataError(f"{str(path)!r} is a folder, where a file was kept; delete it.")
        try:
            self.read(str(name))
        except DataError:
            warn_user(f"{str(path)!r} is damaged, or of another job; that part is done again.")
            path.unlink()
        return path.exists()

    def path(self, name: str) -> Path:
        """Return the file of a part."""
        # Names of tensors hold slashes, and some are longer than a file's may be.
        return self.folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.safetensors"

    def write(self, name: str, arrays: Mapping[str, Any], notes: Mapping[str, str]) -> None:
        """Keep a part: all of it, or nothing."""
        if self._lent is None:
            stored = {**notes, "digest": self._digest(arrays, notes)}
            write_file(self.path(name), to_bytes(arrays, stored))
            self._whole.add(name)
        else:  # gone with this process anyway: there is nothing to keep through a power cut
            with self._lent.writing():
                self.path(name).write_bytes(to_bytes(arrays, notes))

    def read(self, name: str) -> Part:
        """Return a part; a damaged one is refused."""
        try:
            part = read_part(self.path(name))
        except ValueError as error:
            raise self.damaged(name) from error
        digest = part.notes.pop("digest", None)
        if self._lent is None and name not in self._whole:
            if digest != self._digest(*part):
                raise self.damaged(name)
            self._whole.add(name)
        return part

    def _digest(self, arrays: Mapping[str, Any], notes: Mapping[str, str]) -> str:
        digest = hashlib.sha256(repr((self.job, sorted(notes.items()))).encode())
        digest_arrays(arrays, digest)
        return digest.hexdigest()

    def damaged(self, name: str) -> DataError:
        """Return what is to say of a part that cannot be read."""
        return DataError(f"{str(self.path(name))!r} is damaged; delete it to do that part again.")

    def close(self) -> None:
        """Remove a folder that was only lent."""
        if self._lent is not None:
            self._lent.close()
