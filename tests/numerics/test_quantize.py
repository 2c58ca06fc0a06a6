"""quantize and dequantize give the same bits as ONNX Runtime's kernels, for every type they run."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper

from bitwright.errors import RecipeError
from bitwright.numerics.quantize import dequantize, fake_quantize, quantize
from bitwright.numerics.types import (
    BFLOAT16,
    FLOAT8E4M3FN,
    FLOAT8E5M2,
    FLOAT16,
    INT2,
    INT4,
    INT8,
    INT16,
    INT32,
    UINT2,
    UINT4,
    UINT8,
    UINT16,
    UINT32,
    QType,
)

RUN_BY_ORT = [
    INT2, UINT2, INT4, UINT4, INT8, UINT8, INT16, UINT16, FLOAT8E4M3FN, FLOAT8E5M2,
]  # fmt: skip
FLOAT_TYPES = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float16): TensorProto.FLOAT16}


@cache
def kernel(
    op: str, qtype: QType, real: np.dtype, opset: int, rank: int, mode: str, axis: int, block: int
) -> onnxruntime.InferenceSession:
    """A session of one Q or DQ node; numbers Python cannot pass go through Cast."""
    attributes = {} if mode == "tensor" else {"axis": axis}
    if mode == "block":
        attributes["block_size"] = block
    parameter_rank = {"tensor": 0, "channel": 1, "block": rank}[mode]
    # int32 carries the integers of all types that have no numpy dtype; float32 carries float8.
    carrier = TensorProto.INT32 if qtype.is_integer else TensorProto.FLOAT
    real_type = FLOAT_TYPES[real]
    nodes = [helper.make_node("Cast", ["z32"], ["z"], to=qtype.onnx_type)]
    if op == "QuantizeLinear":
        x = helper.make_tensor_value_info("x", real_type, [None] * rank)
        y = helper.make_tensor_value_info("y32", carrier, [None] * rank)
        nodes += [
            helper.make_node(op, ["x", "s", "z"], ["y"], **attributes),
            helper.make_node("Cast", ["y"], ["y32"], to=carrier),
        ]
    else:
        x = helper.make_tensor_value_info("x32", carrier, [None] * rank)
        y = helper.make_tensor_value_info("y", real_type, [None] * rank)
        nodes += [
            helper.make_node("Cast", ["x32"], ["x"], to=qtype.onnx_type),
            helper.make_node(op, ["x", "s", "z"], ["y"], **attributes),
        ]
    parameters = [
        helper.make_tensor_value_info("s", real_type, [None] * parameter_rank),
        helper.make_tensor_value_info("z32", carrier, [None] * parameter_rank),
    ]
    graph = helper.make_graph(nodes, "kernel", [x, *parameters], [y])
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=min(13, opset)
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    # Without this the Cast and the Q/DQ could be fused into something else than the kernel.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run(op, x, scale, zero_point, qtype, *, real, opset, mode="tensor", axis=0, block=0):
    session = kernel(op, qtype, np.dtype(real), opset, x.ndim, mode, axis, block)
    carrier = np.int32 if qtype.is_integer else np.float32
    name = "x" if op == "QuantizeLinear" else "x32"
    x = x.astype(real if op == "QuantizeLinear" else carrier)
    feeds = {name: x, "s": scale.astype(real), "z32": zero_point.astype(carrier)}
    return session.run(None, feeds)[0]


def assert_same_integers(ours, theirs, qtype):
    assert ours.dtype == qtype.dtype
    if qtype.is_integer:
        np.testing.assert_array_equal(ours.astype(np.int32), theirs)
    else:
        np.testing.assert_array_equal(ours.astype(np.float32), theirs)


def opset_of(qtype: QType) -> int:
    return max(21, qtype.min_opset)


@st.composite
def problems(draw, real, modes=("tensor", "channel", "block")):
    """A tensor, its parameters and how they are spread; scales around the data's own size."""
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=6))
    limit = 1000.0 if real == np.float16 else 1e6
    width = 16 if real == np.float16 else 32
    elements = st.floats(-limit, limit, width=width)
    # Multiples of a half land on ties, where rounding modes differ.
    ties = st.integers(-40, 40).map(lambda n: n / 2)
    x = draw(hnp.arrays(real, shape, elements=st.one_of(elements, ties)))
    mode = draw(st.sampled_from(modes))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    block = draw(st.integers(1, shape[axis] + 1)) if mode == "block" else 0
    blocked = list(shape)
    if block:
        blocked[axis] = -(-shape[axis] // block)
    parameter_shape = {"tensor": (), "channel": (shape[axis],), "block": tuple(blocked)}[mode]
    if mode != "tensor" and np.prod(parameter_shape) == 1:
        # ONNX Runtime takes a vector of one scale for a whole tensor and then refuses block_size.
        mode, block, parameter_shape = "tensor", 0, ()
    scales = st.one_of(
        st.floats(2**-10, 100.0, width=width), st.sampled_from([2.0**-7, 0.5, 1.0, 2.0])
    )
    scale = draw(hnp.arrays(real, parameter_shape, elements=scales))
    seed = draw(st.integers(0, 2**32 - 1))
    return x, scale, mode, axis, block, np.random.default_rng(seed)


def zero_points(qtype, shape, rng):
    if not qtype.is_integer:
        return np.zeros(shape, np.int64)
    return np.asarray(rng.integers(int(qtype.lowest), int(qtype.highest) + 1, shape))


def spread_arguments(mode, axis, block):
    return {} if mode == "tensor" else {"axis": axis, "block_size": block}


@pytest.mark.parametrize("real", [np.float32, np.float16])
@pytest.mark.parametrize("qtype", RUN_BY_ORT, ids=str)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
@pytest.mark.sampled(8)
def test_quantize_has_the_bits_of_onnx_runtime(qtype, real, data):
    x, scale, mode, axis, block, rng = data.draw(problems(real))
    zero_point = zero_points(qtype, scale.shape, rng)
    theirs = run(
        "QuantizeLinear", x, scale, zero_point, qtype,
        real=real, opset=opset_of(qtype), mode=mode, axis=axis, block=block,
    )  # fmt: skip
    ours = quantize(x, scale, zero_point, qtype, **spread_arguments(mode, axis, block))
    assert_same_integers(ours, theirs, qtype)


@pytest.mark.parametrize("real", [np.float32, np.float16])
@pytest.mark.parametrize("qtype", RUN_BY_ORT, ids=str)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
@pytest.mark.sampled(8)
def test_dequantize_has_the_bits_of_onnx_runtime(qtype, real, data):
    x, scale, mode, axis, block, rng = data.draw(problems(real))
    zero_point = zero_points(qtype, scale.shape, rng)
    spread = spread_arguments(mode, axis, block)
    q = quantize(x, scale, zero_point, qtype, **spread)
    theirs = run(
        "DequantizeLinear", q, scale, zero_point, qtype,
        real=real, opset=opset_of(qtype), mode=mode, axis=axis, block=block,
    )  # fmt: skip
    ours = dequantize(q, scale, zero_point, dtype=real, **spread)
    assert ours.dtype == real
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("qtype", "opset"),
    [
        (INT8, 10), (UINT8, 10), (INT8, 13), (UINT8, 13), (UINT8, 19), (INT8, 23),
        (FLOAT8E4M3FN, 19), (FLOAT8E5M2, 19), (UINT16, 23), (INT4, 23), (UINT4, 25), (INT16, 25),
    ],
)  # fmt: skip
def test_older_and_newer_opsets_compute_the_same(qtype, opset):
    rng = np.random.default_rng(opset)
    x = rng.normal(0, 30, (3, 100)).astype(np.float32)
    scale = np.array(0.37, np.float32)
    zero_point = np.array(3 if qtype.is_integer else 0)
    theirs = run("QuantizeLinear", x, scale, zero_point, qtype, real=np.float32, opset=opset)
    q = quantize(x, scale, zero_point, qtype)
    assert_same_integers(q, theirs, qtype)
    back = run("DequantizeLinear", q, scale, zero_point, qtype, real=np.float32, opset=opset)
    np.testing.assert_array_equal(dequantize(q, scale, zero_point), back)


