"""Temporary files beside a target, renamed when they are whole; stale ones are removed."""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bitwright.support.scratch import try_lock

__all__ = ["temporary_beside"]


@contextmanager
def temporary_beside(target: Path) -> Iterator[Path]:
    """Give an empty file beside the target, and see to it that nothing is left there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with temporary_beside(Path(folder) / "model.onnx") as path:
    ...         _ = path.replace(Path(folder) / "model.onnx")
    ...     [file.name for file in Path(folder).iterdir()]
    ['model.onnx']
    """
    _remove_abandoned(target)
    path = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    file = path.open("xb")
    try:
        if sys.platform == "win32":  # an open file cannot be renamed there
            file.close()
        else:
            with suppress(OSError):  # a disk without locks: nobody takes it for abandoned
                try_lock(file)
        yield path
    finally:
        file.close()
        path.unlink(missing_ok=True)


def _remove_abandoned(target: Path) -> None:
    """Remove what killed jobs left while they wrote this model, or data beside it.

    The lock of a living one tells; on Windows, that its file is open.
    """
    ours = re.compile(rf"\.{re.escape(target.name)}(\..+)?\.[0-9a-f]{{12}}\.tmp")
    for path in [path for path in target.parent.glob(".*.tmp") if ours.fullmatch(path.name)]:
        with suppress(OSError):
            with path.open("r+b") as file:
                abandoned = sys.platform == "win32" or try_lock(file)
            if abandoned:
                path.unlink()
