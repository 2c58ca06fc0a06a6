"""`get_library_path`: scripts register a library of operators that models here do without."""

from __future__ import annotations

from functools import wraps
from typing import Any

import onnxruntime

from bitwright.errors import RecipeError

__all__ = ["_COP_DOMAIN", "_COP_VERSION", "get_library_path"]

# Scripts import these in spite of their names.
_COP_DOMAIN = "com.amd.quark"
_COP_VERSION = 1

_DEVICES = ("CPU", "CUDA", "ROCM")
_NO_LIBRARY = "bitwright-needs-no-custom-operators"


def get_library_path(device: str = "CPU") -> str:
    """Return what `SessionOptions.register_custom_ops_library` takes, for scripts that call it.

    There is no library: extended operators are written with their bodies, so every ONNX Runtime
    runs them. Where this module is imported, registering this path does nothing.

    >>> options = onnxruntime.SessionOptions()
    >>> options.register_custom_ops_library(get_library_path())
    """
    if str(device).upper() not in _DEVICES:
        raise RecipeError(f"device is one of {', '.join(_DEVICES)}, not {device!r}.")
    return _NO_LIBRARY


def _tolerant(register: Any) -> Any:
    @wraps(register)
    def tolerant(options: Any, path: str) -> Any:
        return None if path == _NO_LIBRARY else register(options, path)

    return tolerant


# While this module is imported, since `options.register_custom_ops_library` is looked up before
# the call of `get_library_path` that is its argument.
onnxruntime.SessionOptions.register_custom_ops_library = _tolerant(
    onnxruntime.SessionOptions.register_custom_ops_library
)
