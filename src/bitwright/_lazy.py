"""Packages that load their modules when a name is first asked for: their import takes no time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["loader"]


def loader(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package; `homes` has a module's name -> what it gives.

    A name may also be that of a module within its home.

    >>> find = loader("bitwright.compat", {"bitwright.compat.onnxruntime.enums": ("QuantType",)})
    >>> find("QuantType").QInt8.value
    0
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(__import__(home_of[name], fromlist=[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return find
