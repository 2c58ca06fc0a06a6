"""The float model that Quark quantizes."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.models import ops
from support.quark_configs import U8S8, quantize_config

from bitwright.compat.quark import QConfig
from bitwright.compat.quark.simplify import simplify
from bitwright.run import Session


def make(body, **shapes):
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {body}')
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        values = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    for number, node in enumerate(model.graph.node):
        node.name = f"node{number}"
    return model


PRODUCT = "g (float[1, 3, 8] x) => (float[1, 3, 4] y) { p = MatMul(x, w) y = Add(p, b) }"


@pytest.mark.parametrize(
    ("body", "shapes", "counts"),
    [
        (PRODUCT, {"w": (8, 4), "b": (4,)}, {"Reshape": 2, "Gemm": 1}),
        (PRODUCT.replace("1, 3", "3"), {"w": (8, 4), "b": (4,)}, {"Gemm": 1}),
        # A bias of other numbers for each row of a stack, one of another rank, weights in a stack.
        (PRODUCT, {"w": (8, 4), "b": (1, 3, 4)}, {"MatMul": 1}),
        (PRODUCT, {"w": (1, 8, 4), "b": (4,)}, {"MatMul": 1}),
        (PRODUCT.replace("3, 8] x", "N, 8] x"), {"w": (8, 4), "b": (4,)}, {"MatMul": 1}),
    ],
)
def test_a_product_with_a_bias_is_a_gemm(body, shapes, counts):
    model = make(body, **shapes)
    simple = simplify(model, {})
    assert {name: ops(simple)[name] for name in counts} == counts
    shape = [d.dim_value or 3 for d in model.graph.input[0].type.tensor_type.shape.dim]
    feed = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    before, after = (Session(each).run(feed)["y"] for each in (model, simple))
    np.testing.assert_allclose(before, after, rtol=1e-5, atol=1e-5)


def test_options_say_what_is_simplified():
    model = make(PRODUCT, w=(8, 4), b=(4,))
    assert simplify(model, {"SkipPreprocess": True}) is model
    norm = """g (float[3, 8] x) => (float[3, 4] y) {
        p = MatMul(x, w) s = Add(p, b) y = BatchNormalization(s, a, b, b, a) }"""
    model = make(norm, w=(8, 4), b=(4,))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "a"))
    kept = [ops(simplify(model, {"FoldBatchNorm": fold})) for fold in (True, False)]
    assert [each["BatchNormalization"] for each in kept] == [0, 1]


def test_the_bias_of_a_product_is_an_int32_and_a_hard_swish_stays_in_its_pieces():
    body = """g (float[1, 3, 8] x) => (float[1, 3, 4] y)
        <float three = {3.0}, float low = {0.0}, float high = {6.0}> {
        p = MatMul(x, w) s = Add(p, b) t = Add(s, three) c = Clip(t, low, high) m = Mul(s, c)
        y = Div(m, high) }"""
    made = quantize_config(QConfig(global_config=U8S8), make(body, w=(8, 4), b=(4,)))
    stored = {tensor.name: tensor.data_type for tensor in made.graph.initializer}
    assert stored["b_quantized"] == onnx.TensorProto.INT32
    assert stored["three_quantized"] == onnx.TensorProto.INT8  # a constant has the weights' type
    assert ops(made)["Div"] == 1 and not ops(made)["HardSigmoid"]
