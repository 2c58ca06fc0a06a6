"""`quark.onnx.quantization.config.data_type`: number types by their names there.

>>> parse_data_type("UInt8")
UINT8
"""

from __future__ import annotations

from bitwright.numerics.types import QTYPES, QType, qtype

__all__ = ["parse_data_type"]


def parse_data_type(dtype_name: str | None) -> QType | None:
    """Return the number type of this name; None of None."""
    return None if dtype_name is None else qtype(dtype_name)


_NAMES = (
    "Int8 UInt8 Int16 UInt16 Int32 UInt32 Float16 BFloat16 BFP16 MX4 MX6 MX9 MXFP4E2M1 MXFP6E3M2 "
    "MXFP6E2M3 MXFP8E5M2 MXFP8E4M3 MXInt8"
).split()
globals().update({name: QTYPES[name.lower()] for name in _NAMES})
