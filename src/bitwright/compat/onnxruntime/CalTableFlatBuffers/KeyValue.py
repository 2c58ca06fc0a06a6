"""A pair of strings in a table of ranges: the name of a tensor and its largest magnitude."""

from __future__ import annotations

from typing import Any

from bitwright.compat.onnxruntime.CalTableFlatBuffers.buffers import TableView

__all__ = [
    "AddKey",
    "AddValue",
    "End",
    "KeyValue",
    "KeyValueAddKey",
    "KeyValueAddValue",
    "KeyValueEnd",
    "KeyValueStart",
    "Start",
]


class KeyValue(TableView):
    """A pair of strings inside a buffer."""

    def Key(self) -> bytes | None:  # noqa: N802
        """Return the first string, or None."""
        return self._string(0)

    def Value(self) -> bytes | None:  # noqa: N802
        """Return the second string, or None."""
        return self._string(1)

    def _string(self, slot: int) -> bytes | None:
        place = self._field(slot)
        return bytes(self._tab.String(place + self._tab.Pos)) if place else None

    @classmethod
    def GetRootAsKeyValue(cls, buf: bytes, offset: int = 0) -> KeyValue:  # noqa: N802
        """Return the pair that a buffer begins with; the old name of `GetRootAs`."""
        return cls.GetRootAs(buf, offset)


def Start(builder: Any) -> None:  # noqa: N802
    """Begin a pair."""
    builder.StartObject(2)


def AddKey(builder: Any, key: int) -> None:  # noqa: N802
    """Add the first string, by its offset in the builder."""
    builder.PrependUOffsetTRelativeSlot(0, key, 0)


def AddValue(builder: Any, value: int) -> None:  # noqa: N802
    """Add the second string, by its offset in the builder."""
    builder.PrependUOffsetTRelativeSlot(1, value, 0)


def End(builder: Any) -> int:  # noqa: N802
    """End a pair and return its offset."""
    return int(builder.EndObject())


KeyValueStart, KeyValueAddKey, KeyValueAddValue, KeyValueEnd = Start, AddKey, AddValue, End
