"""Write small files whole or not at all, and create folders."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from bitwright.errors import OutputError

__all__ = ["Closing", "make_folder", "write_file"]


class Closing:
    """A resource with `close()`, which the end of a `with` block calls."""

    def close(self) -> None:
        """Release the resource."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def write_file(path: Path, content: str | bytes) -> None:
    """Write a temporary file beside the target and rename it.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_file(Path(folder) / "plan.json", "{}")
    ...     [file.name for file in Path(folder).iterdir()]
    ['plan.json']
    """
    data = content.encode() if isinstance(content, str) else content
    temporary: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files for the owner only; this one gets what any new file would.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"cannot write {str(path)!r}: {reason}; choose another path.") from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Create a folder and those above it, if they are not there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(
            f"cannot create the folder {str(path)!r}: {reason}; choose another."
        ) from error
