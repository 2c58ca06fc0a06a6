"""Number formats whose values share an exponent block by block: BFP16, MX and MXFP.

Each is a set of float32 values, so a rounded tensor is a float32 tensor. Three kinds:

* Block floating point (BFP16): the largest exponent of a block holds for all of it, each value
  keeps a sign and a mantissa.
* Microexponents (MX9, MX6, MX4; Rouhani et al. 2023, "With Shared Microexponents, A Little
  Shifting Goes a Long Way"): the same, and small sub-blocks may shift their exponent down.
* Microscaling (MXINT8, MXFP8, MXFP6, MXFP4; OCP Microscaling Formats 1.0): a block of small
  floats or 8-bit integers with a power of two as its scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from bitwright.errors import RecipeError
from bitwright.numerics.types import QType
from bitwright.support.array_types import F64, Array

Rounding = Literal[0, 1, 2]
"""Where halves go: 0 away from zero, 1 up, 2 to the even neighbour."""

LOWEST_MICROSCALED = -(127 / 64) * 2.0**127
"""The lowest number of MXINT8 that float32 holds; all other formats end above it."""

_SMALLEST_EXPONENT = -127
"""What an exponent field of 0 counts as, for zeros and subnormals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFloat:
    """One exponent for each block, one sign and mantissa for each value."""

    bit_width: int = 16
    """Bits of a value stored alone: 8 of the exponent, the sign, the mantissa."""
    block_size: int = 8
    rounding: Rounding = 0
    sub_block_size: int = 0
    """Values that share a microexponent; 0: there are none."""
    shift_bits: int = 1
    """Bits of a microexponent, which shifts the block's exponent down."""

    @property
    def mantissa_bits(self) -> int:
        """Bits of a mantissa without its sign."""
        return self.bit_width - 9


@dataclass(frozen=True, slots=True)
class ElementType:
    """A small float: its largest exponent, its smallest one, its mantissa, its largest value."""

    emax: int
    emin: int
    mantissa_bits: int
    highest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Microscaling:
    """One power of two for each block, one small float or integer for each value."""

    element: str
    """The name that the operator knows the element type by."""
    block_size: int = 32
    rounding: Rounding = 0
    """For integer elements; small floats round to even."""

    @property
    def float_element(self) -> ElementType | None:
        """The small float, or None for integers of 8 bits with 6 behind the point."""
        return _ELEMENTS[self.element]


SharedExponentFormat = BlockFloat | Microscaling

_ELEMENTS: dict[str, ElementType | None] = {
    "int8": None,
    "fp8_e5m2": ElementType(15, -14, 2, 57344.0),
    "fp8_e4m3": ElementType(8, -6, 3, 448.0),
    "fp6_e3m2": ElementType(4, -2, 2, 28.0),
    "fp6_e2m3": ElementType(2, 0, 3, 7.5),
    "fp4_e2m1": ElementType(2, 0, 1, 6.0),
}

SHARED_EXPONENT_FORMATS: dict[str, SharedExponentFormat] = {
    "bfp16": BlockFloat(),
    "mx9": BlockFloat(bit_width=16, block_size=16, rounding=2, sub_block_size=2),
    "mx6": BlockFloat(bit_width=13, block_size=16, rounding=2, sub_block_size=2),
    "mx4": BlockFloat(bit_width=11, block_size=16, rounding=2, sub_block_size=2),
    "mxint8": Microscaling(element="int8"),
    "mxfp8e5m2": Microscaling(element="fp8_e5m2"),
    "mxfp8e4m3": Microscaling(element="fp8_e4m3"),
    "mxfp6e3m2": Microscaling(element="fp6_e3m2"),
    "mxfp6e2m3": Microscaling(element="fp6_e2m3"),
    "mxfp4e2m1": Microscaling(element="fp4_e2m1"),
}
"""Name of a number type whose values share exponents -> what it is."""


