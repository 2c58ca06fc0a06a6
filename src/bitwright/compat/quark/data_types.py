"""Number types by the names that they have in Quark."""

from __future__ import annotations

from bitwright.numerics.types import QTYPES, QType, qtype

DataType = QType

Int8, UInt8 = QTYPES["int8"], QTYPES["uint8"]
Int16, UInt16 = QTYPES["int16"], QTYPES["uint16"]
Int32, UInt32 = QTYPES["int32"], QTYPES["uint32"]
Float16, BFloat16, BFP16 = QTYPES["float16"], QTYPES["bfloat16"], QTYPES["bfp16"]
MX4, MX6, MX9 = QTYPES["mx4"], QTYPES["mx6"], QTYPES["mx9"]
MXFP4E2M1, MXInt8 = QTYPES["mxfp4e2m1"], QTYPES["mxint8"]
MXFP6E3M2, MXFP6E2M3 = QTYPES["mxfp6e3m2"], QTYPES["mxfp6e2m3"]
MXFP8E5M2, MXFP8E4M3 = QTYPES["mxfp8e5m2"], QTYPES["mxfp8e4m3"]


def parse_data_type(dtype_name: str | None) -> QType | None:
    """Return the number type of this name; None of None."""
    return None if dtype_name is None else qtype(dtype_name)
