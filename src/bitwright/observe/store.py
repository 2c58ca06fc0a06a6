"""Sketches on disk: one safetensors file, sparse, tied to the model it was observed on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from bitwright.errors import DataError
from bitwright.observe import kernels
from bitwright.observe.sketch import SketchState, TensorSketch
from bitwright.support.files import check_regular_file, write_file

__all__ = ["load_sketches", "save_sketches"]

_FORMAT = "bitwright-sketches"
_VERSION = "3"


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """What the header keeps of one sketch; its arrays are stored under its index."""

    name: str
    histogram: bool
    channel_axis: int | None
    mean_axis: int | None
    low: float | None
    high: float | None
    count: int
    nan: int
    inf: int


_SCALARS = tuple(field for field in _Entry.__struct_fields__ if field != "name")
_ARRAYS = ("bins", "counts", "batches", "channels", "votes", "sums")


def save_sketches(
    path: str | os.PathLike[str], sketches: Mapping[str, TensorSketch], *, fingerprint: str
) -> None:
    """Write sketches to a file, complete or not at all.

    `fingerprint` says which model and data they belong to; `load_sketches` compares it.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "run.safetensors"
    >>> save_sketches(file, {"x": TensorSketch.of([0.0, 2.0])}, fingerprint="model A")
    >>> load_sketches(file, fingerprint="model A")["x"].high
    2.0
    """
    from safetensors.numpy import save

    entries: list[_Entry] = []
    arrays: dict[str, npt.NDArray[Any]] = {}
    for index, (name, sketch) in enumerate(sketches.items()):
        state = sketch.state()
        scalars = {field: getattr(state, field) for field in _SCALARS}
        if state.low > state.high:  # nothing was seen, and JSON has no infinity
            scalars |= {"low": None, "high": None}
        entries.append(_Entry(name=name, **scalars))
        for part in _ARRAYS:
            arrays[f"{index}.{part}"] = np.ascontiguousarray(getattr(state, part))
    header = {
        "format": _FORMAT,
        "version": _VERSION,
        "fingerprint": fingerprint,
        "sketches": msgspec.json.encode(entries).decode(),
    }
    write_file(Path(path), _in_order(save(arrays, metadata=header)))


def _in_order(content: bytes) -> bytes:
    """Return a safetensors file with its metadata sorted: the library shuffles them each time."""
    length = int.from_bytes(content[:8], "little")
    header = msgspec.json.decode(content[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = msgspec.json.encode(header)
    # Spaces up to a multiple of eight: readers map the arrays behind it into memory.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def load_sketches(
    path: str | os.PathLike[str], *, fingerprint: str | None = None
) -> dict[str, TensorSketch]:
    """Read sketches back; a file of another model, or a cut-off one, is refused."""
    from safetensors import SafetensorError, safe_open

    where = f"the sketch file {os.fspath(path)!r}"
    check_regular_file(Path(path), DataError)
    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            header = file.metadata() or {}
            _check_header(header, fingerprint, where)
            entries = msgspec.json.decode(header["sketches"], type=list[_Entry])
            return {
                entry.name: TensorSketch.from_state(_state(file, index, entry))
                for index, entry in enumerate(entries)
            }
    except OSError as error:
        raise DataError(f"cannot read {where}: {error.strerror or error}.") from error
    except (SafetensorError, msgspec.MsgspecError, KeyError, ValueError) as error:
        raise DataError(
            f"{where} is damaged or cut off ({error}); delete it and observe again."
        ) from error


def _check_header(header: Mapping[str, str], fingerprint: str | None, where: str) -> None:
    if header.get("format") != _FORMAT:
        raise DataError(f"{where} holds something else than sketches.")
    if header.get("version") != _VERSION:
        raise DataError(
            f"{where} has version {header.get('version')}, this program reads {_VERSION}; "
            "observe again."
        )
    if fingerprint is not None and header.get("fingerprint") != fingerprint:
        raise DataError(
            f"{where} was made from another model or other data; delete it and observe again."
        )


def _state(file: Any, index: int, entry: _Entry) -> SketchState:
    arrays = {part: file.get_tensor(f"{index}.{part}") for part in _ARRAYS}
    bins, counts, batches, channels, votes, sums = arrays.values()
    finite = entry.count - entry.nan - entry.inf
    consistent = (
        bins.dtype == np.uint16
        and counts.dtype == np.uint64
        and batches.dtype == channels.dtype == np.float32
        and bins.shape == counts.shape == (bins.size,)
        and batches.shape[1:] == (2,)
        and channels.shape[:1] == (2,)
        and votes.dtype == np.int64
        and votes.shape[1:] == (5,)
        and sums.dtype == np.float64
        and sums.ndim == 1
        and (sums.size == 0 or entry.mean_axis is not None)
        and bool(np.all((votes[:, 0] < votes[:, 1]) & (votes[:, 4] >= 0)))
        and (entry.low is None) == (entry.high is None) == (finite == 0)
        and np.unique(bins).size == bins.size
        and bool(np.all((bins & 0x7FFF) <= kernels.TOP_BIN))
        and (not entry.histogram or int(counts.sum()) == finite)
    )
    if not consistent:
        raise ValueError(f"the entry of tensor {entry.name!r} contradicts itself")
    scalars = {field: getattr(entry, field) for field in _SCALARS}
    if entry.low is None:
        scalars |= {"low": np.inf, "high": -np.inf}
    return SketchState(**scalars, **arrays)
