"""Sketches on disk, sparse: one safetensors file tied to its model, and parts of observations.

Parts survive the process that asked for them, so that it can go on from there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bitwright.errors import DataError
from bitwright.observe import kernels
from bitwright.observe.observer import Observation
from bitwright.observe.sketch import SketchState, TensorSketch
from bitwright.support import Array, PartStore, check_regular_file, read_part, to_bytes, write_file

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
    """
    arrays, notes = to_arrays(sketches)
    content = to_bytes(arrays, {**notes, "fingerprint": fingerprint})
    write_file(Path(path), _in_order(content))


def _in_order(content: bytes) -> bytes:
    """Return a safetensors file with its metadata sorted: the library shuffles them each time."""
    length = int.from_bytes(content[:8], "little")
    header = msgspec.json.decode(content[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = msgspec.json.encode(header)
    # Spaces up to a multiple of eight: readers map the arrays behind it into memory.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def to_arrays(sketches: Mapping[str, TensorSketch]) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the arrays of sketches, and what else there is to note of them."""
    entries: list[_Entry] = []
    arrays: dict[str, Array] = {}
    for index, (name, sketch) in enumerate(sketches.items()):
        state = sketch.state()
        scalars = {field: getattr(state, field) for field in _SCALARS}
        if state.low > state.high:  # nothing was seen, and JSON has no infinity
            scalars |= {"low": None, "high": None}
        entries.append(_Entry(name=name, **scalars))
        for part in _ARRAYS:
            arrays[f"{index}.{part}"] = getattr(state, part)
    told = msgspec.json.encode(entries).decode()
    return arrays, {"format": _FORMAT, "version": _VERSION, "sketches": told}


def from_arrays(arrays: Mapping[str, Any], notes: Mapping[str, str]) -> dict[str, TensorSketch]:
    """Return the sketches that arrays and notes hold; ValueError where they contradict."""
    entries = msgspec.json.decode(notes["sketches"], type=list[_Entry])
    return {
        entry.name: TensorSketch.from_state(_state(arrays, index, entry))
        for index, entry in enumerate(entries)
    }


def load_sketches(
    path: str | os.PathLike[str], *, fingerprint: str | None = None
) -> dict[str, TensorSketch]:
    """Read sketches back; a file of another model, or a cut-off one, is refused."""
    where = f"the sketch file {os.fspath(path)!r}"
    check_regular_file(Path(path), DataError)
    try:
        arrays, notes = read_part(Path(path))
        _check_header(notes, fingerprint, where)
        return from_arrays(arrays, notes)
    except (msgspec.MsgspecError, KeyError, ValueError) as error:
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


def _state(stored: Mapping[str, Any], index: int, entry: _Entry) -> SketchState:
    arrays = {part: stored[f"{index}.{part}"] for part in _ARRAYS}
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
        # In large tensors some values are counted for all, which comes to about as many.
        and (not entry.histogram or 2 * abs(int(counts.sum()) - finite) <= entry.count)
    )
    if not consistent:
        raise ValueError(f"the entry of tensor {entry.name!r} contradicts itself")
    scalars = {field: getattr(entry, field) for field in _SCALARS}
    if entry.low is None:
        scalars |= {"low": np.inf, "high": -np.inf}
    return SketchState(**scalars, **arrays)


class KeptObservations(PartStore):
    """A folder with what was observed of parts of the samples, each as soon as it was merged.

    `identity` says which model, tensors and data they are of: parts of others lie beside them.
    """

    def __init__(self, folder: str | Path, identity: str) -> None:
        job = hashlib.sha256(identity.encode()).hexdigest()
        super().__init__(Path(folder) / f"observations-{job[:16]}", job=job)

    def put(self, number: int, part: Observation) -> None:
        """Keep a part: all of it, or nothing."""
        arrays, notes = to_arrays(part.sketches)
        arrays["samples"] = np.array([part.samples])
        for index, sketch in enumerate(part.sketches.values()):
            if sketch._sum is not None:  # as exact as it is: two float64 for each channel
                arrays[f"{index}.sum"], arrays[f"{index}.rest"] = sketch._sum, sketch._rest
        notes["shapes"] = msgspec.json.encode(part.shapes).decode()
        self.write(str(number), arrays, notes)

    def get(self, number: int) -> Observation:
        """Return a part."""
        arrays, notes = self.read(str(number))
        try:
            sketches = from_arrays(arrays, notes)
            shapes = msgspec.json.decode(notes["shapes"], type=dict[str, tuple[int, ...]])
            samples = int(arrays["samples"][0])
        except (msgspec.MsgspecError, KeyError, ValueError) as error:
            raise self.damaged(str(number)) from error
        for index, sketch in enumerate(sketches.values()):
            if f"{index}.sum" in arrays:
                sketch._sum, sketch._rest = arrays[f"{index}.sum"], arrays[f"{index}.rest"]
        return Observation(sketches=sketches, samples=samples, shapes=shapes)
