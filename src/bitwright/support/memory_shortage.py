"""Tell that memory ran out, which reaches us as errors of many kinds."""

from __future__ import annotations

import errno

from bitwright.errors import OutOfMemoryError

# What the loader of libraries, the runtime and threads say where memory is what they lack.
_SIGNS = (
    "cannot allocate memory",
    "failed to map segment",
    "bad_alloc",
    "bad allocation",
    "failed to allocate memory",
    "can't start new thread",
)


def find_memory_shortage(error: BaseException) -> OutOfMemoryError | None:
    """Return the error to tell the user where memory ran out; None where it did not."""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, OutOfMemoryError):
            return cause
        if _is_shortage(cause):
            lines = str(cause).strip().splitlines()
            detail = f" ({lines[0][:200].rstrip('.')})" if lines else ""
            return OutOfMemoryError(
                f"there is not enough memory{detail}; free some, or use a machine with more."
            )
        cause = cause.__cause__ or cause.__context__
    return None


def _is_shortage(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return any(sign in str(error).lower() for sign in _SIGNS)
