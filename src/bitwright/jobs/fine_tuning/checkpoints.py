"""Checkpoints of segments: finished ones survive an interruption."""

from __future__ import annotations

import msgspec
import numpy as np

from bitwright.errors import DataError
from bitwright.jobs.fine_tuning.segment import Learned, SegmentReport
from bitwright.rounding.store import JobFolder
from bitwright.support.files import write_file

__all__ = ["Checkpoints"]


class Checkpoints(JobFolder):
    """A folder with a file for each finished segment; one without a path vanishes when closed.

    >>> with Checkpoints() as store:
    ...     store.put("0 conv", Learned(SegmentReport("conv", 1, kept=True)))
    ...     "0 conv" in store, store.get("0 conv").report.first
    (True, 'conv')
    """

    @staticmethod
    def segment_name(index: int, first: str) -> str:
        """Return what a segment is kept under: its place, and the name of its first node."""
        return f"{index} {first}"

    def put(self, name: str, learned: Learned) -> None:
        """Keep a segment: all of it, or nothing."""
        from safetensors.numpy import save

        tensors = {f"constant {key}": array for key, array in learned.constants.items()}
        tensors |= {f"scale {key}": array for key, array in learned.scales.items()}
        tensors |= {
            f"activation {key}": np.asarray(scale)
            for key, scale in learned.activation_scales.items()
        }
        report = msgspec.json.encode(learned.report).decode()
        write_file(self.path(name), save(tensors, metadata={"report": report}))

    def get(self, name: str) -> Learned:
        """Return a segment, read from its file."""
        from safetensors import SafetensorError, safe_open

        path = self.path(name)
        found: dict[str, dict[str, object]] = {"constant": {}, "scale": {}, "activation": {}}
        try:
            with safe_open(path, framework="numpy") as file:
                report = msgspec.json.decode(file.metadata()["report"], type=SegmentReport)
                for key in file.keys():  # noqa: SIM118
                    kind, _, tensor = key.partition(" ")
                    found[kind][tensor] = file.get_tensor(key)
        except (SafetensorError, msgspec.DecodeError, KeyError, TypeError) as error:
            raise DataError(
                f"{str(path)!r} is no finished segment; delete it to learn that segment again."
            ) from error
        activations = {key: float(scale) for key, scale in found["activation"].items()}  # type: ignore[arg-type]
        return Learned(report, found["constant"], found["scale"], activations)  # type: ignore[arg-type]
