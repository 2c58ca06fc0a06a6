"""The number types a tensor can be quantized to, with their ranges and their storage."""

from __future__ import annotations

from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from bitwright.errors import RecipeError, did_you_mean


class QType:
    """One quantized number type.

    The constants of this module are its only instances. `lowest` and `highest` are the ends of
    the whole type; `bounds` gives the part of it that a scale is spread over.

    >>> INT8.bounds()
    (-128, 127)
    >>> INT8.bounds(symmetric=True), INT8.bounds(reduced=True)
    ((-127, 127), (-64, 64))
    >>> UINT4.dtype, UINT16.dtype
    (dtype('uint8'), dtype('uint16'))
    """

    __slots__ = tuple("bits dtype highest kind lowest min_opset name onnx_type signed".split())

    def __init__(
        self,
        name: str,
        bits: int,
        kind: Literal["int", "float", "shared-exponent"],
        signed: bool,
        ends: tuple[float, float],
        onnx_type: int,
        min_opset: int,
        dtype: npt.DTypeLike,
    ) -> None:
        self.name = name
        self.bits = bits
        self.kind = kind
        self.signed = signed
        self.lowest, self.highest = ends
        self.onnx_type = onnx_type
        """The `onnx.TensorProto.DataType` number."""
        self.min_opset = min_opset
        """First opset whose QuantizeLinear and DequantizeLinear take the type; 0: none does."""
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        """The numpy dtype that holds one value an element (unpacked)."""

    @classmethod
    def from_name(cls, name: Any) -> QType:
        """Return the type with this name, as files hold it."""
        if not isinstance(name, str):
            raise RecipeError(f"a number type is a name such as 'int8', not {name!r}.")
        return qtype(name)

    @property
    def is_integer(self) -> bool:
        """Whether values lie on an integer grid."""
        return self.kind == "int"

    @property
    def shares_exponent(self) -> bool:
        """Whether blocks of values have one exponent, as in BFP16 and the MX formats."""
        return self.kind == "shared-exponent"

    @property
    def needs_range(self) -> bool:
        """Whether a scale must be chosen: wide floats and blocks with exponents need none.

        >>> INT8.needs_range, FLOAT8E4M3FN.needs_range, BFLOAT16.needs_range, BFP16.needs_range
        (True, True, False, False)
        """
        return self.is_integer or (self.kind == "float" and self.bits == 8)

    def bounds(self, *, symmetric: bool = False, reduced: bool = False) -> tuple[int, int]:
        """Return the integer range (qmin, qmax) a scale is spread over.

        Signed symmetric types of 8 bits and more give up their lowest value, so that -x and x
        are both representable; reduced ranges use one bit less, for CPUs whose 8-bit products
        would saturate. Below 8 bits a lost level costs more than the asymmetry.
        """
        if not self.is_integer:
            raise RecipeError(f"{self.name} is not an integer type and has no integer range.")
        low, high = int(self.lowest), int(self.highest)
        if reduced:
            if not self.signed:
                return 0, high // 2
            # The symmetric window of one bit less: -64..64 for int8, as ONNX Runtime has it.
            half = (high + 1) // 2
            return (-half, half) if self.bits >= 8 else (-half, half - 1)
        if symmetric and self.signed and self.bits >= 8:
            return -high, high
        return low, high

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name.upper()

    def __reduce__(self) -> tuple[Any, ...]:
        # The module's constants are the only instances: a copy or an unpickled one is the same.
        return qtype, (self.name,)


def _integer(name: str, bits: int, signed: bool, onnx_type: int, min_opset: int) -> QType:
    low = -(1 << (bits - 1)) if signed else 0
    high = (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1
    dtype = f"{'' if signed else 'u'}int{max(bits, 8)}"
    return QType(name, bits, "int", signed, (low, high), onnx_type, min_opset, dtype)


def _float(
    name: str, bits: int, highest: float, onnx_type: int, min_opset: int, dtype: npt.DTypeLike
) -> QType:
    return QType(name, bits, "float", True, (-highest, highest), onnx_type, min_opset, dtype)


def _shared_exponent(name: str, bits: int) -> QType:
    # Each is a set of float32 values: that is how tensors of it are stored and computed with.
    ends = -_FLOAT_MAX, _FLOAT_MAX
    return QType(name, bits, "shared-exponent", True, ends, 1, 0, np.float32)


_FLOAT_MAX = float(np.finfo(np.float32).max)

INT2 = _integer("int2", 2, True, 26, 25)
UINT2 = _integer("uint2", 2, False, 25, 25)
INT4 = _integer("int4", 4, True, 22, 21)
UINT4 = _integer("uint4", 4, False, 21, 21)
INT8 = _integer("int8", 8, True, 3, 10)
UINT8 = _integer("uint8", 8, False, 2, 10)
INT16 = _integer("int16", 16, True, 5, 21)
UINT16 = _integer("uint16", 16, False, 4, 21)
INT32 = _integer("int32", 32, True, 6, 0)
UINT32 = _integer("uint32", 32, False, 12, 0)
FLOAT16 = _float("float16", 16, 65504.0, 10, 0, np.float16)
BFLOAT16 = _float("bfloat16", 16, 255 * 2.0**120, 16, 0, ml_dtypes.bfloat16)
FLOAT8E4M3FN = _float("float8e4m3fn", 8, 448.0, 17, 19, ml_dtypes.float8_e4m3fn)
FLOAT8E5M2 = _float("float8e5m2", 8, 57344.0, 19, 19, ml_dtypes.float8_e5m2)
# Blocks of values with one exponent; `bits` are those of one element. What they are exactly is
# in `bitwright.numerics.shared_exponent`.
BFP16 = _shared_exponent("bfp16", 8)
MX9 = _shared_exponent("mx9", 8)
MX6 = _shared_exponent("mx6", 5)
MX4 = _shared_exponent("mx4", 3)
MXINT8 = _shared_exponent("mxint8", 8)
MXFP8E5M2 = _shared_exponent("mxfp8e5m2", 8)
MXFP8E4M3 = _shared_exponent("mxfp8e4m3", 8)
MXFP6E3M2 = _shared_exponent("mxfp6e3m2", 6)
MXFP6E2M3 = _shared_exponent("mxfp6e2m3", 6)
MXFP4E2M1 = _shared_exponent("mxfp4e2m1", 4)

QTYPES = {t.name: t for t in tuple(globals().values()) if isinstance(t, QType)}
"""Every type above, by its name."""


def qtype(name: str | QType) -> QType:
    """Return the type with this name.

    >>> qtype("int8") is INT8
    True
    >>> qtype("int9")
    Traceback (most recent call last):
    bitwright.errors.RecipeError: unknown number type 'int9'. Did you mean 'int8'?
    """
    if isinstance(name, QType):
        return name
    found = QTYPES.get(name.lower())
    if found is None:
        raise RecipeError(f"unknown number type {name!r}.{did_you_mean(name, QTYPES)}")
    return found
