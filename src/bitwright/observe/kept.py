"""Parts of an observation that survive the process that asked for them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bitwright.errors import DataError, OutputError
from bitwright.observe.observer import Observation
from bitwright.observe.store import load_sketches, save_sketches
from bitwright.support.files import write_file

__all__ = ["KeptObservations"]


class KeptObservations:
    """A folder with what was observed of parts of the samples, each as soon as it was merged.

    `identity` says which model, tensors and data they are of: parts of others lie beside them.

    >>> import tempfile
    >>> from bitwright.observe import TensorSketch
    >>> kept = KeptObservations(tempfile.mkdtemp(), "model A, data B")
    >>> kept.put(3, Observation(sketches={"x": TensorSketch.of([1.0, 2.0])}, samples=8))
    >>> 3 in kept, 4 in kept, kept.get(3).samples
    (True, False, 8)
    """

    def __init__(self, folder: str | Path, identity: str) -> None:
        self._identity = hashlib.sha256(identity.encode()).hexdigest()
        self._folder = Path(folder) / f"observed-{self._identity[:16]}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"cannot keep what is finished in {str(folder)!r}: {error.strerror}; name a folder "
                "that can be written to."
            ) from error

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self._sketches(number).exists()

    def put(self, number: int, part: Observation) -> None:
        """Keep a part: all of it, or nothing."""
        from safetensors.numpy import save

        sums: dict[str, Any] = {"samples": np.array([part.samples])}
        for index, sketch in enumerate(part.sketches.values()):
            if sketch._sum is not None:  # as exact as it is: two float64 for each channel
                sums[f"{index}.sum"] = np.ascontiguousarray(sketch._sum)
                sums[f"{index}.rest"] = np.ascontiguousarray(sketch._rest)
        shapes = msgspec.json.encode(part.shapes).decode()
        write_file(self._beside(number), save(sums, metadata={"shapes": shapes}))
        # This file comes last: where it is, both are.
        save_sketches(self._sketches(number), part.sketches, fingerprint=self._identity)

    def get(self, number: int) -> Observation:
        """Return a part."""
        from safetensors import SafetensorError, safe_open

        sketches = load_sketches(self._sketches(number), fingerprint=self._identity)
        try:
            with safe_open(self._beside(number), framework="numpy") as file:
                shapes = msgspec.json.decode(
                    file.metadata()["shapes"], type=dict[str, tuple[int, ...]]
                )
                samples = int(file.get_tensor("samples")[0])
                names = set(file.keys())
                for index, sketch in enumerate(sketches.values()):
                    if f"{index}.sum" in names:
                        sketch._sum = file.get_tensor(f"{index}.sum")
                        sketch._rest = file.get_tensor(f"{index}.rest")
        except (OSError, SafetensorError, msgspec.DecodeError, KeyError, TypeError) as error:
            raise DataError(
                f"{str(self._beside(number))!r} is damaged; delete its folder to observe again."
            ) from error
        return Observation(sketches=sketches, samples=samples, shapes=shapes)

    def _sketches(self, number: int) -> Path:
        return self._folder / f"part-{number}.safetensors"

    def _beside(self, number: int) -> Path:
        return self._folder / f"part-{number}-beside.safetensors"
