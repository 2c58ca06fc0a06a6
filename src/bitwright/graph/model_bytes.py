"""The bytes of a model, streamed: big tensors one after another, and no copy of the whole."""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
import onnx
import onnx_ir as ir

from bitwright.graph.cloning import to_message, value_with_tensor
from bitwright.graph.extents import (
    GRAPH_INITIALIZER,
    MODEL_GRAPH,
    SMALLEST_TENSOR,
    field_header,
    tensor_header,
)
from bitwright.graph.maps import put_back_maps
from bitwright.graph.tensors import TensorSlot, external_path, inline_copy

CHUNK_BYTES = 64 << 20
"""Bytes that are read and written at once."""
_SYNCED = 64 << 20
"""Bytes after which the disk is asked to take what was written."""

_Item = TypeVar("_Item")


def write_tensors(
    slots: list[TensorSlot],
    file: BinaryIO,
    ranges: list[tuple[int, int]],
    digest: hashlib._Hash | None,
) -> None:
    """Stream tensors one after another, in constant memory."""
    lengths = [0] * len(slots)
    parts = ((i, chunk) for i, slot in enumerate(slots) for chunk in _chunks(slot.tensor))
    with _put_to_disk(file) as note_written:
        for index, chunk in _read_ahead(parts):
            file.write(chunk)
            if digest is not None:
                digest.update(chunk)
            lengths[index] += len(chunk)
            note_written(len(chunk))
    ends = list(accumulate(lengths))
    ranges += [(end - length, length) for end, length in zip(ends, lengths, strict=True)]


@contextmanager
def _put_to_disk(file: BinaryIO) -> Iterator[Callable[[int], None]]:
    """Let the disk take what is written while more of it is made; give what counts the bytes."""
    waiting = 0
    with ThreadPoolExecutor(1, thread_name_prefix="bitwright-sync") as pool:
        running: Future[None] | None = None

        def note_written(count: int) -> None:
            nonlocal waiting, running
            waiting += count
            if waiting >= _SYNCED and (running is None or running.done()):
                if running is not None:
                    running.result()  # the system tells of a failure once
                file.flush()
                running, waiting = pool.submit(os.fsync, file.fileno()), 0

        yield note_written
        if running is not None:
            running.result()


def _read_ahead(items: Iterator[_Item]) -> Iterator[_Item]:
    """Yield items, each next one made in a thread while the last is at work."""
    with ThreadPoolExecutor(1, thread_name_prefix="bitwright-read") as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item


def _chunks(tensor: ir.TensorProtocol) -> Iterator[bytes | memoryview]:
    if not isinstance(tensor, ir.ExternalTensor):
        # Lazy tensors are made here and dropped again before the next one.
        data = _bytes_of(tensor)
        for start in range(0, len(data), CHUNK_BYTES):
            yield data[start : start + CHUNK_BYTES]
        return
    # Read through the file, not through onnx-ir's memory map: mapped pages stay resident.
    remaining = tensor.length or tensor.nbytes
    with Path(external_path(tensor)).open("rb") as source:
        source.seek(tensor.offset or 0)
        while remaining > 0:
            chunk = source.read(min(CHUNK_BYTES, remaining))
            if not chunk:
                raise OSError(errno.EIO, f"the data file {tensor.path!r} is cut off")
            remaining -= len(chunk)
            yield chunk


def _bytes_of(tensor: ir.TensorProtocol) -> memoryview:
    """Return a tensor's bytes as a file has them, without a copy where they lie so."""
    if tensor.dtype.itemsize < 1 or sys.byteorder != "little":
        return memoryview(tensor.tobytes())
    return np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data


def written_size(model: ir.Model) -> int:
    """Return how many bytes `save_model` writes where all tensors go into the model's file."""
    start, rest = _message_parts(model, external=True)
    return len(start) + sum(map(_length, rest))


def write_model(model: ir.Model, file: BinaryIO) -> None:
    """Write the message, big initializers one by one: in a message they cost it twice."""
    start, rest = _message_parts(model, external=False)
    file.write(start)
    for header, tensor in rest:
        file.write(header)
        for chunk in () if tensor is None else _chunks(tensor):
            file.write(chunk)


_Part = tuple[bytes, ir.TensorProtocol | None]
"""Bytes of a message, and the tensor whose data follows them."""


def _length(part: _Part) -> int:
    start, tensor = part
    return len(start) + (0 if tensor is None else tensor.nbytes)


def _message_parts(model: ir.Model, *, external: bool) -> tuple[bytes, list[_Part]]:
    """Return the message up to its first big initializer, and from there one after another.

    Tensors in other files are big ones with `external`, and else stay where they are.
    """
    big: dict[str, ir.TensorProtocol] = {}
    small: list[ir.Value] = []
    leading = 0
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        outside = isinstance(tensor, ir.ExternalTensor)
        if (
            tensor is not None
            and tensor.nbytes >= SMALLEST_TENSOR
            and tensor.dtype != ir.DataType.STRING
            and (external or not outside)
            and not value.is_graph_input()
        ):
            big[name] = tensor
            continue
        leading += not big
        if external and outside and tensor is not None:
            small.append(value_with_tensor(value, inline_copy(tensor)))
        else:
            small.append(value)
    proto = put_back_maps(to_message(model, initializers=small))
    trailing = {tensor.name: tensor for tensor in proto.graph.initializer[leading:]}
    del proto.graph.initializer[leading:]
    rest: list[_Part] = [
        (tensor_header(big[name], name, big[name].nbytes), big[name])
        if name in big
        else (_as_field(trailing[name]), None)
        for name in model.graph.initializers
        if name in big or name in trailing
    ]
    graph = proto.graph.SerializeToString(deterministic=True)
    proto.ClearField("graph")
    size = len(graph) + sum(map(_length, rest))
    start = proto.SerializeToString(deterministic=True) + field_header(MODEL_GRAPH, size) + graph
    return start, rest


def _as_field(tensor: onnx.TensorProto) -> bytes:
    """Return an initializer as it stands in a graph."""
    message: bytes = tensor.SerializeToString(deterministic=True)
    return field_header(GRAPH_INITIALIZER, len(message)) + message
