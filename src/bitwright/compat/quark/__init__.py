"""What `quark.onnx` offers, by the same names: change the import line and go on.

>>> from bitwright.compat.quark import ModelQuantizer, QConfig
>>> quantizer = ModelQuantizer(QConfig.get_default_config("XINT8"))
"""

from __future__ import annotations

from typing import Any

import lazy_loader

from bitwright.errors import RecipeError

# Names of steps that do not exist here, and why: importing one says so.
_NO_STEP = {
    "GPTQConfig": "weight-only quantization has recipes of its own",
    "QuarotConfig": "there is no rotation of weights yet",
    "AutoMixprecisionConfig": (
        "bitwright.find_sensitivity says which nodes to keep in 16 bits or float"
    ),
}

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in _NO_STEP:
        raise RecipeError(f"{name} is not supported: {_NO_STEP[name]}.")
    return _load(name)
