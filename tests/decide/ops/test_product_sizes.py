"""Which products are too small for integers, by the rules that ModelOpt has for TensorRT."""

import onnx_ir as ir
import pytest

from bitwright.decide.ops.product_sizes import (
    attention_part,
    is_first,
    multiply_adds,
    why_too_small,
)
from bitwright.targets import find_target
from bitwright.verification.rules import read_rules
from bitwright.verification.rules.product_sizes import ProductSizes

RULES = {
    name: rule.sizes
    for name, rule in read_rules(find_target("nvidia-tensorrt")).items()
    if isinstance(rule, ProductSizes)
}


def conv(**attributes):
    return ir.node("Conv", [ir.val("x"), ir.val("w")], attributes)


@pytest.mark.parametrize(
    ("weight", "group", "first", "fits"),
    [
        ((16, 16, 3, 3), 1, False, True),
        ((64, 15, 3, 3), 1, False, True),  # 64 is a multiple of 8, and enough
        ((64, 15, 3, 1), 1, False, False),  # no square
        ((8, 8, 3, 3), 1, False, False),  # neither side is enough
        ((8, 3, 3, 3), 1, True, True),  # but for the first of the model
        ((6, 3, 3, 3), 1, True, False),  # no multiple of 8
        ((32, 1, 3, 3), 32, False, True),  # depthwise
        ((32, 1, 1, 1), 32, False, False),
        ((12, 1, 3, 3), 12, False, False),
    ],
)
def test_int8_convolutions(weight, group, first, fits):
    node = conv(group=group)
    found = why_too_small(node, RULES["small_convolutions"], None, weight, first=first)
    assert (found is None) == fits


@pytest.mark.parametrize(
    ("weight", "fits"),
    [((32, 32, 3, 3), True), ((16, 32, 3, 3), False), ((32, 32, 7, 7), False)],
)
def test_float8_convolutions(weight, fits):
    found = why_too_small(conv(), RULES["float8_convolutions"], None, weight, first=True)
    assert (found is None) == fits


@pytest.mark.parametrize(
    ("op", "attributes", "read", "weight", "fits"),
    [
        ("MatMul", {}, (4, 32), (32, 16), True),
        ("MatMul", {}, (1, 32), (32, 16), False),
        ("MatMul", {}, (None, 32), (32, 16), True),
        ("MatMul", {}, (4, 32), (32, 1), False),
        ("Gemm", {"transB": 1}, (4, 32), (16, 32), True),
        ("Gemm", {"transB": 1}, (4, 8), (16, 8), False),
        ("Gemm", {"transA": 1}, (32, 1), (32, 16), False),
        ("Conv", {}, (1, 1, 1, 1), (1, 1, 1, 1), True),  # which another rule is about
    ],
)
def test_products_of_matrices(op, attributes, read, weight, fits):
    node = ir.node(op, [ir.val("x"), ir.val("w")], attributes)
    found = why_too_small(node, RULES["small_products"], read, weight, first=True)
    assert (found is None) == fits


def attention():
    q, k, v, mask = (ir.val(name) for name in ("q", "k", "v", "mask"))
    scores = ir.node("MatMul", [q, k])
    added = ir.node("Add", [scores.outputs[0], mask])
    softmax = ir.node("Softmax", added.outputs)
    pair = ir.node("DequantizeLinear", ir.node("QuantizeLinear", softmax.outputs).outputs)
    context = ir.node("MatMul", [pair.outputs[0], v])
    return scores, context


@pytest.mark.parametrize(
    ("rule", "length", "head", "fits"),
    [
        ("long_attention", 512, 64, True),
        ("long_attention", 513, 64, False),
        ("long_attention", None, 64, True),
        ("float8_attention", 1024, 64, True),
        ("float8_attention", 16, 8, False),
        ("float8_attention", 16, 257, False),
    ],
)
def test_attention(rule, length, head, fits):
    scores, context = attention()
    shapes = {
        scores: ((1, 2, length, head), (1, 2, head, length)),
        context: ((1, 2, length, length), (1, 2, length, head)),
    }
    for node, (read, other) in shapes.items():
        assert (why_too_small(node, RULES[rule], read, other, first=False) is None) == fits


