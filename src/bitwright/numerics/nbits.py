"""Block-wise weights in the bytes that ONNX Runtime's operators read, and which of them it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from bitwright.errors import RecipeError, TargetError
from bitwright.numerics.arrays import NUMPY, Arrays, Float
from bitwright.numerics.blocks import BlockFormat, QuantizedBlocks
from bitwright.numerics.broadcasting import as_stack
from bitwright.support.array_types import Array


def pack(values: npt.ArrayLike, bits: int) -> npt.NDArray[np.uint8]:
    """Return integers packed into bytes along the last axis; a last gap is filled with zeros.

    Values are cut to their low bits, so signed and unsigned ones pack the same way. ONNX packs
    a tensor as a whole: give it flattened. Row by row is the layout of MatMulNBits.

    >>> pack([1, 2, -1], 4).tolist()
    [33, 15]
    """
    per_byte = _per_byte(bits)
    array = np.atleast_1d(np.asarray(values))
    if array.dtype.kind not in "iu":
        array = array.astype(np.int8)
    unsigned = array.astype(np.uint8, casting="unsafe") & np.uint8((1 << bits) - 1)
    packed = unsigned[..., ::per_byte].copy()
    for place in range(1, per_byte):
        part = unsigned[..., place::per_byte]
        packed[..., : part.shape[-1]] |= part << np.uint8(bits * place)
    return packed


def pack_rows(codes: Any, bits: int) -> Any:
    """Return codes [K, N], whole bytes of each column, packed along the columns: [bytes, N].

    They are bytes of numpy or of torch, and stay that.

    >>> pack_rows(np.array([[1], [2], [3], [4]], np.uint8), 4).tolist()
    [[33], [67]]
    """
    if bits == 8:
        return codes
    per_byte = _per_byte(bits)
    packed = codes[::per_byte] | (codes[1::per_byte] << bits)
    for place in range(2, per_byte):
        packed |= codes[place::per_byte] << (bits * place)
    return packed


def unpack(packed: npt.ArrayLike, bits: int, count: int, signed: bool) -> Array:
    """Return the first `count` integers along the last axis of packed bytes, one per element."""
    per_byte = _per_byte(bits)
    array = np.atleast_1d(np.asarray(packed, np.uint8))
    capacity = array.shape[-1] * per_byte
    if not 0 <= count <= capacity:
        raise RecipeError(
            f"{array.shape[-1]} bytes hold {capacity} values of {bits} bits, not {count}."
        )
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    values = (array[..., None] >> shifts).reshape(*array.shape[:-1], capacity)[..., :count]
    if not signed:
        return np.asarray(values & np.uint8((1 << bits) - 1))
    # Up to the top of the byte and back down: the arithmetic shift copies the sign.
    spare = 8 - bits
    return np.asarray((values << np.uint8(spare)).view(np.int8) >> np.int8(spare))


def _per_byte(bits: int) -> int:
    if bits not in (2, 4):
        raise RecipeError(f"only 2-bit and 4-bit values are packed, not {bits}-bit ones.")
    return 8 // bits


ZeroPoints = Literal["none", "packed", "float"]

_BITS = (2, 4, 8)
_BLOCK_SIZES = (16, 32, 64, 128, 256)
# Whole columns are stored as blocks of this size that have the same scale.
_COLUMN_BLOCK = 128


@dataclass(frozen=True, slots=True, eq=False)
class NBitsTensors:
    """The inputs of a MatMulNBits node, and its attributes.

    `codes` is [N, blocks, bytes], `scales` [N, blocks], `zero_points` [N, bytes], each output's row
    filled up to whole bytes, or [N, blocks] of floats, or None for the middle code.
    """

    codes: npt.NDArray[np.uint8]
    scales: Array
    zero_points: Array | None
    rows: int
    bits: int
    block_size: int

    @property
    def columns(self) -> int:
        """N, the number of outputs."""
        return int(self.codes.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class NBitsForm:
    """The shapes of what a MatMulNBits node reads of a weight [rows, columns]."""

    rows: int
    columns: int
    bits: int
    block_size: int
    zero_points: ZeroPoints
    scale_type: Float

    @property
    def codes_shape(self) -> tuple[int, int, int]:
        """[N, blocks, bytes]."""
        return *self.scales_shape, self.block_size * self.bits // 8

    @property
    def scales_shape(self) -> tuple[int, int]:
        """[N, blocks]."""
        return self.columns, -(-self.rows // self.block_size)

    @property
    def zero_points_shape(self) -> tuple[int, int]:
        """[N, bytes], or [N, blocks] where they are floats."""
        columns, count = self.scales_shape
        return columns, count if self.zero_points == "float" else -(-count * self.bits // 8)


def nbits_form(
    format: BlockFormat, shape: tuple[int, int], zero_points: ZeroPoints | None = None
) -> NBitsForm:
    """Return the form of a weight [K, N] in the next width that there are kernels for.

    Zero points that are not named are integers, or none where the format is symmetric.
    """
    bits = _stored_bits(format)
    kind = zero_points or ("none" if format.symmetric else "packed")
    return NBitsForm(
        rows=shape[0],
        columns=shape[1],
        bits=bits,
        block_size=_COLUMN_BLOCK if format.block_size == -1 else format.block_size,
        # The middle of fewer codes is another one, so it must be said.
        zero_points="packed" if kind == "none" and bits != format.bits else kind,
        scale_type=format.scale_type,
    )


@dataclass(frozen=True, slots=True, eq=False)
class LazyBlocks:
    """A weight in blocks that is made each time it is asked for, and what it will look like."""

    format: BlockFormat
    form: NBitsForm
    load: Callable[[], QuantizedBlocks]
    """Gives codes, scales and zero points."""
    pack: Callable[[], NBitsTensors]
    """Gives what MatMulNBits reads, of this form."""

    @classmethod
    def of(cls, load: Callable[[], QuantizedBlocks]) -> LazyBlocks:
        """Return a weight that can be loaded, once to see what it looks like."""
        first = load()
        form = nbits_form(first.format, first.shape, kind_of_zero_points(first))
        return cls(first.format, form, load, lambda: pack_nbits(widen(load())))


def check_nbits_support(
    bits: int,
    block_size: int,
    zero_points: ZeroPoints = "packed",
    *,
    accuracy_level: int = 0,
    op_type: Literal["MatMulNBits", "GatherBlockQuantized"] = "MatMulNBits",
) -> None:
    """Raise a TargetError for what ONNX Runtime's CPU kernels cannot run, with the reason."""
    if bits not in _BITS:
        raise TargetError(f"{op_type} has kernels for 2, 4 and 8 bits, not for {bits}.")
    if block_size not in _BLOCK_SIZES:
        raise TargetError(
            f"{op_type} has kernels for blocks of 16, 32, 64, 128 and 256, not of {block_size}."
        )
    if accuracy_level not in range(5):
        raise TargetError(
            f"the accuracy level of MatMulNBits is 0 (unset), 1 (float32), 2 (float16), 3 "
            f"(bfloat16) or 4 (int8), not {accuracy_level}."
        )
    if zero_points == "float" and bits == 8:
        raise TargetError(
            f"{op_type} with 8 bits fails when it first runs if its zero points are floats; "
            "use integers."
        )


