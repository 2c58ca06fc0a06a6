"""`quark.onnx` by its whole path: `bitwright.compat.quark.onnx` has the names of the package above.

>>> from bitwright.compat.quark.onnx import ModelQuantizer
>>> from bitwright.compat.quark.onnx.quantization.config import Config, get_default_config
>>> quantizer = ModelQuantizer(Config(global_quant_config=get_default_config("XINT8")))
"""

from __future__ import annotations

from typing import Any

from bitwright.compat import quark

__all__ = list(quark.__all__)


def __getattr__(name: str) -> Any:
    return getattr(quark, name)
