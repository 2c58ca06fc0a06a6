"""Codes, blocks and packing, against the kernel that ONNX Runtime quantizes with."""

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bitwright.errors import RecipeError
from bitwright.numerics.codebooks import (
    BLOCK_SIZES,
    CODEBOOKS,
    FP4,
    NF4,
    codebook,
    dequantize_blocks,
    quantize_blocks,
)

kernel = pytest.importorskip("onnxruntime.capi._pybind_state").quantize_matmul_bnb4

books = pytest.mark.parametrize("book", CODEBOOKS.values(), ids=CODEBOOKS)


def peer_blocks(flat, book, block_size):
    """Quantize with the runtime's own kernel."""
    packed = np.zeros((flat.size + 1) // 2, np.uint8)
    absmax = np.zeros(-(-flat.size // block_size), flat.dtype)
    row = np.ascontiguousarray(flat).reshape(1, -1)
    kernel(packed, row, absmax, block_size, book.number, 1, flat.size)
    return packed, absmax


def assert_same(flat, book, block_size):
    ours, theirs = (f(flat, book, block_size) for f in (quantize_blocks, peer_blocks))
    np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_array_equal(ours[1], theirs[1])
    assert ours[1].dtype == theirs[1].dtype == flat.dtype


def values(dtype):
    # The kernel is wrong for magnitudes whose inverse overflows: that has a test of its own.
    smallest = np.finfo(np.float32).tiny
    elements = st.floats(-60000, 60000, width=16 if dtype is np.float16 else 32)
    elements = elements.map(lambda x: 0.0 if abs(x) < smallest else x)
    return arrays.arrays(dtype, st.integers(1, 600), elements=elements)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    dtype=st.sampled_from([np.float32, np.float16]),
    book=st.sampled_from([FP4, NF4]),
    block_size=st.sampled_from(BLOCK_SIZES),
)
@pytest.mark.slow
def test_bytes_and_magnitudes_are_those_of_the_runtime(data, dtype, book, block_size):
    assert_same(data.draw(values(dtype)), book, block_size)


@books
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 3000.0])
@pytest.mark.sampled(3)
def test_a_million_weights_are_those_of_the_runtime(book, dtype, scale):
    # An odd length, more than a chunk: the seams and the short last block count too.
    flat = (np.random.default_rng(3).standard_normal(1_200_003) * scale).astype(dtype)
    assert_same(flat, book, 64)


@books
def test_floats_around_every_boundary_go_where_the_runtime_puts_them(book):
    edges = np.array(book.boundaries, np.float32)
    near = [edges]
    for direction in (-np.inf, np.inf):
        step = edges
        for _ in range(3):
            step = np.nextafter(step, np.float32(direction))
            near.append(step)
    floats = np.concatenate([*near, *(-floats for floats in near), [0.0, -0.0]]).astype(np.float32)
    blocks = np.zeros((floats.size, 16), np.float32)
    blocks[:, 0], blocks[:, 1] = 1, floats
    assert_same(blocks.reshape(-1), book, 16)


@books
def test_every_code_is_the_nearest_level(book):
    x = np.linspace(-1, 1, 20001)
    distance = np.abs(x[:, None] - book.table.astype(np.float64)[None])
    chosen = distance[np.arange(x.size), book.encode(x)]
    # The kernel's boundaries are decimal numbers of six digits and more.
    np.testing.assert_allclose(chosen, distance.min(axis=1), atol=1e-6)


@books
def test_levels_are_their_own_codes(book):
    codes = book.encode(book.table)
    np.testing.assert_array_equal(book.table[codes], book.table)
    assert set(book.codes) | {code | book.sign_bit for code in book.codes} == set(range(16))
    assert list(book.boundaries) == sorted(book.boundaries)
    assert len(book.codes) == len(book.boundaries) + 1


@books
@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 63, 100])
def test_values_come_back_within_half_a_gap(book, count):
    flat = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    packed, absmax = quantize_blocks(flat, book, 16)
    back = dequantize_blocks(packed, absmax, book, 16, count)
    gap = np.diff(np.sort(book.table)).max() / 2 + 1e-6
    assert np.all(np.abs(back - flat) <= gap * np.repeat(absmax, 16)[:count])
    first = np.argmax(np.abs(flat[:16]))
    assert back[first] == flat[first]


@books
def test_blocks_of_zeros_stay_zero(book):
    packed, absmax = quantize_blocks(np.zeros(33, np.float32), book, 16)
    assert not absmax.any()
    assert not book.table[np.stack([packed >> 4, packed & 15])].any()


@books
def test_zeros_beside_the_smallest_floats_stay_zero(book):
    """The runtime's kernel multiplies them by an infinite inverse."""
    flat = np.zeros(16, np.float32)
    flat[0] = np.finfo(np.float32).smallest_subnormal
    packed, absmax = quantize_blocks(flat, book, 16)
    np.testing.assert_array_equal(dequantize_blocks(packed, absmax, book, 16, 16), flat)


def test_the_normal_levels_lie_where_the_paper_derives_them():
    """QLoRA, appendix E: quantiles of the normal distribution, eight above zero, seven below."""
    quantile = NormalDist().inv_cdf
    offset = (1 - 1 / (2 * 15) + 1 - 1 / (2 * 16)) / 2
    above = [quantile(p) for p in np.linspace(offset, 0.5, 9)[:-1]]
    below = [-quantile(p) for p in np.linspace(offset, 0.5, 8)[:-1]]
    levels = np.sort([*above, 0.0, *below]) / max(above)
    np.testing.assert_allclose(NF4.levels, levels, atol=2e-5)


def test_an_unknown_codebook_is_refused_with_a_suggestion():
    assert codebook("fp4") is FP4
    with pytest.raises(RecipeError, match="Did you mean 'nf4'"):
        codebook("nf44")
