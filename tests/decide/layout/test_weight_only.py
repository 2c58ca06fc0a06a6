"""Which weights a weight-only plan stores in blocks, and why the others stay float."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from support.models import build, node, normal

from bitwright.decide.layout.weight_only import plan_weights
from bitwright.recipe import Recipe, Selection, WeightOnly


def plan_of(nodes, constants, **fields):
    model = ir.from_proto(build(nodes, {"x": [64, 64]}, {"y": None}, constants))
    return plan_weights(model, Recipe(mode="weight-only", **fields))


def gemm(**attributes):
    """Return the plan of a Gemm and of a product that is stored in any case."""
    nodes = [
        node("Gemm", ["x", "w"], ["y"], "gemm", **attributes),
        node("MatMul", ["x", "v"], ["z"], "product"),
    ]
    return plan_of(nodes, {"w": normal(64, 64), "v": normal(64, 8)})


def table(**fields):
    """Return the plan of a table and a product that does not share it."""
    nodes = [
        node("Shape", ["x"], ["ids"], "shape"),
        node("Gather", ["t", "ids"], ["e"], "table"),
        node("MatMul", ["e", "w"], ["y"], "product"),
    ]
    return plan_of(nodes, {"t": normal(80, 64), "w": normal(64, 32)}, **fields)


@pytest.mark.parametrize(
    ("fields", "stored"),
    [
        ({}, False),
        ({"weights": WeightOnly(embeddings=True)}, True),
        ({"weights": WeightOnly(embeddings=False)}, False),
        ({"select": Selection(op_types=("Gather", "MatMul"))}, True),
        ({"select": Selection(op_types=("MatMul",))}, False),
    ],
)
def test_a_table_of_its_own_is_stored_where_it_is_asked_for(fields, stored):
    plan = table(**fields)
    assert ("t" in plan.weights) == stored == plan.nodes["table"].quantized
    assert plan.nodes["product"].quantized


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({}, None),
        ({"transB": 1}, None),
        ({"transA": 1}, "it transposes its input"),
        ({"alpha": 2.0}, "its alpha is not 1"),
        ({"beta": 0.5}, "its beta is not 1"),
    ],
)
def test_a_gemm_is_stored_where_a_product_of_blocks_can_stand_for_it(attributes, reason):
    found = gemm(**attributes).nodes["gemm"]
    assert found.reason == reason and found.quantized == (reason is None)


def test_a_vector_is_no_matrix():
    nodes = [node("MatMul", ["x", "v"], ["y"], "row"), node("MatMul", ["x", "w"], ["z"], "product")]
    constants = {"v": normal(64), "w": normal(64, 8)}
    plan = plan_of(nodes, constants)
    assert plan.nodes["row"].reason == "its weight has 1 axes, and n-bit products take matrices"
    assert list(plan.weights) == ["w"]
