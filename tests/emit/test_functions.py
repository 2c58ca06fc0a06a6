"""The bodies of the vendor's operators, run by ONNX Runtime, give the bits of our numerics."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from bitwright.emit.functions.scaled import (
    VENDOR_DOMAIN,
    Use,
    distinguishing_attributes,
    scaled_function,
)
from bitwright.emit.functions.shared_exponent import (
    block_attributes,
    block_function,
    block_op,
    distinguishing_block_attributes,
)
from bitwright.errors import RecipeError
from bitwright.numerics.quantize import fake_quantize, quantize
from bitwright.numerics.shared_exponent import round_to_shared_exponents
from bitwright.numerics.types import (
    BFLOAT16,
    BFP16,
    FLOAT8E4M3FN,
    FLOAT16,
    INT8,
    INT16,
    INT32,
    MX6,
    MX9,
    MXFP4E2M1,
    MXFP8E4M3,
    MXINT8,
    QTYPES,
    UINT32,
)

SCALED = [t for t in QTYPES.values() if not t.shares_exponent and t.bits >= 8]
BLOCKS = [t for t in QTYPES.values() if t.shares_exponent]
OPSETS = [15, 18, 21]
PAIR = ("VitisQuantizeLinear", "VitisDequantizeLinear")


def run(nodes, functions, x, constants=(), *, opset):
    """Run nodes of the vendor's domain that turn x into y."""
    dtype = helper.np_dtype_to_tensor_dtype(x.dtype)
    inputs = [helper.make_tensor_value_info("x", dtype, x.shape)]
    outputs = [helper.make_tensor_value_info("y", dtype, x.shape)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(constants))
    domains = {"": opset, VENDOR_DOMAIN: 1, "com.microsoft": 1}
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(*item) for item in domains.items()],
        ir_version=8 if opset < 21 else 10,
        functions=[ir.to_proto(function) for function in functions],
    )
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})[0]


def run_scaled(qtype, x, scale, zero_point, *, axis=0, uses=None, ops=PAIR, opset=21):
    uses = uses or [Use(qtype, np.ndim(scale) > 0, not np.any(zero_point))]
    values = [ir.Value(name=name) for name in ("x", "stored", "y")]
    if len(ops) == 1:
        del values[1]
    scale_value, zero_value = ir.Value(name="scale"), ir.Value(name="zero")
    nodes = [
        ir.node(
            op,
            [source, scale_value, zero_value],
            {"axis": axis, **distinguishing_attributes(op, uses, qtype)},
            domain=VENDOR_DOMAIN,
            outputs=[target],
        )
        for op, source, target in zip(ops, values, values[1:], strict=False)
    ]
    zeros = np.broadcast_to(zero_point, np.shape(scale)).astype(qtype.dtype)
    constants = [
        numpy_helper.from_array(np.asarray(scale), "scale"),
        ir.to_proto(ir.Tensor(zeros, ir.DataType(qtype.onnx_type), name="zero")),
    ]
    functions = [scaled_function(op, uses, opset) for op in ops]
    return run([ir.to_proto(n) for n in nodes], functions, x, constants, opset=opset)


