"""MatMulBnb4 in the graph: what it computes in ONNX Runtime, which nodes, and what stays."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from support.bnb4 import LEVELS, dequantize_blocks
from support.models import (
    FLOAT,
    FLOAT16,
    build,
    constants_of,
    info,
    make_branching_products,
    make_mlp,
    node,
    normal,
    ops,
    retype,
    run,
    weight,
)

from bitwright import graph
from bitwright.emit.bnb4 import BLOCK_SIZES, FP4, NF4, emit_bnb4, quantize_blocks
from bitwright.errors import ModelError, RecipeError

formats = pytest.mark.parametrize("quant_type", [FP4, NF4], ids=["fp4", "nf4"])


def quantize(model, **options):
    """Return the quantized model as a message, and why nodes were left float."""
    work = graph.load_model(model)
    graph.normalize(work)
    skipped = emit_bnb4(work, **options)
    graph.check_model(work)
    return ir.to_proto(work), skipped


def one_product(k, n, *, dtype=np.float32, seed=0, **options):
    onnx_type = FLOAT16 if dtype is np.float16 else FLOAT
    constants = {"w": normal(k, n, seed=seed, dtype=dtype)}
    inputs, outputs = [info("x", ["m", k], onnx_type)], [info("y", ["m", n], onnx_type)]
    nodes = [node("MatMul", ["x", "w"], ["y"], name="mm")]
    return build(nodes, inputs, outputs, constants, **options)


def dequantized(model, name, quant_type, block_size, shape):
    stored = constants_of(model)
    k, n = shape
    flat = dequantize_blocks(
        stored[f"{name}_Bnb4"], stored[f"{name}_absmax"], quant_type, block_size, k * n
    )
    return flat.reshape(n, k).T


@formats
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("shape", [(64, 32), (33, 5), (7, 3), (1, 1), (100, 20), (256, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.sampled(60)
def test_the_runtime_computes_what_the_stored_weights_say(quant_type, block_size, shape, dtype):
    """Also where rows end inside a block, the last block is short, or half a byte is left over."""
    model = one_product(*shape, dtype=dtype)
    quantized, _ = quantize(model, quant_type=quant_type, block_size=block_size)
    x = normal(5, shape[0], seed=1, dtype=dtype)
    expected = x.astype(np.float64) @ dequantized(quantized, "w", quant_type, block_size, shape)
    (actual,) = run(quantized, {"x": x})
    assert actual.dtype == dtype
    tolerance = 2e-6 if dtype is np.float32 else 3e-3
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * np.sqrt(shape[0]) * 5)


@formats
def test_the_node_says_its_sizes_and_keeps_its_output(quant_type):
    quantized, skipped = quantize(one_product(48, 8), quant_type=quant_type, block_size=32)
    (only,) = quantized.graph.node
    assert (only.op_type, only.domain, only.name) == ("MatMulBnb4", "com.microsoft", "mm_Bnb4")
    assert list(only.input) == ["x", "w_Bnb4", "w_absmax"] and list(only.output) == ["y"]
    attributes = {a.name: helper.get_attribute_value(a) for a in only.attribute}
    assert attributes == {"K": 48, "N": 8, "block_size": 32, "quant_type": quant_type}
    assert {t.name for t in quantized.graph.initializer} == {"w_Bnb4", "w_absmax"}
    assert {i.domain: i.version for i in quantized.opset_import} == {"": 17, "com.microsoft": 1}
    assert skipped == {}


def test_vectors_and_stacks_of_matrices_are_multiplied_as_before():
    for shape in ([32], [2, 3, 32], [2, 1, 3, 32]):
        model = build(
            [node("MatMul", ["x", "w"], ["y"], name="mm")],
            {"x": shape},
            {"y": [*shape[:-1], 6]},
            {"w": weight(32, 6)},
        )
        quantized, _ = quantize(model, block_size=16)
        x = normal(*shape, seed=2)
        expected = x @ dequantized(quantized, "w", NF4, 16, (32, 6))
        np.testing.assert_allclose(run(quantized, {"x": x})[0], expected, atol=1e-5)


def test_a_weight_that_two_nodes_read_is_stored_once():
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="one"),
        node("MatMul", ["a", "w"], ["y"], name="two"),
    ]
    model = build(nodes, {"x": [2, 16]}, {"y": [2, 16]}, {"w": weight(16, 16)})
    quantized, _ = quantize(model)
    assert [t.name for t in quantized.graph.initializer] == ["w_Bnb4", "w_absmax"]
    w = dequantized(quantized, "w", NF4, 64, (16, 16))
    x = normal(2, 16)
    np.testing.assert_allclose(run(quantized, {"x": x})[0], x @ w @ w, atol=1e-5)


def test_a_weight_that_something_else_reads_stays_for_it():
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="mm"),
        node("Add", ["a", "w"], ["y"], name="add"),
    ]
    model = build(nodes, {"x": [16, 16]}, {"y": [16, 16]}, {"w": weight(16, 16)})
    quantized, _ = quantize(model)
    assert {t.name for t in quantized.graph.initializer} == {"w", "w_Bnb4", "w_absmax"}
    run(quantized, {"x": normal(16, 16)})


def test_excluded_nodes_stay_as_they_are():
    model = make_mlp()
    quantized, skipped = quantize(model, exclude=["second"])
    assert ops(quantized)["MatMul"] == ops(quantized)["MatMulBnb4"] == 1
    assert skipped == {"second": "it is excluded by name"}
    np.testing.assert_array_equal(constants_of(quantized)["w2"], constants_of(model)["w2"])


def test_products_in_branches_are_quantized_whoever_holds_their_weight():
    outer, inner = weight(16, 8, seed=1), weight(16, 8, seed=2)
    model = make_branching_products(16)
    quantized, _ = quantize(model, quant_type=FP4, block_size=16)
    assert [t.name for t in quantized.graph.initializer] == ["w_Bnb4", "w_absmax"]
    x = normal(2, 16)
    for condition, floats in ((True, outer), (False, inner)):
        (alone, _) = quantize(
            build(
                [node("MatMul", ["x", "w"], ["y"], name="m")],
                {"x": [2, 16]},
                {"y": [2, 8]},
                {"w": floats},
            ),
            quant_type=FP4,
            block_size=16,
        )
        expected = x @ dequantized(alone, "w", FP4, 16, (16, 8))
        (actual,) = run(quantized, {"x": x, "c": np.array(condition)})
        np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_weights_in_constant_nodes_and_functions_are_found():
    tensor = onnx.numpy_helper.from_array(weight(16, 8), "t")
    constant = build(
        [
            node("Constant", [], ["w"], value=tensor),
            node("MatMul", ["x", "w"], ["y"], name="mm"),
        ],
        {"x": [2, 16]},
        {"y": [2, 8]},
    )
    assert ops(quantize(constant)[0]) == {"MatMulBnb4": 1}
    function = helper.make_function(
        "local",
        "Linear",
        ["a", "b"],
        ["c"],
        [node("MatMul", ["a", "b"], ["c"])],
        [helper.make_opsetid("", 17)],
    )
    called = build(
        [node("Linear", ["x", "w"], ["y"], name="call", domain="local")],
        {"x": [2, 16]},
        {"y": [2, 8]},
        {"w": weight(16, 8)},
        domains=["local"],
        functions=[function],
    )
    assert ops(quantize(called)[0]) == {"MatMulBnb4": 1}


def test_names_that_are_taken_are_not_taken_twice():
    nodes = [
        node("MatMul", ["x", "w"], ["w_Bnb4"], name="mm"),
        node("Relu", ["w_Bnb4"], ["y"], name="mm_Bnb4"),
    ]
    model = build(nodes, {"x": [2, 16]}, {"y": [2, 8]}, {"w": weight(16, 8)})
    quantized, _ = quantize(model)
    run(quantized, {"x": normal(2, 16)})


def test_what_cannot_be_stored_in_4_bits_stays_with_a_reason():
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="fine"),
        node("MatMul", ["a", "cube"], ["b"], name="stack"),
        node("MatMul", ["b", "x"], ["y"], name="computed"),
    ]
    constants = {"w": weight(16, 16), "cube": normal(3, 16, 16)}
    model = build(nodes, {"x": [16, 16]}, {"y": [3, 16, 16]}, constants)
    quantized, skipped = quantize(model)
    assert skipped == {
        "stack": "its weight has 3 axes, not 2",
        "computed": "its second input is computed at run time",
    }
    run(quantized, {"x": normal(16, 16)})


def test_nothing_quantized_is_an_error_with_the_reasons():
    with pytest.raises(ModelError, match="MatMul 'first': it is excluded by name"):
        quantize(make_mlp(), exclude=["first", "second"])
    gemm = build(
        [node("Gemm", ["x", "w"], ["y"], name="fc")],
        {"x": [2, 8]},
        {"y": [2, 4]},
        {"w": weight(8, 4)},
    )
    with pytest.raises(ModelError, match="it has no MatMul"):
        quantize(gemm)
    doubles = retype(make_mlp(), np.float64, TensorProto.DOUBLE)
    with pytest.raises(ModelError, match="its weight is double, not float32 or float16"):
        quantize(doubles)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_is_refused_by_name(bad):
    broken = weight(16, 4)
    broken[3, 2] = bad
    model = build(
        [node("MatMul", ["x", "w"], ["y"], name="mm")], {"x": [1, 16]}, {"y": [1, 4]}, {"w": broken}
    )
    with pytest.raises(ModelError, match=r"weight 'w' holds NaN or infinity.* exclude 'mm'"):
        quantize(model)


@pytest.mark.parametrize("block_size", [0, 8, 48, 512, True, "64"])
def test_block_sizes_without_a_kernel_are_refused(block_size):
    with pytest.raises(RecipeError, match="16, 32, 64, 128 or 256"):
        quantize(make_mlp(), block_size=block_size)


def test_excluding_a_node_that_is_not_there_is_an_error():
    with pytest.raises(RecipeError, match="Did you mean 'second'"):
        quantize(make_mlp(), exclude=["secnd"])


@formats
@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 63, 100])
def test_values_come_back_within_half_a_gap(quant_type, count):
    flat = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    packed, absmax = quantize_blocks(flat, quant_type, 16)
    back = dequantize_blocks(packed, absmax, quant_type, 16, count)
    gap = np.diff(np.sort(LEVELS[quant_type])).max() / 2 + 1e-6
    assert np.all(np.abs(back - flat) <= gap * np.repeat(absmax, 16)[:count])
    first = np.argmax(np.abs(flat[:16]))
    assert back[first] == flat[first]


@formats
def test_blocks_of_zeros_stay_zero(quant_type):
    packed, absmax = quantize_blocks(np.zeros(33, np.float32), quant_type, 16)
    assert not absmax.any()
    assert not LEVELS[quant_type][np.stack([packed >> 4, packed & 15])].any()


@formats
def test_the_smallest_floats_are_zeros(quant_type):
    """The runtime's kernel alone multiplies them by an infinite inverse."""
    flat = np.zeros(32, np.float32)
    flat[0], flat[16] = np.finfo(np.float32).smallest_subnormal, 1.0
    packed, absmax = quantize_blocks(flat, quant_type, 16)
    flat[0] = 0
    np.testing.assert_array_equal(dequantize_blocks(packed, absmax, quant_type, 16, 32), flat)
