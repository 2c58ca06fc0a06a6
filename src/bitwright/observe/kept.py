"""Parts of an observation that survive the process that asked for them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import numpy as np

from bitwright.observe.observer import Observation
from bitwright.observe.store import from_arrays, to_arrays
from bitwright.support.store import PartStore

__all__ = ["KeptObservations"]


class KeptObservations(PartStore):
    """A folder with what was observed of parts of the samples, each as soon as it was merged.

    `identity` says which model, tensors and data they are of: parts of others lie beside them.

    >>> import tempfile
    >>> from bitwright.observe import TensorSketch
    >>> kept = KeptObservations(tempfile.mkdtemp(), "model A, data B")
    >>> kept.put(3, Observation(sketches={"x": TensorSketch.of([1.0, 2.0])}, samples=8))
    >>> 3 in kept, 4 in kept, kept.get(3).samples
    (True, False, 8)
    """

    remedy = "is damaged; delete its folder to observe again."

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