def test_a_product_outside_of_an_attention_is_none():
    scores, context = attention()
    assert [attention_part(node) for node in (scores, context)] == ["scores", "context"]
    assert attention_part(ir.node("MatMul", [ir.val("x"), ir.val("y")])) is None


def test_the_first_convolution_reads_the_input_through_pads_and_pairs():
    first = conv()
    pad = ir.node("Pad", [ir.val("x")])
    assert is_first(first) and is_first(ir.node("Conv", [pad.outputs[0], ir.val("w")]))
    relu = ir.node("Relu", first.outputs)
    assert not is_first(ir.node("Conv", [relu.outputs[0], ir.val("w")]))


def value(shape):
    return ir.Value(name="v", shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))


def counted(op, inputs, result, *, domain="", open_size=None, **attributes):
    values = [None if shape is None else value(shape) for shape in inputs]
    given = [ir.AttrInt64(name, number) for name, number in attributes.items()]
    node = ir.Node(domain, op, values, given, outputs=[value(result)])
    return multiply_adds(node, open_size=open_size)


@pytest.mark.parametrize(
    ("op", "inputs", "result", "attributes", "expected"),
    [
        ("Conv", [[1, 4, 8, 8], [6, 4, 3, 3]], [1, 6, 6, 6], {}, 6 * 36 * 4 * 9),
        ("Conv", [[1, 4, 8, 8], [4, 1, 3, 3]], [1, 4, 6, 6], {"group": 4}, 4 * 36 * 9),
        ("ConvTranspose", [[1, 4, 5, 5], [4, 6, 3, 3]], [1, 6, 7, 7], {}, 4 * 25 * 6 * 9),
        ("Gemm", [[2, 8], [8, 3]], [2, 3], {}, 2 * 3 * 8),
        ("Gemm", [[8, 2], [8, 3]], [2, 3], {"transA": 1}, 2 * 3 * 8),
        ("MatMul", [[5, 2, 8], [8, 3]], [5, 2, 3], {}, 5 * 2 * 3 * 8),
        ("MatMul", [[8], [8, 3]], [3], {}, 3 * 8),
        ("LSTM", [[7, 2, 5], [1, 12, 5], [1, 12, 3]], [7, 1, 2, 3], {}, 14 * (60 + 36)),
        ("Relu", [[2, 3]], [2, 3], {}, 0),
        ("MatMul", [["n", 8], [8, 3]], ["n", 3], {}, None),
    ],
)
def test_a_standard_operator(op, inputs, result, attributes, expected):
    assert counted(op, inputs, result, **attributes) == expected


@pytest.mark.parametrize(
    ("op", "inputs", "expected"),
    [
        # Its three projections, then scores and what they weigh, of 4 values a place.
        ("Attention", [[2, 5, 6], [6, 12]], 2 * 5 * 6 * 12 + 2 * (2 * 5 * 5 * 4)),
        # Queries and keys are given: scores and what they weigh.
        ("MultiHeadAttention", [[2, 5, 6], [2, 7, 6]], 2 * (2 * 5 * 7 * 6)),
        ("MultiHeadAttention", [[2, 5, 6], [2, 7, 2, 3]], None),
        ("MultiHeadAttention", [[5, 6], [2, 7, 6]], None),
        ("MultiHeadAttention", [[2, 5, 6], None], None),
    ],
)
def test_multiply_adds_of_attention(op, inputs, expected):
    assert counted(op, inputs, [2, 5, 4], domain="com.microsoft") == expected


def test_open_sizes_count_as_one_is_told():
    shapes = ("MatMul", [["n", 8], [8, 3]], ["n", 3])
    assert counted(*shapes, open_size=4) == 4 * 3 * 8
    assert counted(*shapes, open_size=1) == 3 * 8
