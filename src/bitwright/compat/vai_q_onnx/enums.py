"""The types of `vai_q_onnx` and of today's Quark, with the same names and values."""

from __future__ import annotations

from enum import Enum
from typing import Any

from bitwright.compat.onnxruntime.enums import CalibrationMethod, QuantFormat, QuantType
from bitwright.compat.onnxruntime.readers import CalibrationDataReader
from bitwright.errors import RecipeError, did_you_mean
from bitwright.numerics.types import QType, qtype

__all__ = [
    "CalibrationDataReader",
    "CalibrationMethod",
    "ExtendedCalibrationMethod",
    "ExtendedQuantFormat",
    "ExtendedQuantType",
    "Int16Method",
    "LayerWiseMethod",
    "PowerOfTwoMethod",
    "QuantFormat",
    "QuantType",
    "VitisQuantFormat",
    "VitisQuantType",
    "read_format",
    "read_method",
    "read_type",
]


class PowerOfTwoMethod(Enum):
    """How the position of a power-of-two scale is chosen."""

    NonOverflow = 0
    MinMSE = 1


class Int16Method(Enum):
    """How a scale M/2^N is chosen."""

    MinMax = 0


class LayerWiseMethod(Enum):
    """How each layer's range is chosen among candidates."""

    LayerWisePercentile = 0


class ExtendedCalibrationMethod(Enum):
    """How a range with a float scale is searched."""

    MinMSE = 0


class VitisQuantFormat(Enum):
    """Formats for every number type, in the vendor's operator domain."""

    QDQ = 2
    FixNeuron = 3
    BFPFixNeuron = 4
    MXFixNeuron = 5


class ExtendedQuantFormat(Enum):
    """The same formats by their newer name."""

    QOperator = 0
    QDQ = 1


class VitisQuantType(Enum):
    """Number types of the vendor's formats."""

    QInt8 = 1
    QUInt8 = 2
    QInt16 = 3
    QUInt16 = 4
    QInt32 = 5
    QUInt32 = 6
    QFloat16 = 7
    QBFloat16 = 8
    QBFP = 9
    QMX = 10

    @property
    def qtype(self) -> QType:
        """The number type of this name."""
        return read_type(self, "quantization type")

    @property
    def tensor_type(self) -> int:
        """The `onnx.TensorProto` element type; 0 for blocks, which have none."""
        return 0 if self.qtype.shares_exponent else self.qtype.onnx_type


ExtendedQuantType = VitisQuantType

# Member name -> number type. Names that ONNX Runtime and the vendor share mean the same type.
_TYPE_NAMES = {
    **{member.name: member.qtype.name for member in QuantType},
    "QInt32": "int32",
    "QUInt32": "uint32",
    "QFloat16": "float16",
    "QBFloat16": "bfloat16",
    "QBFP": "bfp16",
    "QMX": "mxint8",
}

# Name of the enumeration -> member -> the recipe's format. Packages bring enumerations of their
# own, so it is their names that count.
_FORMATS: dict[str, dict[str, str]] = {
    "QuantFormat": {member.name: member.name.lower() for member in QuantFormat},
    "ExtendedQuantFormat": {"QOperator": "qoperator", "QDQ": "extended"},
    "VitisQuantFormat": {
        "QDQ": "extended",
        "FixNeuron": "fix-neuron",
        "BFPFixNeuron": "extended",
        "MXFixNeuron": "extended",
    },
}

_METHODS: dict[str, type[Enum]] = {
    kind.__name__: kind
    for kind in (
        CalibrationMethod,
        PowerOfTwoMethod,
        Int16Method,
        LayerWiseMethod,
        ExtendedCalibrationMethod,
    )
}


def read_type(value: Any, what: str) -> QType:
    """Return the number type of a member of any package's enumeration, or of its name."""
    if isinstance(value, QType):
        return value
    name = value.name if isinstance(value, Enum) else value
    if not isinstance(name, str) or name not in _TYPE_NAMES:
        raise RecipeError(f"unknown {what} {name!r}.{did_you_mean(str(name), _TYPE_NAMES)}")
    return qtype(_TYPE_NAMES[name])


def read_format(value: Any) -> tuple[str, QType | None]:
    """Return the recipe's format, and the number type that the format stands for, if any."""
    kind = type(value).__name__ if isinstance(value, Enum) else "QuantFormat"
    name = value.name if isinstance(value, Enum) else value
    known = _FORMATS.get(kind, {})
    if not isinstance(name, str) or name not in known:
        given = f"{kind}.{name}" if isinstance(value, Enum) else repr(value)
        names = [f"{kind}.{member}" for kind, members in _FORMATS.items() for member in members]
        raise RecipeError(f"unknown quantization format {given}.{did_you_mean(str(given), names)}")
    blocks = {"BFPFixNeuron": "QBFP", "MXFixNeuron": "QMX"}.get(name)
    return known[name], None if blocks is None else read_type(blocks, "quantization type")


def read_method(value: Any) -> Enum:
    """Return the calibration method as a member of one of the enumerations of this module."""
    if isinstance(value, Enum):
        kinds = [_METHODS[type(value).__name__]] if type(value).__name__ in _METHODS else []
        name, given = value.name, f"{type(value).__name__}.{value.name}"
    else:
        kinds, name, given = list(_METHODS.values()), str(value), repr(value)
    for kind in kinds:
        if name in kind.__members__:
            return kind[name]
    names = [f"{kind}.{member}" for kind in _METHODS for member in _METHODS[kind].__members__]
    raise RecipeError(f"unknown calibration method {given}.{did_you_mean(given, names)}")
