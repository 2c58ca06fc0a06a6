"""Arrays of samples in memory and on disk: written once, read as often as needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np
import onnx_ir as ir

from bitwright.errors import DataError
from bitwright.support import Array, Closing, ScratchFolder, link_or_copy


class _Place(NamedTuple):
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int


class SharedRow(msgspec.Struct, frozen=True):
    """A row as another process reads it: mapped into memory, sample by sample."""

    file: str
    kind: str
    places: list[tuple[tuple[int, ...], int]]
    """Shape and offset of each sample."""

    def __iter__(self) -> Iterator[Array]:
        dtype = ir.DataType[self.kind].numpy()
        for shape, offset in self.places:
            if 0 in shape:  # nothing of it is in the file
                yield np.empty(shape, dtype)
            else:
                yield np.memmap(self.file, dtype, "r", offset, shape)


class Rows(Closing):
    """Named rows of values, one for each sample, wherever they are kept."""

    def __init__(self) -> None:
        self._places: dict[str, list[Any]] = {}

    def append(self, name: str, array: Any) -> None:
        """Add a sample's array to a row."""
        raise NotImplementedError

    def row(self, name: str, index: int) -> Any:
        """Return one sample's array."""
        raise NotImplementedError

    def rows(self, name: str) -> Iterator[Any]:
        """Yield what was appended under this name, in order, each read when it is asked for."""
        for index in range(len(self._places[name])):
            yield self.row(name, index)

    def sample(self, names: Sequence[str], index: int) -> dict[str, Any]:
        """Return the arrays of one sample."""
        return {name: self.row(name, index) for name in names}

    def data_type(self, name: str) -> ir.DataType:
        """Return the element type of a row."""
        raise NotImplementedError

    def share(self, name: str, file: Path) -> SharedRow:
        """Give a row to other processes as a file of its own, which does not vanish with this."""
        raise DataError(f"tensor {name!r} has no file to share.")

    def rename(self, name: str, other: str) -> None:
        """Let a row take the place of another."""
        self.drop(other)
        self._places[other] = self._places.pop(name)

    def drop(self, name: str) -> None:
        """Remove a row."""
        self._places.pop(name, None)

    def names(self) -> tuple[str, ...]:
        """Return the names of all rows."""
        return tuple(self._places)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def close(self) -> None:
        """Remove everything."""
        self._places.clear()


class Spool(Rows):
    """Named rows of arrays, one for each sample, in files that vanish with the spool.

    Up to `memory` bytes are kept as they are given, and must not be written to any more.
    """

    def __init__(self, folder: str | Path | None = None, *, memory: int = 0) -> None:
        super().__init__()  # arrays in memory, and the places of those on disk
        self._scratch = ScratchFolder("spool", folder)
        self._files: dict[str, BinaryIO] = {}
        self._opened = 0
        self._memory_left = memory

    def append(self, name: str, array: Any) -> None:
        """Add a sample's array to a row."""
        array = np.asarray(array)
        if array.dtype.hasobject:
            raise DataError(f"tensor {name!r} holds {array.dtype} values, which cannot be kept.")
        places = self._places.setdefault(name, [])
        # What is part of a larger array would keep that alive.
        if array.nbytes <= self._memory_left and not isinstance(array.base, np.ndarray):
            self._memory_left -= array.nbytes
            kept = array.view()
            kept.flags.writeable = False
            places.append(kept)
            return
        with self._scratch.writing():
            if name not in self._files:
                self._opened += 1
                self._files[name] = (self._scratch.path / f"{self._opened}.bin").open("w+b")
            offset = _write_array(self._files[name], array)
        places.append(_Place(array.dtype, array.shape, offset))

    def row(self, name: str, index: int) -> Array:
        """Return one sample's array."""
        place: _Place | Array = self._places[name][index]
        if isinstance(place, np.ndarray):
            return place
        array = np.empty(place.shape, place.dtype)
        file = self._files[name]
        file.seek(place.offset)
        if array.size:
            file.readinto(array.reshape(-1).view(np.uint8).data)  # type: ignore[attr-defined]
        return array

    def share(self, name: str, file: Path) -> SharedRow:
        """Give a row to other processes as a file of its own, which does not vanish with this."""
        places = self._places[name]
        on_disk = [place for place in places if isinstance(place, _Place)]
        if len(on_disk) == len(places):
            link_or_copy(self._files[name].name, file)
        else:
            with file.open("wb") as copy:
                on_disk = [
                    _Place(array.dtype, array.shape, _write_array(copy, array))
                    for array in self.rows(name)
                ]
        kind = ir.DataType.from_numpy(places[0].dtype).name
        return SharedRow(str(file), kind, [(place.shape, place.offset) for place in on_disk])

    def data_type(self, name: str) -> ir.DataType:
        """Return the element type of a row."""
        return ir.DataType.from_numpy(self._places[name][0].dtype)

    def rename(self, name: str, other: str) -> None:
        """Let a row take the place of another."""
        super().rename(name, other)
        if name in self._files:
            self._files[other] = self._files.pop(name)

    def drop(self, name: str) -> None:
        """Remove a row, and its file if it has one."""
        for place in self._places.pop(name, ()):
            if isinstance(place, np.ndarray):
                self._memory_left += place.nbytes
        if name in self._files:
            file = self._files.pop(name)
            _close(file)
            Path(file.name).unlink()

    def close(self) -> None:
        """Remove everything."""
        for file in self._files.values():
            _close(file)
        self._files.clear()
        super().close()
        self._scratch.close()


def _write_array(file: BinaryIO, array: Array) -> int:
    """Write an array's bytes behind the others; return where they begin."""
    offset = file.seek(0, 2)
    # Numbers of 2 bytes that numpy does not know have no buffer of their own.
    file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    file.flush()
    return offset


def _close(file: BinaryIO) -> None:
    """Close a file that vanishes; what did not fit on the disk was told when it was written."""
    with suppress(OSError):
        file.close()
