"""The weight of a product: found through a Transpose, and only where products alone read that."""

import pytest
from support.models import build, info, node, weight

from bitwright.graph import is_transposed_constant, load_model, weight_of


def load(nodes, **constants):
    return load_model(build(nodes, {"x": [2, 8]}, [info("y", None)], constants))


def weights(model):
    return {n.name: weight_of(n) for n in model.graph}


@pytest.mark.parametrize("turns", [0, 1])
def test_a_gemm_reads_either_way(turns):
    shape = (5, 8) if turns else (8, 5)
    model = load([node("Gemm", ["x", "w"], ["y"], name="p", transB=turns)], w=weight(*shape))
    found = weights(model)["p"]
    assert (found.value.name, found.transposed, found.through) == ("w", bool(turns), None)


@pytest.mark.parametrize("perm", [None, [1, 0]])
def test_a_transpose_belongs_to_its_product(perm):
    options = {} if perm is None else {"perm": perm}
    model = load(
        [
            node("Transpose", ["w"], ["t"], name="turn", **options),
            node("MatMul", ["x", "t"], ["y"], name="p"),
        ],
        w=weight(5, 8),
    )
    found = weights(model)["p"]
    assert (found.value.name, found.transposed, found.through.name) == ("w", True, "turn")


def test_a_transpose_that_others_read_is_none():
    model = load(
        [
            node("Transpose", ["w"], ["t"], name="turn"),
            node("MatMul", ["x", "t"], ["h"], name="p"),
            node("Add", ["h", "t"], ["y"], name="add"),
        ],
        w=weight(8, 8),
    )
    assert weights(model)["p"] is None
    assert not any(is_transposed_constant(n) for n in model.graph)


def test_weights_that_are_computed_have_no_constant():
    model = load(
        [node("Relu", ["x"], ["r"], name="r"), node("MatMul", ["x", "r"], ["y"], name="p")],
    )
    assert set(weights(model).values()) == {None}
