"""Files of NumPy arrays: read as they are needed, and never unpickled."""

from __future__ import annotations

import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from bitwright.data.specs import Array
from bitwright.errors import DataError, did_you_mean
from bitwright.support import check_limit, check_regular_file, show_bytes


def load_arrays(path: Path, names: Sequence[str] | None = None) -> dict[str, Array]:
    """Read the arrays of a file by their names, '' where it has none; never unpickles.

    With `names`, only those are read of a file with several; where one of them is missing, any
    other array is refused before one is read.
    """
    check_regular_file(path, DataError)
    return ARRAY_READERS[path.suffix.lower()](path, names)


# What np.load and zipfile raise for files that are cut off, damaged or made to do harm.
_DAMAGED = (
    ValueError,
    EOFError,
    OverflowError,
    OSError,
    KeyError,
    TypeError,
    SyntaxError,
    MemoryError,
    RecursionError,
    NotImplementedError,
    RuntimeError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def load_npy(path: Path) -> Array:
    """Return the array of a file, mapped into memory."""
    check_regular_file(path, DataError)
    try:
        # Mapped, not read: a stack of thousands of samples is then paged in as it is used.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except _DAMAGED as error:
        raise _unreadable(path, error, b"\x93NUMPY") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise DataError(f"{str(path)!r} is a .npz archive by content; rename it to .npz.")
    return array


def _load_npz(path: Path, names: Sequence[str] | None) -> dict[str, Array]:
    try:
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise DataError(f"{str(path)!r} is a .npy file by content; rename it to .npy.")
        with archive:
            found = archive.files
            if not found:
                raise DataError(f"{str(path)!r} holds no arrays; save them with np.savez.")
            if names is not None and len(found) > 1:
                _refuse_unknown(found, names, path)
                found = [name for name in found if name in names]
            _check_unpacked(path, archive.zip, found)
            return {name: _load_member(path, archive.zip, name) for name in found}
    except _DAMAGED as error:
        raise _unreadable(path, error, b"PK") from error


def _refuse_unknown(found: Sequence[str], names: Sequence[str], path: Path) -> None:
    for name in () if set(names) <= set(found) else found:
        if name not in names:
            raise DataError(
                f"{str(path)!r} names {name!r}, which is no input of the model."
                f"{did_you_mean(name, names)}"
            )


def _check_unpacked(path: Path, archive: zipfile.ZipFile, names: Sequence[str]) -> None:
    """Refuse an archive that would fill the memory, by the sizes that it declares."""
    members = [info for info in archive.infolist() if info.filename.removesuffix(".npy") in names]
    size = sum(info.file_size for info in members if info.compress_type != zipfile.ZIP_STORED)
    what = (
        f"{str(path)!r} is {show_bytes(path.stat().st_size)} and unpacks to {show_bytes(size)} at "
        "once (np.savez, which does not compress, lets it be read sample by sample)"
    )
    check_limit("unpacked", size, what, DataError)


def _load_member(path: Path, archive: zipfile.ZipFile, name: str) -> Array:
    """Return an array of an archive: mapped, not read, where it is stored as np.savez does."""
    member = f"{name}.npy"
    if member not in archive.namelist():
        raise DataError(f"{str(path)!r} holds {name!r}, which is no array; save it with np.savez.")
    info = archive.getinfo(member)
    with archive.open(info) as stream:
        shape, fortran, dtype = _read_header(stream)
        begin = stream.tell()
        if not dtype.hasobject and math.prod(shape) * dtype.itemsize != info.file_size - begin:
            # Before memory is reserved for what the header promises.
            raise ValueError(f"{member} has not the size that its header says")
        if info.compress_type != zipfile.ZIP_STORED or dtype.hasobject or 0 in shape:
            stream.seek(0)
            return np.lib.format.read_array(stream, allow_pickle=False)
        while stream.read(1 << 20):
            pass  # to the end, where the checksum is compared
    with path.open("rb") as file:
        file.seek(info.header_offset + _LENGTHS_AT)
        head = sum(struct.unpack("<HH", file.read(4)))
    offset = info.header_offset + _LENGTHS_AT + 4 + head + begin
    return np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")


# A member of a zip file: a head of 30 bytes, which ends with the lengths of the name and of the
# extra field, those two, and then the data.
_LENGTHS_AT = 26


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    # Version 3.0 is 2.0 with field names in UTF-8, and arrays with fields are no samples.
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    return np.lib.format.read_array_header_2_0(stream)


# Suffix of a file -> what reads its arrays.
ARRAY_READERS: dict[str, Callable[[Path, Sequence[str] | None], dict[str, Array]]] = {
    ".npy": lambda path, _: {"": load_npy(path)},
    ".npz": _load_npz,
}


def _unreadable(path: Path, error: Exception, magic: bytes) -> DataError:
    """Return why np.load failed: pickled data, a truncated file, or something else."""
    if isinstance(error, PermissionError):
        return DataError(f"{str(path)!r} may not be read; check its permissions.")
    try:
        start = path.open("rb").read(len(magic))
    except OSError:
        return DataError(f"{str(path)!r} cannot be read ({error}); check the file.")
    if not start:
        return DataError(f"{str(path)!r} is empty; save it again with np.save or np.savez.")
    if "Object arrays" in str(error) or "Python objects" in str(error) or start[:1] == b"\x80":
        return DataError(
            f"{str(path)!r} holds pickled Python objects, which are never loaded because they can "
            "run code; save plain number arrays with np.save or np.savez."
        )
    if not start.startswith(magic):
        return DataError(
            f"{str(path)!r} is not a NumPy file; save the data with np.save or np.savez."
        )
    return DataError(
        f"{str(path)!r} is cut off or damaged; copy it again, or save it again with np.save or "
        "np.savez."
    )
