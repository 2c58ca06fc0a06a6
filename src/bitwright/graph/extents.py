"""Where the big tensors of a model file lie, so that they can stay there until they are read.

An ONNX file is one protobuf message. Parsing it whole takes its size twice: once for the bytes,
once for the message. Here the message is parsed without the data of its big initializers, of which
only the place in the file is noted.

The wire format (protobuf.dev/programming-guides/encoding): a field is a tag, which is number * 8 +
wire type, and a value; a value of wire type 2 is a length and that many bytes.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from bitwright.graph.tensors import lazy_tensor
from bitwright.support.array_types import Array

SMALLEST_FILE = 32 << 20
"""Bytes from which on a file is read in parts; a smaller one is simply read."""
SMALLEST_TENSOR = 64 << 10

# Field numbers of onnx.proto, which are fixed for ever.
MODEL_GRAPH = 7
GRAPH_INITIALIZER = 5
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_RAW = 1, 2, 8, 9

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class _Malformed(Exception):
    """The bytes are no message; whoever parses them in full says what is wrong."""


@dataclass(frozen=True, slots=True)
class Extent:
    """A tensor's element type and shape, and its bytes' place in a file."""

    dtype: ir.DataType
    shape: tuple[int, ...]
    offset: int
    length: int


class StoredFile:
    """A file that tensors are read from; held open, so that it may be renamed or replaced."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._lock = threading.Lock()

    def read(self, extent: Extent) -> ir.TensorProtocol:
        """Return the tensor in memory of its own."""
        array: Array = np.empty(extent.shape, extent.dtype.numpy())
        with self._lock:
            self._file.seek(extent.offset)
            if self._file.readinto(array.reshape(-1).view(np.uint8).data) != extent.length:
                raise OSError(f"{self._file.name!r} was cut off while it was in use")
        return ir.Tensor(array, dtype=extent.dtype)

    def tensor(self, name: str, extent: Extent) -> ir.LazyTensor:
        """Return a tensor that is read each time it is asked for, and not kept."""
        return lazy_tensor(lambda: self.read(extent), extent.dtype, extent.shape, name)


def split_file(path: Path) -> tuple[bytes, dict[str, Extent]] | None:
    """Return a model file's message without its big initializers, and where those lie.

    None means that there is nothing to gain: the file is small, or no model.
    """
    # Windows lets nobody replace a file that is open, and raw data is little-endian.
    if os.name != "posix" or sys.byteorder != "little" or path.stat().st_size < SMALLEST_FILE:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        extents: dict[str, Extent] = {}
        try:
            message = b"".join(_strip_model(data, extents))
        except (_Malformed, IndexError, ValueError):
            return None
    return (message, extents) if extents else None


def _strip_model(data: mmap.mmap, extents: dict[str, Extent]) -> Iterator[bytes]:
    for number, start, value, end in _fields(data, 0, len(data)):
        if number == MODEL_GRAPH:
            yield _field(number, b"".join(_strip_graph(data, value, end, extents)))
        else:
            yield data[start:end]


def _strip_graph(
    data: mmap.mmap, begin: int, stop: int, extents: dict[str, Extent]
) -> Iterator[bytes]:
    for number, start, value, end in _fields(data, begin, stop):
        # A tensor's own fields are a few bytes beside its data.
        found = None
        if number == GRAPH_INITIALIZER and end - value >= SMALLEST_TENSOR:
            found = _find_data(data, value, end)
        if found is None:
            yield data[start:end]
            continue
        name, extent, rest = found
        if name in extents:
            raise _Malformed
        extents[name] = extent
        yield _field(number, rest)


def _find_data(data: mmap.mmap, begin: int, stop: int) -> tuple[str, Extent, bytes] | None:
    """Return a tensor's name, its extent and its fields without the data; None: leave it whole."""
    name, dtype, raw = "", 0, None
    shape: list[int] = []
    rest = []
    for number, start, value, end in _fields(data, begin, stop):
        if number == _TENSOR_RAW:
            raw = (value, end - value)
            continue
        rest.append(data[start:end])
        if number == _TENSOR_NAME:
            name = data[value:end].decode()
        elif number == _TENSOR_TYPE:
            dtype = _varint(data, value)[0]
        elif number == _TENSOR_DIMS:
            shape += _numbers(data, value, end)
    if not name or raw is None or dtype not in ir.DataType._value2member_map_:
        return None
    kind = ir.DataType(dtype)
    # Types of less than a byte are packed, strings are not raw: both are rare and stay.
    if kind in (ir.DataType.UNDEFINED, ir.DataType.STRING) or kind.bitwidth < 8:
        return None
    offset, length = raw
    if length != int(np.prod(shape, dtype=np.int64)) * kind.itemsize:
        return None
    return name, Extent(kind, tuple(shape), offset, length), b"".join(rest)


def _fields(data: mmap.mmap, begin: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (field number, start of the tag, start of the value, end) of each field."""
    start = begin
    while start < stop:
        tag, value = _varint(data, start)
        kind = tag & 7
        if kind == _BYTES:
            length, value = _varint(data, value)
            end = value + length
        elif kind == _VARINT:
            end = _varint(data, value)[1]
        elif kind in (_FIXED64, _FIXED32):
            end = value + (8 if kind == _FIXED64 else 4)
        else:
            raise _Malformed
        if end > stop:
            raise _Malformed
        yield tag >> 3, start, value, end
        start = end


def _numbers(data: mmap.mmap, value: int, end: int) -> list[int]:
    """Return repeated integers: one, or several packed into one field."""
    found = []
    while value < end:
        number, value = _varint(data, value)
        found.append(number)
    return found


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """Return a number, seven bits a byte and the lowest first, and where the next thing starts."""
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at += 1
        shift += 7
        if byte < 128:
            return number, at
        if shift > 63:
            raise _Malformed


def _field(number: int, value: bytes) -> bytes:
    return field_header(number, len(value)) + value


def field_header(number: int, length: int) -> bytes:
    """Return what stands in a message before a value of this many bytes."""
    return _encoded(number << 3 | _BYTES) + _encoded(length)


def tensor_header(tensor: ir.TensorProtocol, name: str, length: int) -> bytes:
    """Return what stands in a graph before the data of an initializer."""
    proto = onnx.TensorProto(
        name=name, dims=tensor.shape.numpy(), data_type=tensor.dtype, doc_string=tensor.doc_string
    )
    fields: bytes = proto.SerializeToString(deterministic=True)
    fields += field_header(_TENSOR_RAW, length)
    return field_header(GRAPH_INITIALIZER, len(fields) + length) + fields


def _encoded(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])
