"""Weights that are rounded and packed piece by piece have the bytes of the plain way."""

import numpy as np
import pytest

from bitwright.errors import ModelError
from bitwright.numerics import block_search, row_reading
from bitwright.numerics.arrays import NUMPY, arrays_on
from bitwright.numerics.blocks import SHRINKS, BlockFormat, quantize_in_blocks
from bitwright.numerics.nbits import pack_nbits, widen
from bitwright.numerics.nearest_blocks import pack_nearest

pytest.importorskip("numba")


def both(weights, format, monkeypatch, threads=3, **options):
    """Return a weight packed as a whole, and in pieces by several threads, both compiled."""
    monkeypatch.setattr(block_search, "MIN_COMPILED_WORK", 0)
    monkeypatch.setattr(row_reading, "_NUMBERS_AT_ONCE", 1024)
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    matrix = weights.T if options.get("transposed") else weights
    shrinks = options.get("shrinks", (1.0,))
    whole = pack_nbits(widen(quantize_in_blocks(matrix, format, shrinks=shrinks)))
    pieces = pack_nearest(lambda a, b: weights[a:b], matrix.shape, format, **options)
    return whole, pieces


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("shrinks", [(1.0,), SHRINKS])
def test_pieces_have_the_bytes_of_the_whole(monkeypatch, transposed, symmetric, bits, shrinks):
    weights = np.random.default_rng(0).standard_t(4, (200, 90)).astype(np.float32)
    format = BlockFormat(bits=bits, symmetric=symmetric, block_size=16)
    whole, pieces = both(weights, format, monkeypatch, shrinks=shrinks, transposed=transposed)
    np.testing.assert_array_equal(pieces.codes, whole.codes)
    np.testing.assert_array_equal(pieces.scales, whole.scales)
    if whole.zero_points is None:
        assert pieces.zero_points is None
    else:
        np.testing.assert_array_equal(pieces.zero_points, whole.zero_points)
    assert (pieces.rows, pieces.bits, pieces.block_size) == (
        whole.rows,
        whole.bits,
        whole.block_size,
    )


@pytest.mark.parametrize("scale_type", ["float16", "bfloat16"])
def test_scales_have_the_type_of_the_weight(monkeypatch, scale_type):
    weights = np.random.default_rng(1).standard_normal((64, 70)).astype(np.float32)
    format = BlockFormat(scale_type=scale_type)
    whole, pieces = both(weights, format, monkeypatch, shrinks=SHRINKS)
    assert pieces.scales.dtype == whole.scales.dtype
    np.testing.assert_array_equal(pieces.scales, whole.scales)
    np.testing.assert_array_equal(pieces.codes, whole.codes)


@pytest.mark.parametrize("block_size", [32, -1])
def test_the_number_of_threads_changes_nothing(monkeypatch, block_size):
    weights = np.random.default_rng(2).standard_normal((300, 40)).astype(np.float32)
    format = BlockFormat(block_size=block_size)
    one, many = (
        both(weights, format, monkeypatch, shrinks=SHRINKS, threads=threads)[1]
        for threads in (1, 7)
    )
    np.testing.assert_array_equal(one.codes, many.codes)
    np.testing.assert_array_equal(one.scales, many.scales)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("least", [0, 1 << 40])
def test_numbers_that_are_none_are_refused(monkeypatch, bad, least):
    weights = np.zeros((64, 64), np.float32)
    weights[40, 3] = bad
    monkeypatch.setattr(block_search, "MIN_COMPILED_WORK", least)
    with pytest.raises(ModelError, match="NaN or infinity"):
        pack_nearest(lambda a, b: weights[a:b], (64, 64), BlockFormat(), shrinks=SHRINKS)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("block_size", [16, -1])
def test_torch_gives_the_bytes_of_numpy(transposed, bits, symmetric, block_size):
    pytest.importorskip("torch")
    weights = np.random.default_rng(3).standard_normal((100, 40)).astype(np.float32)
    format = BlockFormat(bits=bits, symmetric=symmetric, block_size=block_size)
    shape = (40, 100) if transposed else (100, 40)
    here, there = (
        pack_nearest(
            lambda a, b: weights[a:b], shape, format, shrinks=SHRINKS, transposed=transposed, xp=xp
        )
        for xp in (NUMPY, arrays_on("torch"))
    )
    np.testing.assert_array_equal(here.codes, there.codes)
    np.testing.assert_array_equal(here.scales, there.scales)
    assert (here.zero_points is None) == (there.zero_points is None)
    if here.zero_points is not None:
        np.testing.assert_array_equal(here.zero_points, there.zero_points)
    assert (here.rows, here.bits, here.block_size) == (there.rows, there.bits, there.block_size)
