"""4-bit codes for unevenly spaced levels: a table, blocks that share one scale, and packing.

A block of weights is divided by its largest magnitude, and each quotient becomes the number of the
nearest level. What is stored is the 4-bit numbers and one float a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bitwright.errors import RecipeError, did_you_mean

__all__ = [
    "BLOCK_SIZES",
    "CODEBOOKS",
    "FP4",
    "NF4",
    "Codebook",
    "codebook",
    "dequantize_blocks",
    "quantize_blocks",
]

Array = npt.NDArray[Any]

BLOCK_SIZES = (16, 32, 64, 128, 256)
"""The block lengths that ONNX Runtime's MatMulBnb4 has kernels for."""

# Elements that are worked on at once: intermediate arrays stay small whatever the weight's size.
_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Codebook:
    """Sixteen levels in [-1, 1], and where a value stops belonging to one and starts to the next.

    A value on a boundary belongs to the lower level, seen from the negative end, or from zero where
    the code has a sign bit.
    """

    name: str
    number: int
    """What the attribute quant_type of MatMulBnb4 calls it."""
    levels: tuple[float, ...]
    """Code -> level."""
    boundaries: tuple[float, ...]
    """Ascending; for a signed code those of the magnitudes."""
    codes: tuple[int, ...]
    """Codes in the order of the boundaries: one more than there are of those."""
    sign_bit: int = 0

    @property
    def table(self) -> npt.NDArray[np.float32]:
        """The levels as the runtime has them."""
        return np.array(self.levels, np.float32)

    def encode(self, values: npt.ArrayLike) -> npt.NDArray[np.uint8]:
        """Return the code of the level nearest to each value.

        >>> NF4.encode([-1.0, 0.0, 0.1, 1.0]).tolist()
        [0, 7, 8, 15]
        """
        array = np.asarray(values, np.float32)
        sought = np.abs(array) if self.sign_bit else array
        # Counting the boundaries below is many times faster than a search: it has no branches.
        places = np.zeros(array.shape, np.uint8)
        for boundary in np.array(self.boundaries, np.float32):
            places += sought > boundary
        codes = np.array(self.codes, np.uint8)[places]
        if self.sign_bit:
            codes |= np.where(array < 0, np.uint8(self.sign_bit), np.uint8(0))
        return np.asarray(codes)


_FP4_MAGNITUDES = (0.0, 0.0625 / 12, 8 / 12, 1.0, 4 / 12, 6 / 12, 2 / 12, 3 / 12)

FP4 = Codebook(
    # bitsandbytes (Dettmers et al.), its fp4: a sign bit, 0 and 2, 3, 4, 6, 8, 12 with a subnormal
    # 0.0625, all over 12. Codes do not follow the size of the level.
    name="fp4",
    number=0,
    levels=(*_FP4_MAGNITUDES, *(-level for level in _FP4_MAGNITUDES)),
    # The midpoints as that kernel writes them: some have six digits only, and models that were
    # quantized there and here should have the same bytes.
    boundaries=(0.00260417, 0.0859375, 0.20833333, 0.29166666, 0.4166667, 0.583333, 0.8333333),
    codes=(0, 1, 6, 7, 4, 5, 2, 3),
    sign_bit=8,
)

NF4 = Codebook(
    # Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs", appendix E: quantiles
    # of the normal distribution, with an exact zero.
    name="nf4",
    number=1,
    levels=(
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ),
    # The midpoints in float32. Many lie exactly between two floats; they are rounded to the side
    # that the runtime's kernel rounds them to.
    boundaries=(
        -0.84809643,
        -0.6106329,
        -0.45999527,
        -0.33967942,
        -0.2346074,
        -0.13791174,
        -0.045525018,
        0.03979015,
        0.120255254,
        0.20352125,
        0.29201376,
        0.38931254,
        0.5016634,
        0.6427869,
        0.8614784,
    ),
    codes=tuple(range(16)),
)

CODEBOOKS = {book.name: book for book in (FP4, NF4)}


def codebook(name: str) -> Codebook:
    """Return the codebook of a name.

    >>> codebook("nf4").number
    1
    """
    if name not in CODEBOOKS:
        raise RecipeError(f"there is no codebook {name!r}.{did_you_mean(name, CODEBOOKS)}")
    return CODEBOOKS[name]


def quantize_blocks(
    values: Array, book: Codebook, block_size: int
) -> tuple[npt.NDArray[np.uint8], Array]:
    """Return packed codes and the largest magnitude of each block of a flattened float array.

    The first of two codes is in the high half of its byte. The last block may be shorter; a
    last half byte without a value has the code of zero. The magnitudes have the type of the array.

    >>> packed, absmax = quantize_blocks(np.float32([2, -2, 0]), NF4, 16)
    >>> [hex(byte) for byte in packed], absmax
    (['0xf0', '0x77'], array([2.], dtype=float32))
    """
    flat = np.asarray(values).reshape(-1)
    blocks = -(-flat.size // block_size)
    packed = np.empty((flat.size + 1) // 2, np.uint8)
    absmax = np.empty(blocks, flat.dtype)
    step = max(_CHUNK // block_size, 2)
    step += step % 2  # so that a chunk ends with a whole byte
    for first in range(0, blocks, step):
        part = flat[first * block_size : (first + step) * block_size].astype(np.float32)
        count = -(-part.size // block_size)
        # Zeros do not change the largest magnitude.
        part = np.pad(part, (0, count * block_size - part.size)).reshape(count, block_size)
        largest = np.abs(part).max(axis=1)
        codes = book.encode(_scale_down(part, largest)).reshape(-1)
        if codes.size % 2:
            codes = np.append(codes, book.encode(0.0))
        begin = first * block_size // 2
        target = packed[begin : begin + codes.size // 2]
        target[:] = (codes[0::2] << 4 | codes[1::2])[: target.size]
        absmax[first : first + count] = largest
    return packed, absmax


def _scale_down(blocks: Array, largest: Array) -> Array:
    """Return the blocks over their largest magnitudes; blocks of zeros stay as they are."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        # A product, as in the runtime's kernel: a quotient can lie on the other side of a boundary.
        inverse = np.where(largest > 0, np.float32(1) / largest, np.float32(0))
        scaled = blocks * inverse[:, None]
        # The inverse of the smallest floats overflows, and zeros times infinity are no numbers.
        tiny = np.isinf(inverse)
        if tiny.any():
            scaled[tiny] = blocks[tiny] / largest[tiny, None]
    return np.asarray(scaled)


def dequantize_blocks(
    packed: Array, absmax: Array, book: Codebook, block_size: int, count: int
) -> npt.NDArray[np.float64]:
    """Return the values that packed codes stand for.

    >>> dequantize_blocks(np.uint8([0xF0, 0x77]), np.float32([2]), NF4, 16, 3)
    array([ 2., -2.,  0.])
    """
    codes = np.stack([packed >> 4, packed & 15], axis=-1).reshape(-1)[:count]
    scales = np.repeat(np.asarray(absmax, np.float64), block_size)[:count]
    return np.asarray(book.table.astype(np.float64)[codes] * scales)
