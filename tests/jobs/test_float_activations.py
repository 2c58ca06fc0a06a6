"""Where an activation stays float, so does the weight that multiplies it.

ONNX Runtime turns a dequantized int8 weight before a product of floats into an 8-bit block kernel
by itself, which rounds the activation and is slower than float from some twenty rows on.
"""

from __future__ import annotations

import msgspec
import pytest
from support.models import as_proto, build, make_mlp, make_samples, make_transformer, node, normal

import bitwright
from bitwright.graph.subgraphs import iter_messages


def weight_only_products(model):
    """Return the products that read a stored integer weight and a float activation."""
    found = []
    for _, graph in iter_messages("", as_proto(model).graph):
        stored = {tensor.name for tensor in graph.initializer}
        makers = {name: one for one in graph.node for name in one.output}
        for product in graph.node:
            if product.op_type not in ("MatMul", "Gemm"):
                continue
            left, right = (makers.get(name) for name in product.input[:2])
            pairs = [one is not None and one.op_type == "DequantizeLinear" for one in (left, right)]
            if pairs == [False, True] and right.input[0] in stored:
                found.append(product.name)
    return found


def two_products():
    """Return a model whose first product reads what only floats are made of."""
    nodes = [
        node("Erf", ["x"], ["e"], "erf"),
        node("MatMul", ["e", "w1"], ["h"], "first"),
        node("Exp", ["h"], ["a"], "exp"),
        node("MatMul", ["a", "w2"], ["y"], "second"),
    ]
    weights = {"w1": normal(16, 16, seed=1, size=0.1), "w2": normal(16, 16, seed=2, size=0.1)}
    return build(nodes, {"x": [4, 16]}, {"y": None}, weights)


PLACED = {"base": "int8-per-channel", "place": {"purpose": "balanced", "cpu": "x86-vnni"}}
MODELS = {"transformer": make_transformer, "mlp": make_mlp, "float neighbours": two_products}


def test_the_pattern_is_recognized():
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["w"], "dequantizer"),
        node("MatMul", ["x", "w"], ["y"], "product"),
    ]
    constants = {"q": normal(4, 4).astype("int8"), "s": normal(1).reshape(())}
    model = build(nodes, {"x": [2, 4]}, {"y": None}, constants)
    assert weight_only_products(model) == ["product"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "recipe", ["int8", "int8-per-channel", PLACED, "a16w8", "int8-dynamic"], ids=str
)
def test_no_default_stores_a_weight_whose_activation_is_float(recipe, model):
    made = MODELS[model]()
    data = None if recipe == "int8-dynamic" else make_samples(made, 8)
    result = bitwright.quantize(made, data=data, recipe=recipe, progress=False)
    assert weight_only_products(result) == []


@pytest.mark.parametrize("model", MODELS)
def test_mixed_precision_stores_none_either(model):
    """Some products float, some with 16 bits, chosen by name and by a plan that fell back."""
    made = MODELS[model]()
    products = [one.name for one in made.graph.node if one.op_type in ("MatMul", "Gemm")]
    samples = make_samples(made, 8)
    overrides = {products[0]: {"keep_float": True}, products[-1]: {"activation": "uint16"}}
    mixed = {"base": "int8-per-channel", "overrides": overrides}
    assert weight_only_products(bitwright.quantize(made, data=samples, recipe=mixed)) == []
    plan = bitwright.make_plan(made, data=samples, recipe="int8-per-channel")
    float_node = msgspec.structs.replace(plan.nodes[products[0]], action="float")
    edited = msgspec.structs.replace(plan, nodes={**plan.nodes, products[0]: float_node})
    assert weight_only_products(bitwright.apply_plan(edited, made)) == []
