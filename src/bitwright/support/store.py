"""Finished parts of a job on disk: what an interrupted run has done is not done again.

Each part is a safetensors file, written whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bitwright.errors import DataError, OutputError
from bitwright.support.files import Closing, write_file
from bitwright.support.scratch import ScratchFolder

__all__ = ["Part", "PartStore", "read_part", "to_bytes"]


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


class PartStore(Closing):
    """A folder of finished parts of one job, a file of arrays and notes each.

    `job` says what the parts belong to. A folder that holds those of another job is refused; one
    without a path of its own vanishes when closed.
    """

    remedy = "is damaged or cut off; delete it to do that part again."

    def __init__(self, folder: str | Path | None = None, *, job: str = "") -> None:
        # Whoever reads from the store holds it, and with it the folder.
        self._lent: ScratchFolder | None = None
        self.job = job
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
        if marker.exists():
            found = json.loads(marker.read_text(encoding="utf-8")).get("job")
            if found != job:
                raise DataError(
                    f"the folder {str(self.folder)!r} holds weights of another model, recipe or "
                    "data; delete it, or name another one."
                )
        elif any(self.folder.iterdir()):
            raise DataError(
                f"the folder {str(self.folder)!r} is not empty and holds no weights of ours; name "
                "another one."
            )
        else:
            write_file(marker, json.dumps({"job": job}))

    def __contains__(self, name: object) -> bool:
        return self.path(str(name)).exists()

    def path(self, name: str) -> Path:
        """Return the file of a part."""
        # Names of tensors hold slashes, and some are longer than a file's may be.
        return self.folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.safetensors"

    def write(self, name: str, arrays: Mapping[str, Any], notes: Mapping[str, str]) -> None:
        """Keep a part: all of it, or nothing."""
        content = to_bytes(arrays, notes)
        if self._lent is None:
            write_file(self.path(name), content)
        else:  # gone with this process anyway: there is nothing to keep through a power cut
            with self._lent.writing():
                self.path(name).write_bytes(content)

    def read(self, name: str) -> Part:
        """Return a part; a damaged one is refused."""
        try:
            return read_part(self.path(name))
        except ValueError as error:
            raise self.damaged(name) from error

    def damaged(self, name: str) -> DataError:
        """Return what is to say of a part that cannot be read."""
        return DataError(f"{str(self.path(name))!r} {self.remedy}")

    def close(self) -> None:
        """Remove a folder that was only lent."""
        if self._lent is not None:
            self._lent.close()
