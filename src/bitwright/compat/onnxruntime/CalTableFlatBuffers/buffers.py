"""The package that reads and writes tables, and what both kinds of table share."""

from __future__ import annotations

from typing import Any, Self

from bitwright.errors import MissingPackageError

__all__ = ["TableView", "load_flatbuffers"]


def load_flatbuffers() -> Any:
    """Return the package flatbuffers, or raise an error that says how to get it."""
    try:
        import flatbuffers
    except ImportError as error:
        raise MissingPackageError(
            "a TensorRT table needs flatbuffers; run: pip install flatbuffers."
        ) from error
    return flatbuffers


class TableView:
    """A table inside a buffer."""

    _tab: Any

    @classmethod
    def GetRootAs(cls, buf: bytes, offset: int = 0) -> Self:  # noqa: N802
        """Return the table that a buffer begins with."""
        flatbuffers = load_flatbuffers()
        view = cls()
        start = flatbuffers.encode.Get(flatbuffers.packer.uoffset, buf, offset)
        view.Init(buf, start + offset)
        return view

    def Init(self, buf: bytes, pos: int) -> None:  # noqa: N802
        """Look at the table at a position of a buffer."""
        self._tab = load_flatbuffers().table.Table(buf, pos)

    def _field(self, slot: int) -> int:
        """Return where a field lies, from the table's start, or 0."""
        return int(self._tab.Offset(4 + 2 * slot))