def slow_reason(
    bits: int, block_size: int, zero_points: ZeroPoints = "packed", *, accuracy_level: int = 0
) -> str | None:
    """Return why MatMulNBits on the CPU would unpack the whole weight at each run, or None.

    That takes 10 to 25 times as long as the float product when one row is multiplied.
    """
    if zero_points == "float":
        return "zero points that are floats have no fast kernel"
    if bits == 4:
        return None
    if accuracy_level != 4:
        return f"{bits}-bit weights are fast at accuracy level 4 only"
    if bits == 2 and block_size not in (32, 64, 128):
        return f"2-bit weights are fast in blocks of 32, 64 and 128, not of {block_size}"
    return None


def pack_nbits(blocks: QuantizedBlocks, *, xp: Arrays = NUMPY) -> NBitsTensors:
    """Return a weight as MatMulNBits reads it, its codes packed on `xp`.

    Whole columns become blocks of 128 with the same scale. The last block is filled with the middle
    code, which the operator does not read.
    """
    blocks = _with_stored_blocks(blocks)
    bits, size = blocks.format.bits, blocks.format.block_size
    check_nbits_support(bits, size, kind_of_zero_points(blocks))
    codes = xp.numpy(pack_codes(xp.bytes(blocks.codes), bits, size, xp=xp))
    scales = np.ascontiguousarray(blocks.scales.T)
    zeros = None
    if blocks.zero_points is not None:
        zeros = np.ascontiguousarray(blocks.zero_points.T)
        zeros = pack_each(zeros, bits) if zeros.dtype == np.uint8 else zeros.astype(scales.dtype)
    return NBitsTensors(codes, scales, zeros, blocks.shape[0], bits, size)


