"""A table of ranges: pairs of a tensor's name and its largest magnitude."""

from __future__ import annotations

from typing import Any

from bitwright.compat.onnxruntime.CalTableFlatBuffers.buffers import TableView
from bitwright.compat.onnxruntime.CalTableFlatBuffers.KeyValue import KeyValue

__all__ = [
    "AddDict",
    "End",
    "Start",
    "StartDictVector",
    "TrtTable",
    "TrtTableAddDict",
    "TrtTableEnd",
    "TrtTableStart",
    "TrtTableStartDictVector",
]


class TrtTable(TableView):
    """A table of ranges inside a buffer."""

    def Dict(self, j: int) -> KeyValue | None:  # noqa: N802
        """Return the pair of this number, or None where there are none."""
        place = self._field(0)
        if not place:
            return None
        pair = KeyValue()
        pair.Init(self._tab.Bytes, self._tab.Indirect(self._tab.Vector(place) + 4 * j))
        return pair

    def DictLength(self) -> int:  # noqa: N802
        """Return how many pairs there are."""
        place = self._field(0)
        return int(self._tab.VectorLen(place)) if place else 0

    def DictIsNone(self) -> bool:  # noqa: N802
        """Return whether there are no pairs."""
        return not self._field(0)

    @classmethod
    def GetRootAsTrtTable(cls, buf: bytes, offset: int = 0) -> TrtTable:  # noqa: N802
        """Return the table that a buffer begins with; the old name of `GetRootAs`."""
        return cls.GetRootAs(buf, offset)


def Start(builder: Any) -> None:  # noqa: N802
    """Begin a table."""
    builder.StartObject(1)


def AddDict(builder: Any, dict: int) -> None:  # noqa: N802
    """Add the vector of pairs, by its offset in the builder."""
    builder.PrependUOffsetTRelativeSlot(0, dict, 0)


def StartDictVector(builder: Any, numElems: int) -> int:  # noqa: N802, N803
    """Begin the vector of pairs."""
    return int(builder.StartVector(4, numElems, 4))


def End(builder: Any) -> int:  # noqa: N802
    """End a table and return its offset."""
    return int(builder.EndObject())


TrtTableStart, TrtTableAddDict, TrtTableEnd = Start, AddDict, End
TrtTableStartDictVector = StartDictVector