@pytest.mark.parametrize("qtype", RUN_BY_ORT, ids=str)
def test_every_float16_quantizes_as_in_onnx_runtime(qtype):
    x = np.arange(2**16, dtype=np.uint16).view(np.float16)
    x = x[np.isfinite(x)]
    for scale, zero in [(0.013, 1), (7.0, 0)]:
        scale = np.array(scale, np.float16)
        zero_point = np.array(zero if qtype.is_integer else 0)
        theirs = run(
            "QuantizeLinear", x, scale, zero_point, qtype, real=np.float16, opset=opset_of(qtype)
        )
        assert_same_integers(quantize(x, scale, zero_point, qtype), theirs, qtype)


@pytest.mark.parametrize("qtype", RUN_BY_ORT, ids=str)
def test_infinities_and_overflowing_quotients_saturate(qtype):
    x = np.array([np.inf, -np.inf, 3e38, -3e38, 1e30], np.float32)
    scale = np.array(1e-6, np.float32)
    zero_point = np.array(0)
    ends = [qtype.highest, qtype.lowest] * 2 + [qtype.highest]
    assert quantize(x, scale, zero_point, qtype).astype(np.float64).tolist() == ends
    if qtype.bits < 8:
        # These kernels make an int32 of the quotient before they clamp it. Beyond int32 C++ leaves
        # the result undefined: Arm processors saturate, x86 processors give -2^31.
        x = np.array([2147.0, -2147.0, 1.0, -1.0, 2147.0], np.float32)
    q = quantize(x, scale, zero_point, qtype).astype(np.float64)
    assert q.tolist() == ends
    theirs = run(
        "QuantizeLinear", x, scale, zero_point, qtype, real=np.float32, opset=opset_of(qtype)
    )
    np.testing.assert_array_equal(q, theirs.astype(np.float64))


