"""Checkpoints of segments: finished ones survive an interruption."""

from __future__ import annotations

import msgspec
import numpy as np

from bitwright.jobs.fine_tuning.segment import Learned, SegmentReport
from bitwright.support.store import PartStore

__all__ = ["Checkpoints"]


class Checkpoints(PartStore):
    """A folder with a file for each finished segment; one without a path vanishes when closed.

    >>> with Checkpoints() as store:
    ...     store.put("0 conv", Learned(SegmentReport("conv", 1, kept=True)))
    ...     "0 conv" in store, store.get("0 conv").report.first
    (True, 'conv')
    """

    remedy = "is no finished segment; delete it to learn that segment again."

    @staticmethod
    def segment_name(index: int, first: str) -> str:
        """Return what a segment is kept under: its place, and the name of its first node."""
        return f"{index} {first}"

    def put(self, name: str, learned: Learned) -> None:
        """Keep a segment: all of it, or nothing."""
        tensors = {f"constant {key}": array for key, array in learned.constants.items()}
        tensors |= {f"scale {key}": array for key, array in learned.scales.items()}
        tensors |= {
            f"activation {key}": np.asarray(scale)
            for key, scale in learned.activation_scales.items()
        }
        self.write(name, tensors, {"report": msgspec.json.encode(learned.report).decode()})

    def get(self, name: str) -> Learned:
        """Return a segment, read from its file."""
        arrays, notes = self.read(name)
        found: dict[str, dict[str, object]] = {"constant": {}, "scale": {}, "activation": {}}
        try:
            report = msgspec.json.decode(notes["report"], type=SegmentReport)
            for key, array in arrays.items():
                kind, _, tensor = key.partition(" ")
                found[kind][tensor] = array
        except (msgspec.DecodeError, KeyError) as error:
            raise self.damaged(name) from error
        activations = {key: float(scale) for key, scale in found["activation"].items()}  # type: ignore[arg-type]
        return Learned(report, found["constant"], found["scale"], activations)  # type: ignore[arg-type]
