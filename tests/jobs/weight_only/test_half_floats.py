"""Weights in blocks beside float16, and bitsandbytes' formats, from one float model."""

from collections import Counter

import numpy as np
import pytest
from onnx import TensorProto
from support.language_models import make_block, make_samples
from support.models import as_proto, build, info, node, run, weight

import bitwright
from bitwright.errors import RecipeError


def ops(model):
    return Counter(node.op_type for node in as_proto(model).graph.node)


@pytest.mark.parametrize("base", ["int4-rtn", "int8-weights"])
def test_what_is_left_of_float32_becomes_float16_with_its_scales(base):
    model, samples = make_block(), make_samples(4)
    recipe = {"base": base, "float16": "cast"}
    made = bitwright.quantize(model, recipe=recipe, data=samples)
    plain = bitwright.quantize(model, recipe=base, data=samples)
    assert ops(made.model)["MatMulNBits"] == ops(plain.model)["MatMulNBits"] > 0
    tensors = as_proto(made.model).graph.initializer
    assert TensorProto.FLOAT not in {one.data_type for one in tensors if np.prod(one.dims) > 1}
    assert made.size < plain.size
    # Held against the float32 model, which half floats are near to.
    assert made.judgement.loss == pytest.approx(plain.judgement.loss, rel=0.2)
    (one,), (other,) = run(made.model, samples[0]), run(plain.model, samples[0])
    assert one.dtype == np.float32 and np.corrcoef(one.ravel(), other.ravel())[0, 1] > 0.99


def test_a_plan_of_it_is_applied_again():
    model = make_block()
    made = bitwright.quantize(model, recipe={"base": "int4-rtn", "float16": "cast"})
    again = bitwright.apply_plan(made.plan, model)
    assert as_proto(again.model).SerializeToString() == as_proto(made.model).SerializeToString()


def test_bnb4_stores_products_and_says_what_it_leaves():
    model, samples = make_block(), make_samples(4)
    made = bitwright.quantize(model, recipe="bnb4", data=samples)
    assert ops(made.model)["MatMulBnb4"] > 0 and not ops(made.model)["MatMulNBits"]
    assert made.size < made.float_size / 3 and made.outputs[0].agreement > 0.5
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("Gemm", ["a", "w"], ["y"], "second")]
    both = build(nodes, {"x": [4, 64]}, [info("y", [4, 64])], {"w": weight(64, 64)})
    plan = bitwright.quantize(both, recipe="bnb4").plan
    assert plan.nodes["second"].reason == "MatMulBnb4 takes the weights of MatMul"


def test_contradictions_are_refused():
    with pytest.raises(RecipeError, match="float16='cast' is for weights alone"):
        bitwright.load_recipe({"base": "int8", "float16": "cast"})
    with pytest.raises(RecipeError, match="change nothing but block_size"):
        bitwright.load_recipe({"base": "bnb4", "weights": {"bits": 8}})
