"""Round a weight to the nearest codes and pack it, piece by piece as its rows are read.

Neither the float weight nor its unpacked codes are in memory as a whole, and several threads read
and round at once. What is written depends on neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bitwright.errors import ModelError
from bitwright.numerics.arrays import NUMPY, Arrays
from bitwright.numerics.block_search import is_worth_compiling, search_blocks
from bitwright.numerics.blocks import (
    BlockFormat,
    fit_block_scales,
    grids_of,
    nearest_codes,
    quantize_in_blocks,
)
from bitwright.numerics.nbits import (
    NBitsTensors,
    nbits_form,
    pack_codes,
    pack_each,
    pack_nbits,
    widen,
)
from bitwright.numerics.row_reading import RowReader, load_rows, map_rows


def pack_nearest(
    read: RowReader,
    shape: tuple[int, int],
    format: BlockFormat,
    *,
    shrinks: Sequence[float] = (1.0,),
    transposed: bool = False,
    xp: Arrays = NUMPY,
) -> NBitsTensors:
    """Return a weight [K, N] as MatMulNBits reads it; `transposed` ones are read as [N, K].

    These are the bytes of `quantize_in_blocks`, widened and packed. On torch the whole weight is
    rounded at once, and what is packed comes back.
    """
    rows, columns = shape
    if xp is not NUMPY and format.block_size != -1:
        whole = load_rows(read, (columns, rows) if transposed else shape, xp)
        work = xp.transposed(whole) if transposed else whole
        return _pack_on(xp, work, format, shrinks)
    if xp is not NUMPY or format.block_size == -1:
        array = read(0, columns if transposed else rows)
        matrix = array.T if transposed else array
        blocks = quantize_in_blocks(matrix, format, shrinks=shrinks, xp=xp)
        return pack_nbits(widen(blocks), xp=xp)
    return _pack_in_pieces(read, shape, format, shrinks, transposed=transposed)


def _pack_in_pieces(
    read: RowReader,
    shape: tuple[int, int],
    format: BlockFormat,
    shrinks: Sequence[float],
    *,
    transposed: bool,
) -> NBitsTensors:
    """Return a weight that is searched, rounded and packed some rows at a time, in threads."""
    rows, columns = shape
    form = nbits_form(format, shape)
    length, count = format.length(rows), format.blocks(rows)
    grids = grids_of(format, rows, np.ones(count * length, np.float32), shrinks)
    compiled = is_worth_compiling(rows * columns, len(grids.shrinks) + 2 * len(grids.steps))
    codes = np.empty(form.codes_shape, np.uint8)
    scales, zeros = (np.empty(form.scales_shape, np.float32) for _ in range(2))

    def round_part(start: int, stop: int) -> None:
        part = NUMPY.array(read(start, stop))
        outputs = slice(start, stop) if transposed else slice(None)
        blocks = slice(None) if transposed else slice(start // length, -(-stop // length))
        part = part.T if transposed else part
        if not compiled:
            grid = fit_block_scales(part, format, shrinks=shrinks)
            packed = pack_codes(nearest_codes(part, grid, format, NUMPY), form.bits, length)
            codes[outputs, blocks] = packed
            scales[outputs, blocks], zeros[outputs, blocks] = grid.scales.T, grid.zero_points.T
        elif not search_blocks(
            part,
            grids,
            scales[outputs, blocks].T,
            zeros[outputs, blocks].T,
            codes=codes[outputs, blocks],
            code_bits=form.bits,
            fill=1 << (form.bits - 1),
        ):
            raise ModelError("the weight holds NaN or infinity; fix the model or leave it float.")

    if transposed:
        map_rows(round_part, columns, rows)
    else:
        # Whole blocks, and four of them as a column's codes would else share a cache line.
        map_rows(round_part, rows, columns, unit=4 * length)
    stored = NUMPY.array(scales, format.scale_type)
    packed = None
    if form.zero_points == "packed":
        packed = pack_each(zeros.astype(np.uint8), form.bits)
    return NBitsTensors(codes, stored, packed, rows, form.bits, form.block_size)


def _pack_on(xp: Arrays, work: Any, format: BlockFormat, shrinks: Sequence[float]) -> NBitsTensors:
    """Return a weight that is searched, rounded and packed where `xp` computes."""
    form = nbits_form(format, tuple(work.shape))
    grid = fit_block_scales(work, format, shrinks=shrinks, xp=xp)
    codes = nearest_codes(work, grid, format, xp)
    packed = xp.numpy(pack_codes(codes, form.bits, form.block_size, xp=xp))
    scales = NUMPY.array(xp.numpy(xp.transposed(grid.scales)), format.scale_type)
    zeros = None
    if form.zero_points == "packed":
        zeros = pack_each(xp.numpy(xp.codes(xp.transposed(grid.zero_points))), form.bits)
    return NBitsTensors(packed, scales, zeros, form.rows, form.bits, form.block_size)
