"""The enumerations of `onnxruntime.quantization`, with the same names and values."""

from __future__ import annotations

from enum import Enum
from typing import Any, Self, TypeVar

from bitwright.compat.onnxruntime.errors import InvalidSettingError
from bitwright.errors import did_you_mean
from bitwright.numerics.types import FLOAT8E4M3FN, INT4, INT8, INT16, UINT4, UINT8, UINT16, QType


class _SameName(Enum):
    """Members that equal those of the same name in the peer's enumeration of the same name.

    The classes are ours, so that a script that names them loads no runtime.
    """

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Enum) or type(other).__name__ != type(self).__name__:
            return False
        return self.name == other.name

    __hash__ = Enum.__hash__


class _Named(_SameName):
    """Members that print as their names, and are found by them."""

    def __str__(self) -> str:
        return self.name

    @classmethod
    def from_string(cls, name: str) -> Self:
        """Return the member of this name."""
        return as_member(cls, name, _WORDS[cls.__name__])


class QuantType(_Named):
    """Number types of weights and activations."""

    QInt8 = 0
    QUInt8 = 1
    QFLOAT8E4M3FN = 2
    QInt16 = 3
    QUInt16 = 4
    QInt4 = 5
    QUInt4 = 6

    @property
    def qtype(self) -> QType:
        """Bitwright's type of the same meaning."""
        return _QTYPES[self.name]

    @property
    def tensor_type(self) -> int:
        """The `onnx.TensorProto` element type."""
        return self.qtype.onnx_type


_QTYPES = {
    "QInt8": INT8,
    "QUInt8": UINT8,
    "QFLOAT8E4M3FN": FLOAT8E4M3FN,
    "QInt16": INT16,
    "QUInt16": UINT16,
    "QInt4": INT4,
    "QUInt4": UINT4,
}


class QuantFormat(_Named):
    """How a quantized model is written."""

    QOperator = 0
    QDQ = 1


class QuantizationMode(_Named):
    """Which operators a quantized model is made of."""

    IntegerOps = 0
    QLinearOps = 1


class QuantizedValueType(_Named):
    """What a quantized tensor was in the float model."""

    Input = 0
    Initializer = 1


class CalibrationMethod(_SameName):
    """How a range is chosen."""

    MinMax = 0
    Entropy = 1
    Percentile = 2
    Distribution = 3


_WORDS = {
    "QuantType": "quantization type",
    "QuantFormat": "quantization format",
    "QuantizationMode": "quantization mode",
    "QuantizedValueType": "kind of value",
}
_E = TypeVar("_E", bound=Enum)


def as_member(kind: type[_E], value: Any, what: str) -> _E:
    """Return the member meant by a member, a name, or the same-named enum of another package."""
    if isinstance(value, kind):
        return value
    name = value.name if isinstance(value, Enum) else value
    if isinstance(name, str) and name in kind.__members__:
        return kind[name]
    raise InvalidSettingError(
        f"unknown {what} {name!r}.{did_you_mean(str(name), kind.__members__)}"
    )


def with_own_members(config: Any) -> Any:
    """Return a configuration of the peer with our members in place of its own.

    Scripts ask whether `config.quant_format is QuantFormat.QDQ`.
    """
    kinds = {kind.__name__: kind for kind in (QuantType, QuantFormat, CalibrationMethod)}
    for name, value in vars(config).items():
        kind = kinds.get(type(value).__name__)
        if kind is not None:
            setattr(config, name, kind[value.name])
    return config


def as_quant_type(value: Any, what: str) -> QuantType:
    """Return the type meant by a member, a name, or an element type of `onnx.TensorProto`."""
    if isinstance(value, int) and not isinstance(value, bool | Enum) and value in _BY_ELEMENT_TYPE:
        return _BY_ELEMENT_TYPE[value]
    return as_member(QuantType, value, what)


_BY_ELEMENT_TYPE = {member.tensor_type: member for member in QuantType}
