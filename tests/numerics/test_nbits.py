"""Packed weights, held against ONNX Runtime's kernels and a float64 product of what is stored."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper, numpy_helper
from support.models import FLOAT, FLOAT16, INT64, build, info, node, normal, run

from bitwright.errors import RecipeError, TargetError
from bitwright.numerics.blocks import BlockFormat, BlockScales, quantize_in_blocks, round_to_codes
from bitwright.numerics.nbits import (
    LazyBlocks,
    check_nbits_support,
    check_table_support,
    kind_of_zero_points,
    nbits_form,
    pack,
    pack_nbits,
    slow_reason,
    table_codes,
    unpack,
    unpack_nbits,
    widen,
)

SIZES = (16, 32, 64, 128, 256)


def product(packed, *, level=0, dtype=FLOAT, bias=None):
    """Return a model of one MatMulNBits."""
    constants = {"codes": packed.codes, "scales": packed.scales}
    names = ["x", "codes", "scales"]
    if packed.zero_points is not None:
        constants["zeros"] = packed.zero_points
        names.append("zeros")
    if bias is not None:
        constants["bias"] = bias
        names += [""] * (5 - len(names)) + ["bias"]
    attributes = {"K": packed.rows, "N": packed.columns, "bits": packed.bits}
    attributes |= {"block_size": packed.block_size, "accuracy_level": level}
    only = node("MatMulNBits", names, ["y"], domain="com.microsoft", **attributes)
    x, y = (info(name, ["m", size], dtype) for name, size in (("x", packed.rows), ("y", None)))
    return build([only], [x], [y], constants, domains=["com.microsoft"])


def make_blocks(rows, columns, seed=0, **format):
    weights = normal(rows, columns, seed=seed)
    return quantize_in_blocks(weights, BlockFormat(**format))


@pytest.mark.parametrize("level", range(5))
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("block_size", SIZES)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.sampled(75)
def test_the_runtime_computes_what_is_stored(bits, block_size, symmetric, level):
    """Also where K ends within a block, an output has an odd number of blocks, or N is odd."""
    for rows, columns in ((512, 32), (300, 7), (144, 1)):
        blocks = make_blocks(rows, columns, bits=bits, block_size=block_size, symmetric=symmetric)
        x = normal(5, rows, seed=1)
        expected = x.astype(np.float64) @ blocks.dequantize()
        (actual,) = run(product(pack_nbits(blocks), level=level), {"x": x})
        tolerance = 2e-2 if level == 4 else 2e-6
        np.testing.assert_allclose(actual, expected, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("bits", [2, 4])
def test_float_zero_points_run(bits):
    format = BlockFormat(bits=bits)
    weights = normal(80, 6)
    grid = BlockScales(np.full((3, 6), 0.4, np.float32), normal(3, 6, seed=2) + 2)
    blocks = round_to_codes(weights, grid, format)
    assert kind_of_zero_points(blocks) == "float"
    x = normal(5, 80, seed=1)
    (actual,) = run(product(pack_nbits(blocks)), {"x": x})
    np.testing.assert_allclose(actual, x @ blocks.dequantize(), atol=1e-4)


@pytest.mark.parametrize("symmetric", [True, False])
def test_half_floats_and_a_bias_run(symmetric):
    blocks = make_blocks(100, 9, symmetric=symmetric, scale_type="float16")
    bias = normal(9, seed=3, dtype=np.float16)
    x = normal(5, 100, seed=1, dtype=np.float16)
    expected = x.astype(np.float64) @ blocks.dequantize() + bias
    packed = pack_nbits(blocks)
    (actual,) = run(product(packed, dtype=FLOAT16, bias=bias), {"x": x})
    np.testing.assert_allclose(actual, expected, atol=5e-3 * np.abs(expected).max())


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("symmetric", [True, False])
def test_every_width_runs_in_the_next_one_that_has_kernels(bits, symmetric):
    blocks = make_blocks(70, 5, bits=bits, symmetric=symmetric)
    wide = widen(blocks)
    assert wide.format.bits in (2, 4, 8)
    np.testing.assert_array_equal(wide.dequantize(), blocks.dequantize())
    x = normal(3, 70)
    (actual,) = run(product(pack_nbits(wide)), {"x": x})
    np.testing.assert_allclose(actual, x @ blocks.dequantize(), atol=1e-4)


@pytest.mark.parametrize("rows", [64, 128, 300])
def test_whole_columns_are_stored_as_equal_blocks(rows):
    blocks = make_blocks(rows, 6, block_size=-1)
    packed = pack_nbits(blocks)
    assert packed.block_size == 128
    x = normal(4, rows)
    (actual,) = run(product(packed), {"x": x})
    np.testing.assert_allclose(actual, x @ blocks.dequantize(), atol=2e-4)


formats = st.builds(
    BlockFormat,
    bits=st.sampled_from([2, 4, 8]),
    block_size=st.sampled_from(SIZES),
    symmetric=st.booleans(),
    scale_type=st.sampled_from(["float32", "float16", "bfloat16"]),
)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 9), formats)
def test_unpacking_undoes_packing(rows, columns, format):
    blocks = quantize_in_blocks(normal(rows, columns, seed=rows), format)
    packed = pack_nbits(blocks)
    count = format.blocks(rows)
    assert packed.codes.shape == (columns, count, format.block_size * format.bits // 8)
    if packed.zero_points is not None:
        assert packed.zero_points.shape == (columns, -(-count * format.bits // 8))
    back = unpack_nbits(packed)
    np.testing.assert_array_equal(back.codes, blocks.codes)
    np.testing.assert_array_equal(back.scales, blocks.scales)
    if format.symmetric:
        assert back.zero_points is None
    else:
        np.testing.assert_array_equal(back.zero_points, blocks.zero_points)
    assert back.format == format


def lookup(packed, *, dtype=FLOAT):
    constants = {"codes": packed.codes, "scales": packed.scales}
    names = ["codes", "at", "scales"]
    if packed.zero_points is not None:
        constants["zeros"] = packed.zero_points
        names.append("zeros")
    only = node(
        "GatherBlockQuantized",
        names,
        ["y"],
        domain="com.microsoft",
        gather_axis=0,
        quantize_axis=1,
        bits=packed.bits,
        block_size=packed.block_size,
    )
    inputs, outputs = [info("at", ["m"], INT64)], [info("y", None, dtype)]
    return build([only], inputs, outputs, constants, domains=["com.microsoft"])


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("width", "block_size"), [(64, 16), (96, 32), (200, 64), (12, 16)])
def test_embeddings_are_looked_up_as_stored(bits, symmetric, width, block_size):
    blocks = make_blocks(width, 11, bits=bits, block_size=block_size, symmetric=symmetric)
    at = np.array([3, 0, 10, 3])
    packed = pack_nbits(blocks)
    table = replace(packed, codes=table_codes(packed))
    (actual,) = run(lookup(table), {"at": at})
    np.testing.assert_allclose(actual, blocks.dequantize().T[at], rtol=1e-6)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "block_size"), [(3, 32), (4, -1), (8, 16), (2, 64)])
def test_what_a_weight_will_look_like_is_known_before_it_is_made(symmetric, bits, block_size):
    blocks = make_blocks(100, 7, bits=bits, block_size=block_size, symmetric=symmetric)
    lazy = LazyBlocks.of(lambda: blocks)
    packed, form = lazy.pack(), lazy.form
    assert packed.codes.shape == form.codes_shape and packed.scales.shape == form.scales_shape
    if packed.zero_points is None:
        assert form.zero_points == "none"
    else:
        assert packed.zero_points.shape == form.zero_points_shape
    assert (packed.rows, packed.columns, packed.bits, packed.block_size) == (
        form.rows,
        form.columns,
        form.bits,
        form.block_size,
    )


@pytest.mark.parametrize("bits", [3, 5, 6, 7])
def test_widths_without_a_kernel_are_refused_as_the_runtime_does(bits):
    blocks = make_blocks(32, 2, bits=bits)
    with pytest.raises(TargetError, match=f"2, 4 and 8 bits, not for {bits}"):
        pack_nbits(blocks)
    packed = pack_nbits(make_blocks(32, 2))
    model = product(packed)
    next(a for a in model.graph.node[0].attribute if a.name == "bits").i = bits
    with pytest.raises(Exception, match=r"bits|shape"):
        onnxruntime.InferenceSession(model.SerializeToString())


def test_what_the_table_excludes_is_refused_with_the_reason():
    with pytest.raises(TargetError, match="blocks of 16, 32, 64, 128 and 256, not of 512"):
        check_nbits_support(4, 512)
    with pytest.raises(TargetError, match="accuracy level of MatMulNBits is 0"):
        check_nbits_support(4, 32, accuracy_level=5)
    with pytest.raises(TargetError, match="8 bits fails when it first runs"):
        check_nbits_support(8, 32, "float")
    with pytest.raises(TargetError, match="3 values of 4 bits end within one"):
        check_table_support(nbits_form(BlockFormat(), (3, 2)))
    with pytest.raises(TargetError, match="integer zero points only"):
        check_table_support(nbits_form(BlockFormat(), (4, 2), "float"))


def test_slow_kernels_are_named():
    assert slow_reason(4, 32, "packed") is None and slow_reason(8, 32, accuracy_level=4) is None
    assert "floats" in slow_reason(4, 32, "float", accuracy_level=4)
    assert "level 4" in slow_reason(8, 32) and "level 4" in slow_reason(2, 32)
    assert "blocks of 32, 64 and 128" in slow_reason(2, 16, accuracy_level=4)


def test_bfloat16_scales_are_kept():
    packed = pack_nbits(make_blocks(32, 2, scale_type="bfloat16"))
    assert packed.scales.dtype == ml_dtypes.bfloat16


ONNX_TYPES = {
    (4, True): (TensorProto.INT4, ml_dtypes.int4),
    (4, False): (TensorProto.UINT4, ml_dtypes.uint4),
    (2, True): (TensorProto.INT2, ml_dtypes.int2),
    (2, False): (TensorProto.UINT2, ml_dtypes.uint2),
}


@st.composite
def small_integers(draw, max_dims=1):
    bits, signed = draw(st.sampled_from([2, 4])), draw(st.booleans())
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    shape = draw(hnp.array_shapes(max_dims=max_dims, min_side=0, max_side=17))
    dtype = np.int8 if signed else np.uint8
    return draw(hnp.arrays(dtype, shape, elements=st.integers(low, high))), bits, signed


@given(small_integers(max_dims=3))
def test_unpack_undoes_pack(problem):
    values, bits, signed = problem
    packed = pack(values, bits)
    assert packed.dtype == np.uint8
    assert packed.shape == (*values.shape[:-1], -(-values.shape[-1] * bits // 8))
    back = unpack(packed, bits, values.shape[-1], signed)
    assert back.dtype == values.dtype
    np.testing.assert_array_equal(back, values)


@given(small_integers())
def test_bytes_are_those_of_an_onnx_tensor(problem):
    values, bits, signed = problem
    onnx_type, dtype = ONNX_TYPES[bits, signed]
    ours = pack(values, bits).tobytes()
    assert numpy_helper.from_array(values.astype(dtype)).raw_data == ours
    tensor = helper.make_tensor("t", onnx_type, values.shape, ours, raw=True)
    np.testing.assert_array_equal(numpy_helper.to_array(tensor).astype(values.dtype), values)


@given(small_integers())
def test_a_last_gap_is_zero(problem):
    values, bits, _ = problem
    packed = pack(values, bits)
    padded = unpack(packed, bits, packed.size * 8 // bits, signed=False)
    assert not padded[values.size :].any()


def test_ml_dtypes_and_wide_integers_pack_too():
    assert pack(np.array([1, -1], ml_dtypes.int4), 4).tolist() == [0xF1]
    assert pack(np.array([1, -1], np.int64), 4).tolist() == [0xF1]


def test_the_first_value_sits_in_the_lowest_bits():
    assert pack([1, 2, 3], 4).tolist() == [0x21, 0x03]
    assert pack([1, 2, 3, 0, 1], 2).tolist() == [0b00111001, 0b01]


def test_other_widths_and_impossible_counts_are_refused():
    with pytest.raises(RecipeError, match="not 3-bit"):
        pack([1], 3)
    with pytest.raises(RecipeError, match="2 values of 4 bits, not 3"):
        unpack(np.zeros(1, np.uint8), 4, 3, signed=False)