def hard_values(seed=0):
    """Random numbers of all sizes, halves, ends of types and what lies beyond them."""
    random = np.random.default_rng(seed)
    ends = [0.0, -0.0, 448, 464, 465, 57344, 61440, 65504, 65519, 65520, 2.0**31, -(2.0**31)]
    ends += [3.3895e38, 3.4e38, -3.4e38, 1e-45, np.inf, -np.inf]
    sizes = 10.0 ** random.uniform(-6, 12, 1000)
    numbers = np.concatenate(
        [random.standard_normal(1000) * sizes, np.arange(-300, 300) * 0.125, ends]
    )
    return numbers[: numbers.size // 18 * 18].astype(np.float32).reshape(-1, 6)


def at_opset(qtype, opset):
    if qtype.min_opset == 19 and opset < 19:
        pytest.skip("no casts to float8")


@pytest.mark.parametrize("qtype", SCALED, ids=str)
@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.sampled(15)
def test_a_pair_gives_the_bits_of_the_numerics(qtype, opset):
    at_opset(qtype, opset)
    x = hard_values()
    for scale, zero_point in ((0.25, 0), (0.0123, 3), (1.0, 0)):
        step = np.float32(scale)
        with np.errstate(over="ignore"):
            expected = fake_quantize(x, step, zero_point, qtype)
        actual = run_scaled(qtype, x, step, zero_point, opset=opset)
        np.testing.assert_array_equal(actual, expected)
        fused = run_scaled(qtype, x, step, zero_point, ops=("FixNeuron",), opset=opset)
        np.testing.assert_array_equal(fused, expected)


@pytest.mark.parametrize("qtype", SCALED, ids=str)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.sampled(15)
def test_each_channel_has_its_own_scale(qtype, axis):
    x = hard_values().reshape(-1, 3, 6)
    scale = np.random.default_rng(1).uniform(1e-3, 1, x.shape[axis]).astype(np.float32)
    for zero_point in (0, 2):
        with np.errstate(over="ignore"):
            expected = fake_quantize(x, scale, np.full(scale.shape, zero_point), qtype, axis=axis)
        actual = run_scaled(qtype, x, scale, zero_point, axis=axis)
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("qtype", SCALED, ids=str)
@pytest.mark.parametrize("ops", [PAIR, ("FixNeuron",)], ids=["pair", "fused"])
def test_types_of_all_families_share_one_body(qtype, ops):
    x = hard_values()
    scale = np.random.default_rng(2).uniform(1e-3, 1, 6).astype(np.float32)
    everything = [Use(t, per_channel=True) for t in SCALED]
    with np.errstate(over="ignore"):
        per_channel = fake_quantize(x, scale, np.full(6, 1), qtype, axis=1)
        per_tensor = fake_quantize(x, np.float32(0.1), 0, qtype)
    actual = run_scaled(qtype, x, scale, 1, axis=1, uses=everything, ops=ops)
    np.testing.assert_array_equal(actual, per_channel)
    actual = run_scaled(qtype, x, np.float32(0.1), 0, uses=everything, ops=ops)
    np.testing.assert_array_equal(actual, per_tensor)


@pytest.mark.parametrize("qtype", [INT32, UINT32, BFLOAT16], ids=str)
def test_scalars_stay_scalars_where_others_have_channels(qtype):
    x = np.array(1.5, np.float32)
    uses = [Use(qtype, per_channel=True)]
    actual = run_scaled(qtype, x, np.float32(0.5), 1, uses=uses)
    assert actual.shape == () and actual == 1.5


@pytest.mark.parametrize("qtype", [FLOAT16, BFLOAT16, FLOAT8E4M3FN], ids=str)
def test_nan_stays_nan_and_infinities_saturate_in_float_types(qtype):
    x = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    actual = run_scaled(qtype, x, np.float32(1), 0)
    np.testing.assert_array_equal(actual, [np.nan, qtype.highest, qtype.lowest, 1])


def test_32_bits_are_divided_in_float32_as_the_vendor_does():
    x = np.random.default_rng(6).uniform(-1e7, 1e7, 100).astype(np.float32)
    scale = np.float32(0.0123)
    expected = np.rint(x / scale).astype(np.int64)  # a float32 quotient
    np.testing.assert_array_equal(quantize(x, scale, 0, INT32), expected)
    assert np.any(expected != np.rint(x.astype(float) / float(scale)))


@pytest.mark.parametrize("qtype", [INT16, INT32, BFLOAT16], ids=str)
def test_half_float_models_keep_their_type(qtype):
    x = np.random.default_rng(3).standard_normal((4, 8)).astype(np.float16)
    actual = run_scaled(qtype, x, np.float16(0.0625), 0, opset=21)
    assert actual.dtype == np.float16
    expected = fake_quantize(x.astype(np.float32), np.float32(0.0625), 0, qtype)
    np.testing.assert_allclose(actual, expected, rtol=2**-10)


# Blocks ---------------------------------------------------------------------------------------


def run_blocks(qtype, x, axis, *, types=None, opset=21):
    types = types or [qtype]
    attributes = block_attributes(qtype, axis) | distinguishing_block_attributes(types, qtype)
    node = helper.make_node(block_op(qtype), ["x"], ["y"], domain=VENDOR_DOMAIN, **attributes)
    return run([node], [block_function(types, opset)], x, opset=opset)


def block_values():
    """Ordinary numbers, halves, tiny numbers, and random bits with NaN and infinities."""
    random = np.random.default_rng(4)
    shape = (2, 19, 5)
    bits = random.integers(0, 2**32, shape, np.uint64).astype(np.uint32).view(np.float32)
    normal = random.standard_normal(shape).astype(np.float32)
    largest = np.sign(normal) * np.finfo(np.float32).max
    kinds = [normal, np.round(normal * 64) / 64, normal * np.float32(1e-38), bits, largest]
    return np.concatenate(kinds)


@pytest.mark.parametrize("qtype", BLOCKS, ids=str)
@pytest.mark.parametrize("opset", OPSETS)
def test_blocks_have_the_bits_of_the_numerics(qtype, opset):
    x = block_values()
    actual = run_blocks(qtype, x, 1, opset=opset)
    np.testing.assert_array_equal(actual, round_to_shared_exponents(x, qtype, 1))


@pytest.mark.parametrize("qtype", [BFP16, MX9, MXINT8, MXFP8E4M3], ids=str)
@pytest.mark.parametrize("axis", [0, 2, -1])
def test_blocks_may_lie_along_any_axis(qtype, axis):
    x = np.random.default_rng(5).standard_normal((33, 2, 40)).astype(np.float32)
    np.testing.assert_array_equal(
        run_blocks(qtype, x, axis), round_to_shared_exponents(x, qtype, axis)
    )


def test_a_scalar_is_a_block_of_its_own():
    x = np.array(0.3, np.float32)
    np.testing.assert_array_equal(run_blocks(BFP16, x, 0), round_to_shared_exponents(x, BFP16))


@pytest.mark.parametrize(
    "types", [[MXINT8, MXFP8E4M3], [MXFP8E4M3, MXFP4E2M1], [MX9, MX6]], ids=str
)
def test_formats_of_one_operator_share_one_body(types):
    x = block_values()
    for qtype in types:
        actual = run_blocks(qtype, x, 1, types=types)
        np.testing.assert_array_equal(actual, round_to_shared_exponents(x, qtype, 1))


@pytest.mark.parametrize(
    ("qtype", "method", "block", "rounding"),
    [(BFP16, "to_bfp", 8, 0), (MX9, "to_bfp_prime", 16, 2)],
)
def test_block_floats_have_the_documented_attributes(qtype, method, block, rounding):
    assert block_attributes(qtype, 1) == {
        "bfp_method": method,
        "axis": 1,
        "bit_width": 16,
        "block_size": block,
        "rounding_mode": rounding,
        "sub_block_size": 2,
        "sub_block_shift_bits": 1,
        "convert_to_bfloat_before_bfp": 0,
        "use_compiler_version_cpu_kernel": 0,
    }


def test_block_floats_with_different_blocks_cannot_share_a_body():
    with pytest.raises(RecipeError, match="bfp16 and mx9 are all written as BFPFixNeuron"):
        block_function([BFP16, MX9], 21)


def test_8_bits_are_left_to_the_standard_operator():
    body = scaled_function("VitisQuantizeLinear", [Use(INT8)], 17)
    assert [node.op_type for node in body] == ["QuantizeLinear"]
    assert [node.domain for node in body] == [""]
    below_21 = scaled_function("VitisQuantizeLinear", [Use(INT16)], 17)
    assert [node.domain for node in below_21] == ["com.microsoft"]