def round_to_shared_exponents(
    x: npt.ArrayLike, format: SharedExponentFormat | QType, axis: int | None = 1
) -> Array:
    """Return the values of x as the format holds them, in x's own float type.

    Blocks lie along `axis`, clipped to the axes there are (None: the second); the last block may
    be shorter. Infinities and NaN stay as they are; with microexponents they make NaN of their
    whole block, because it then has no exponent.
    """
    if isinstance(format, QType):
        if not format.shares_exponent:
            raise RecipeError(f"{format} is no shared-exponent format; it has a scale instead.")
        format = SHARED_EXPONENT_FORMATS[format.name]
    values = np.asarray(x)
    dtype = values.dtype if values.dtype.kind == "f" else np.dtype(np.float32)
    single = values.astype(np.float32)
    flat = single.reshape(-1) if single.ndim == 0 else single
    along = axis_within(1 if axis is None else axis, flat.ndim)
    length = flat.shape[along]
    moved = np.moveaxis(flat, along, -1)
    size = format.block_size
    missing = -length % size
    padded = np.pad(moved, [(0, 0)] * (moved.ndim - 1) + [(0, missing)])
    with np.errstate(invalid="ignore"):  # a signalling NaN is no news
        blocks = padded.reshape(*moved.shape[:-1], -(-length // size), size).astype(np.float64)
    if isinstance(format, Microscaling):
        rounded = _round_microscaling(blocks, format)
    elif format.sub_block_size:
        rounded = _round_microexponents(blocks, format)
    else:
        rounded = _round_block_floats(blocks, format)
    back = rounded.reshape(padded.shape)[..., :length]
    return np.moveaxis(back, -1, along).reshape(values.shape).astype(np.float32).astype(dtype)


def axis_within(axis: int, rank: int) -> int:
    """Return the axis counted from the front, moved to the nearest that there is.

    >>> axis_within(-1, 4), axis_within(1, 1)
    (3, 0)
    """
    return max(min(axis if axis >= 0 else axis + rank, rank - 1), 0)


# All arithmetic is exact in float64: values have 24 bits, and steps are powers of two.


def _round_block_floats(blocks: F64, format: BlockFloat) -> F64:
    finite = np.isfinite(blocks)
    exponent = _exponents(np.where(finite, blocks, 0.0)).max(axis=-1, keepdims=True)
    return np.where(finite, _round_mantissas(blocks, exponent, format), blocks)


def _round_microexponents(blocks: F64, format: BlockFloat) -> F64:
    whole = np.isfinite(blocks).all(axis=-1, keepdims=True)
    # An exponent field of 0 means the value 0 here: there are no subnormals.
    values = np.where(np.abs(blocks) < 2.0 ** (_SMALLEST_EXPONENT + 1), 0.0, blocks)
    exponents = _exponents(np.where(np.isfinite(values), values, 0.0))
    pairs = exponents.reshape(*exponents.shape[:-1], -1, format.sub_block_size)
    shift = exponents.max(axis=-1)[..., None, None] - pairs.max(axis=-1, keepdims=True)
    shift = np.minimum(shift, 2**format.shift_bits - 1)
    exponent = exponents.max(axis=-1)[..., None, None] - np.broadcast_to(shift, pairs.shape)
    rounded = _round_mantissas(values, exponent.reshape(exponents.shape), format)
    return np.where(whole, rounded, np.nan)


def _round_mantissas(values: F64, exponent: Array, format: BlockFloat) -> F64:
    step = np.ldexp(1.0, exponent - (format.mantissa_bits - 1))
    most = 2.0**format.mantissa_bits - 1
    with np.errstate(invalid="ignore"):
        mantissas = _round_halves(values / step, format.rounding)
        return np.asarray(np.clip(mantissas, -most, most) * step)


def _round_microscaling(blocks: F64, format: Microscaling) -> F64:
    finite = np.isfinite(blocks)
    values = np.where(finite, blocks, 0.0)
    largest = _exponents(values).max(axis=-1, keepdims=True)
    element = format.float_element
    # The scale is itself a number of 8 bits, 2^-127 at the least.
    scale = np.ldexp(1.0, np.maximum(largest - (element.emax if element else 0), -127))
    scaled = values / scale
    if element is None:
        rounded = np.clip(_round_halves(scaled * 64, format.rounding), -128, 127) / 64
    else:
        exponents = np.maximum(np.frexp(scaled)[1] - 1, element.emin)
        step = np.ldexp(1.0, exponents - element.mantissa_bits)
        rounded = np.clip(np.rint(scaled / step) * step, -element.highest, element.highest)
    # -2 times the largest scale is no number of float32; the next element is.
    return np.where(finite, np.maximum(rounded * scale, LOWEST_MICROSCALED), blocks)


def _exponents(values: F64) -> Array:
    """Return floor(log2 |x|), and -127 for zeros and for subnormals of float32."""
    exponents = np.frexp(values)[1].astype(np.int64) - 1
    return np.where(values == 0, _SMALLEST_EXPONENT, np.maximum(exponents, _SMALLEST_EXPONENT))


def _round_halves(values: F64, rounding: Rounding) -> F64:
    if rounding == 0:
        return np.asarray(np.sign(values) * np.floor(np.abs(values) + 0.5))
    if rounding == 1:
        return np.asarray(np.floor(values + 0.5))
    return np.asarray(np.rint(values))
