"""Words of sentences: counts with their nouns, sizes, times, and what an error says."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Sequence

from bitwright.errors import ArgumentError


def counted(count: int, noun: str) -> str:
    """Return how many there are of a thing.

    >>> counted(1, "holdout sample"), counted(8, "holdout sample"), counted(0, "node")
    ('1 holdout sample', '8 holdout samples', '0 nodes')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def printable(text: str, *, as_json: bool = False) -> str:
    r"""Return foreign text on one line, for terminals, logs, JSON and XML.

    Whatever is no letter, digit or sign is escaped, as Python's `repr` does it or as JSON does: no
    name of a tensor colours a terminal, turns a line around or begins another one.

    >>> printable("conv\x1b[31m\nerror: none"), printable("größer \U0001f642")
    ('conv\\x1b[31m\\nerror: none', 'größer 🙂')
    >>> printable("\x9b\u202e", as_json=True)
    '\\u009b\\u202e'
    """
    if text.isprintable():
        return text
    return "".join(
        mark if mark.isprintable() else json.dumps(mark)[1:-1] if as_json else repr(mark)[1:-1]
        for mark in text
    )


def indented(text: str) -> str:
    r"""Return foreign lines that cannot be taken for lines of ours.

    >>> indented("Traceback:\nerror: none")
    '  Traceback:\n  error: none'
    """
    return "\n".join(f"  {printable(line)}" for line in text.splitlines())


def show_bytes(size: int) -> str:
    """Return a size for a reader."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"


_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def read_bytes(size: int | str) -> int:
    """Return the bytes that a size stands for.

    >>> read_bytes("512MB"), read_bytes("1.5 GiB"), read_bytes("4096"), read_bytes(10)
    (512000000, 1610612736, 4096, 10)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?|)b?", str(size).strip().lower())
    if found is None:
        raise ArgumentError(f"{str(size)!r} is no size; write 512MB, 2GB or a number of bytes.")
    return int(float(found.group(1)) * _BYTES[found.group(2)])


def show_milliseconds(time: float, spread: Sequence[float] | None) -> str:
    """Return a time with its spread; one that was not measured has none.

    >>> show_milliseconds(2.61, (2.648, 3.0)), show_milliseconds(3.5, None)
    ('2.61 ms (2.65 to 3)', '3.5 ms, predicted')
    """
    if spread is None:
        return f"{time:.3g} ms, predicted"
    return f"{time:.3g} ms ({spread[0]:.3g} to {spread[1]:.3g})"


def show_percent(share: float) -> str:
    """Return a share as a number of percent with three digits that count.

    >>> show_percent(0.021), show_percent(1.0)
    ('2.10', '100')
    """
    return f"{100 * share:#.3g}".rstrip(".")


def reason_of(error: BaseException, *, last: bool = False) -> str:
    """Return the first line of what an error says, or the last; its type where it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[-1 if last else 0][:300].rstrip(".")


def show_ratio(ratio: float, better: str, worse: str) -> str:
    """Return how many times better or worse something became."""
    return f"{ratio:.2f}x {better}" if ratio >= 1 else f"{1 / ratio:.2f}x {worse}"


# Warnings --------------------------------------------------------------------------------------


def warn_user(sentence: str, kind: type[Warning] = UserWarning) -> None:
    """Warn, with the line outside this package that called it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("bitwright."):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, kind, stacklevel=level)
