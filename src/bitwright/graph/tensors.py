"""The tensors of a model: initializers and attributes, their sizes and files."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from bitwright.graph.subgraphs import iter_from
from bitwright.support.array_types import Array

MAX_HELD_BYTES = 1 << 30
"""Bytes of a float model above which it is not open beside the one that is made of it, and weights
of that are made when they are written, one after the other."""

_ARRAY_TYPES = "BOOL DOUBLE FLOAT FLOAT16 INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64"
ARRAY_TYPES = frozenset(ir.DataType[name] for name in _ARRAY_TYPES.split())
"""Types of tensors that the runtime takes and gives as arrays."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorSlot:
    """A place that holds a tensor: an initializer, or a node's attribute, as a Constant's value."""

    holder: ir.Value | ir.Node
    attribute: str = ""

    @property
    def tensor(self) -> ir.TensorProtocol:
        """The tensor that is held here."""
        if isinstance(self.holder, ir.Node):
            return tensor_in(self.holder.attributes[self.attribute])
        assert self.holder.const_value is not None
        return self.holder.const_value

    @property
    def name(self) -> str:
        """The name a user knows this tensor by."""
        named = self.holder
        if isinstance(named, ir.Node) and named.outputs and named.outputs[0].name:
            named = named.outputs[0]
        return named.name or ""

    def put(self, tensor: ir.TensorProtocol) -> None:
        """Hold another tensor here, under the same name."""
        if isinstance(self.holder, ir.Node):
            self.holder.attributes[self.attribute] = ir.AttrTensor(self.attribute, tensor)
        else:
            self.holder.const_value = tensor


def tensor_in(attribute: ir.Attr) -> ir.TensorProtocol:
    """Return what an attribute of type TENSOR holds.

    onnx-ir's own way also looks whether that has all methods of a tensor, which takes longer than
    to load it.
    """
    assert attribute.type == ir.AttributeType.TENSOR
    tensor: ir.TensorProtocol = attribute.value
    return tensor


def tensor_slots(model: ir.Model) -> Iterator[TensorSlot]:
    """Yield each place that holds a tensor: all graphs and functions, in a fixed order."""
    for root in (model.graph, *(function.graph for function in model.functions.values())):
        for _, graph in list(iter_from("", root)):
            for value in graph.initializers.values():
                if value.const_value is not None:
                    yield TensorSlot(value)
            for node in graph:
                for name, attribute in node.attributes.items():
                    if not attribute.is_ref() and attribute.type == ir.AttributeType.TENSOR:
                        yield TensorSlot(node, name)


def inline_copy(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a tensor that holds its own bytes; one that lives in a file is read and closed.

    Closing matters: onnx-ir keeps the whole data file mapped for every tensor it ever read.
    """
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor
    was_open = tensor.raw is not None
    data = np.array(tensor.numpy())
    if not was_open:
        release_file(tensor)
    return ir.Tensor(data, dtype=tensor.dtype, shape=shape_of(tensor), name=tensor.name)


def release_file(tensor: ir.TensorProtocol | None) -> None:
    """Let go of the file that a tensor's numbers are read from; it is mapped again when needed.

    Arrays of these numbers that others still hold keep the old mapping until they go.
    """
    if isinstance(tensor, ir.ExternalTensor):
        try:
            tensor.release()
        except BufferError:  # it is held
            tensor.raw = None


def row_reader(tensor: ir.TensorProtocol) -> Callable[[int, int], Array]:
    """Return what reads rows of a matrix, from one to before another; from its file if it has one.

    Nothing stays mapped, and threads may read at once.
    """
    if not isinstance(tensor, ir.ExternalTensor):
        array = tensor.numpy()
        return lambda start, stop: np.asarray(array[start:stop])
    columns, dtype = int(tensor.shape.numpy()[-1]), np.dtype(tensor.dtype.numpy())
    path, first = external_path(tensor), tensor.offset or 0

    def read(start: int, stop: int) -> Array:
        rows = np.empty((stop - start, columns), dtype)
        with Path(path).open("rb", buffering=0) as file:
            file.seek(first + start * columns * dtype.itemsize)
            # Types that numpy does not know have no buffer of their own.
            data = rows.reshape(-1).view(np.uint8).data
            done = 0
            while done < len(data):
                count = file.readinto(data[done:])
                if not count:
                    raise OSError(errno.EIO, f"the data file {tensor.path!r} is cut off")
                done += count
        return rows

    return read


def shape_of(tensor: ir.TensorProtocol) -> ir.Shape:
    """Return a tensor's shape as a fresh object (a tensor's own is frozen)."""
    return ir.Shape(tensor.shape.numpy())


def external_like(
    tensor: ir.TensorProtocol, location: str, offset: int | None, length: int | None, **changes: Any
) -> ir.ExternalTensor:
    """Return a tensor like another one, with its bytes at a place in a file."""
    about: dict[str, Any] = {
        "shape": shape_of(tensor),
        "name": tensor.name or "",
        "doc_string": tensor.doc_string,
        "metadata_props": dict(tensor.metadata_props),
    }
    return ir.ExternalTensor(location, offset, length, tensor.dtype, **(about | changes))


def reshaped(tensor: ir.TensorProtocol, shape: Sequence[int], name: str) -> ir.TensorProtocol:
    """Return the same numbers in another shape, under another name; nothing is read for it."""
    if isinstance(tensor, ir.ExternalTensor):
        return same_bytes(tensor, shape=ir.Shape(shape), name=name)
    return lazy_tensor(
        lambda: ir.Tensor(tensor.numpy().reshape(shape), tensor.dtype, name=name),
        tensor.dtype,
        shape,
        name,
    )


def lazy_tensor(
    make: Callable[[], ir.TensorProtocol],
    dtype: ir.DataType,
    shape: Iterable[Any],
    name: str | None = None,
) -> ir.LazyTensor:
    """Return a tensor that is made each time it is asked for, and not kept."""
    return ir.LazyTensor(make, dtype, ir.Shape(shape), name=name)


def same_bytes(tensor: ir.ExternalTensor, **changes: Any) -> ir.ExternalTensor:
    """Return another tensor of the same bytes of a file."""
    location, offset, length = os.fspath(tensor.location), tensor.offset, tensor.length
    return external_like(tensor, location, offset, length, base_dir=tensor.base_dir, **changes)


def external_path(tensor: ir.ExternalTensor) -> str:
    """Return the file a tensor lives in, as an absolute path."""
    return os.path.abspath(tensor.path)  # noqa: PTH100 (resolve() would follow symbolic links)


def serialized_size(model: ir.Model) -> int:
    """Return about how many bytes the model takes when it is written, with all of its tensors.

    Tensors are counted exactly; a node counts as a flat 200 bytes.
    """
    nodes = sum(1 for _ in model.graph.all_nodes())
    return 200 * nodes + sum(slot.tensor.nbytes for slot in tensor_slots(model))
