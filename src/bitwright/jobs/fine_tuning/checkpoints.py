"""Checkpoints of segments: finished ones survive an interruption."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from bitwright.learning.reports import SegmentReport
from bitwright.support import Array, PartStore


@dataclass(frozen=True, slots=True)
class Learned:
    """What a segment learned: nothing but its report where the segment was left as it was."""

    report: SegmentReport
    constants: dict[str, Array] = field(default_factory=dict)
    scales: dict[str, Array] = field(default_factory=dict)
    activation_scales: dict[str, float] = field(default_factory=dict)
    """Entry of the plan -> its scale."""


class Checkpoints(PartStore):
    """A folder with a file for each finished segment; one without a path vanishes when closed."""

    def put(self, name: str, learned: Learned) -> None:
        """Keep a segment: all of it, or nothing."""
        kinds = (learned.constants, learned.scales, learned.activation_scales)
        tensors = {
            f"{kind} {key}": np.asarray(array)
            for kind, found in zip(_KINDS, kinds, strict=True)
            for key, array in found.items()  # type: ignore[attr-defined]
        }
        self.write(name, tensors, {"report": msgspec.json.encode(learned.report).decode()})

    def get(self, name: str) -> Learned:
        """Return a segment, read from its file."""
        arrays, notes = self.read(name)
        found: dict[str, dict[str, Any]] = {kind: {} for kind in _KINDS}
        try:
            report = msgspec.json.decode(notes["report"], type=SegmentReport)
            for key, array in arrays.items():
                kind, _, tensor = key.partition(" ")
                found[kind][tensor] = float(array) if kind == "activation" else array
        except (msgspec.DecodeError, KeyError) as error:
            raise self.damaged(name) from error
        return Learned(report, *found.values())


_KINDS = ("constant", "scale", "activation")