@pytest.mark.parametrize("qtype", RUN_BY_ORT, ids=str)
def test_nan_becomes_the_lowest_integer_and_stays_nan_in_floats(qtype):
    x = np.full(37, np.nan, np.float32)
    q = quantize(x, 1.0, 1 if qtype.is_integer else 0, qtype)
    if qtype.is_integer:
        assert (q == qtype.lowest).all()
    else:
        assert np.isnan(q.astype(np.float32)).all()


def test_int32_is_exact_where_float32_is_not():
    bias = np.array([2**24 + 1.0, -(2**30) - 1.0, 1e30, -1e30])
    q = quantize(bias, 1.0, 0, INT32)
    assert q.tolist() == [2**24 + 1, -(2**30) - 1, 2**31 - 1, -(2**31)]
    assert dequantize(q, 1.0, 0, dtype=np.float64).tolist()[:2] == bias.tolist()[:2]
    assert quantize([1e30, -1.0], 1.0, 5, UINT32).tolist() == [2**32 - 1, 4]


def test_float16_and_bfloat16_round_to_nearest_and_saturate():
    x = np.array([1.0 + 2**-9, 1e38, -1e38, 65519.0], np.float32)
    assert quantize(x, 1.0, 0, FLOAT16).tolist() == [1.001953125, 65504.0, -65504.0, 65504.0]
    wide = quantize(np.array([1.0 + 2**-9, 3.4e38], np.float32), 1.0, 0, BFLOAT16)
    assert wide.dtype == ml_dtypes.bfloat16
    assert wide.astype(np.float64).tolist() == [1.0, BFLOAT16.highest]


@settings(max_examples=100, deadline=None)
@given(problem=problems(np.float32))
def test_fake_quantize_is_idempotent(problem):
    x, scale, mode, axis, block, rng = problem
    zero_point = zero_points(INT8, scale.shape, rng)
    spread = spread_arguments(mode, axis, block)
    once = fake_quantize(x, scale, zero_point, INT8, **spread)
    assert once.dtype == x.dtype
    assert once.shape == x.shape
    np.testing.assert_array_equal(once, fake_quantize(once, scale, zero_point, INT8, **spread))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_fake_quantize_keeps_the_float_dtype(dtype):
    assert fake_quantize(np.ones(3, dtype), 0.5, 0, INT8).dtype == dtype


def test_parameters_that_do_not_fit_the_tensor_are_refused():
    x = np.zeros((4, 6), np.float32)
    with pytest.raises(RecipeError, match="need an axis"):
        quantize(x, np.ones(4), 0, INT8)
    with pytest.raises(RecipeError, match="axis 1 of shape"):
        quantize(x, np.ones(4), 0, INT8, axis=1)
    with pytest.raises(RecipeError, match="blocks of 4"):
        quantize(x, np.ones((4, 3)), 0, INT8, axis=1, block_size=4)
    with pytest.raises(RecipeError, match="need an axis"):
        dequantize(x.astype(np.int8), np.ones(4), 0, axis=2)


def test_empty_tensors_pass_through():
    x = np.zeros((0, 3), np.float32)
    assert quantize(x, 1.0, 0, UINT8).shape == (0, 3)
    assert dequantize(np.zeros((0, 3), np.uint8), 1.0, 0).shape == (0, 3)


@pytest.mark.parametrize(
    ("dtype", "value", "zero_point", "expected"),
    [
        (np.int32, 2**31 - 1, -(2**31), 2.0**32 - 1),
        (np.uint32, 2**32 - 1, 0, 2.0**32 - 1),
        (np.int8, 127, -128, 255.0),
    ],
)
def test_differences_beyond_32_bits_do_not_wrap(dtype, value, zero_point, expected):
    found = dequantize(np.array([value], dtype), 1.0, zero_point, dtype=np.float64)
    assert found.tolist() == [expected]
