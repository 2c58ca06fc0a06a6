"""How many products an operator adds up, counted by hand."""

import onnx_ir as ir
import pytest

from bitwright.decide.ops.multiply_adds import multiply_adds


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
def test_attention(op, inputs, expected):
    assert counted(op, inputs, [2, 5, 4], domain="com.microsoft") == expected


def test_open_sizes_count_as_one_is_told():
    shapes = ("MatMul", [["n", 8], [8, 3]], ["n", 3])
    assert counted(*shapes, open_size=4) == 4 * 3 * 8
    assert counted(*shapes, open_size=1) == 3 * 8