def pack_codes(codes: Any, bits: int, block_size: int, *, xp: Arrays = NUMPY) -> Any:
    """Return codes [K, N], bytes of `xp`, as MatMulNBits reads them, [N, blocks, bytes]."""
    rows, columns = codes.shape
    count = -(-rows // block_size)
    if count * block_size > rows:
        whole = xp.empty_codes(count * block_size, columns)
        whole[:rows], whole[rows:] = codes, 1 << (bits - 1)
        codes = whole
    # Packed first and transposed then: that moves a fraction of the bytes.
    return xp.transposed(pack_rows(codes, bits)).reshape(columns, count, -1)


def table_codes(packed: NBitsTensors) -> npt.NDArray[np.uint8]:
    """Return codes as GatherBlockQuantized reads those of a table in uint8, [entries, bytes].

    The weight is the table transposed, [width, entries], so that a block is part of one entry. The
    bytes are those of MatMulNBits without the filling of the last block: where the width is a
    multiple of the block size, a head can share them with its embedding.
    """
    size = packed.rows * packed.bits // 8
    return np.ascontiguousarray(packed.codes.reshape(packed.columns, -1)[:, :size])


def check_table_support(form: NBitsForm) -> None:
    """Raise a TargetError for a table that GatherBlockQuantized cannot look up."""
    bits, kind = form.bits, form.zero_points
    check_nbits_support(bits, form.block_size, kind, op_type="GatherBlockQuantized")
    if kind == "float":
        raise TargetError("GatherBlockQuantized has integer zero points only.")
    if form.rows * bits % 8:
        raise TargetError(
            f"GatherBlockQuantized reads whole bytes, and {form.rows} values of {bits} bits end "
            "within one."
        )


def expert_codes(blocks: QuantizedBlocks, experts: int) -> Array:
    """Return the codes of a mixture's weight as QMoE reads them, [experts, N, bytes].

    `blocks` holds the weights of all experts side by side, [K, experts * N].
    """
    codes = as_stack(blocks.codes, (experts,), transposed=True)
    return pack_each(codes, blocks.format.bits)


def expert_scales(blocks: QuantizedBlocks, experts: int) -> Array:
    """Return scales as QMoE reads them: [experts, N, blocks], [experts, N] for whole columns."""
    scales = as_stack(blocks.scales, (experts,), transposed=True)
    return np.ascontiguousarray(scales[..., 0] if blocks.format.block_size == -1 else scales)


def expert_zero_points(blocks: QuantizedBlocks, experts: int) -> Array:
    """Return zero points as QMoE reads them: like scales, with the last axis in whole bytes.

    >>> from bitwright.numerics.blocks import BlockFormat, quantize_in_blocks
    >>> blocks = quantize_in_blocks(np.ones((48, 6)), BlockFormat(block_size=16))
    >>> expert_zero_points(blocks, experts=2).shape
    (2, 3, 2)
    """
    if blocks.zero_points is None or blocks.zero_points.dtype != np.uint8:
        raise TargetError("QMoE has integer zero points only.")
    zeros = as_stack(blocks.zero_points, (experts,), transposed=True)
    if blocks.format.block_size == -1:
        zeros = zeros[..., 0]
    return pack_each(zeros, blocks.format.bits)


def widen(blocks: QuantizedBlocks, least: int = 2) -> QuantizedBlocks:
    """Return the same weight in the next width from `least` bits on that there are kernels for.

    These widths are 2, 4 and 8 bits.
    """
    bits = _stored_bits(blocks.format, least)
    if bits == blocks.format.bits:
        return blocks
    zeros = blocks.zero_points
    if zeros is None:  # the middle of fewer codes is another one
        zeros = np.full(blocks.scales.shape, blocks.format.middle, np.uint8)
    format = replace(blocks.format, bits=bits, symmetric=False)
    return QuantizedBlocks(format, blocks.codes, blocks.scales, zeros)


def kind_of_zero_points(blocks: QuantizedBlocks) -> ZeroPoints:
    """Return how the zero points of a weight are stored."""
    if blocks.zero_points is None:
        return "none"
    return "packed" if blocks.zero_points.dtype == np.uint8 else "float"


def unpack_nbits(packed: NBitsTensors) -> QuantizedBlocks:
    """Return the weight that the inputs of a MatMulNBits node hold."""
    columns, count, _ = packed.codes.shape
    codes = _unpack(packed.codes, packed.bits, packed.block_size)
    codes = codes.reshape(columns, -1)[:, : packed.rows].T
    zeros = packed.zero_points
    if zeros is not None:
        if zeros.dtype == np.uint8:
            zeros = _unpack(zeros.reshape(columns, -1), packed.bits, count)
        zeros = np.ascontiguousarray(zeros.reshape(columns, count).T)
    scales = np.ascontiguousarray(packed.scales.reshape(columns, count).T)
    format = BlockFormat(
        bits=packed.bits,
        block_size=packed.block_size,
        symmetric=zeros is None,
        scale_type=cast(Float, scales.dtype.name),
    )
    return QuantizedBlocks(format, np.ascontiguousarray(codes), scales, zeros)


def _with_stored_blocks(blocks: QuantizedBlocks) -> QuantizedBlocks:
    """Return a weight whose block length is one that the operators take."""
    if blocks.format.block_size != -1:
        return blocks
    format = replace(blocks.format, block_size=_COLUMN_BLOCK)
    count = format.blocks(blocks.shape[0])
    zeros = blocks.zero_points
    return QuantizedBlocks(
        format,
        blocks.codes,
        np.repeat(blocks.scales, count, axis=0),
        None if zeros is None else np.repeat(zeros, count, axis=0),
    )


def _stored_bits(format: BlockFormat, least: int = 2) -> int:
    return next(width for width in _BITS if width >= max(format.bits, least))


def pack_each(values: Array, bits: int) -> npt.NDArray[np.uint8]:
    """Return codes packed along the last axis, each row from a byte on; 8 bits stay as they are.

    >>> pack_each(np.array([[1, 2, 3]], np.uint8), 4).tolist()
    [[33, 3]]
    """
    return np.ascontiguousarray(values) if bits == 8 else pack(values, bits)


def _unpack(packed: Array, bits: int, count: int) -> Array:
    return packed[..., :count] if bits == 8 else unpack(packed, bits, count, signed=False)
