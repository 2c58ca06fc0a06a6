"""Warnings that point at the user's line, however deep inside the package they arise."""

from __future__ import annotations

import sys
import warnings


def warn_user(sentence: str, kind: type[Warning] = UserWarning) -> None:
    """Warn, with the line outside this package that called it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("bitwright."):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, kind, stacklevel=level)
