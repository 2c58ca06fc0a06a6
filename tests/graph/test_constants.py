import numpy as np
import onnx_ir as ir
import pytest
from support.models import build, info, node, weight

from bitwright.graph import (
    constant_of,
    constant_tensor,
    float_constant_of,
    input_at,
    is_constant,
    is_transposed_constant,
    load_model,
    weight_of,
    weights_of,
)


def initializer(name, array, *, as_input=False):
    value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
    ir.Graph([value] if as_input else [], [], nodes=[], initializers=[value])
    return value


def test_an_initializer_is_a_constant_of_its_type():
    value = initializer("w", np.arange(3, dtype=np.int64))
    assert is_constant(value)
    np.testing.assert_array_equal(constant_of(value), [0, 1, 2])
    assert float_constant_of(value) is None  # no floats
    assert float_constant_of(initializer("f", np.ones(2, np.float16))).dtype == np.float16


def test_a_constant_node_is_read_too():
    node = ir.node("Constant", [], {"value_floats": [1.0, 2.0]})
    np.testing.assert_array_equal(constant_of(node.outputs[0]), [1.0, 2.0])


def test_what_a_caller_can_override_is_constant_only_by_default_value():
    value = initializer("w", np.ones(2, np.float32), as_input=True)
    assert constant_tensor(value) is None and not is_constant(value)
    np.testing.assert_array_equal(constant_of(value, defaults=True), [1, 1])


@pytest.mark.parametrize("value", [None, ir.Value(name="x")])
def test_what_is_missing_or_computed_is_no_constant(value):
    assert constant_of(value) is None and float_constant_of(value) is None


def test_constants_are_not_read_before_they_are_asked_for():
    def fail():
        raise AssertionError("read")

    lazy = ir.LazyTensor(fail, dtype=ir.DataType.FLOAT, shape=ir.Shape([2]))
    assert is_constant(ir.Value(name="w", const_value=lazy))


def test_an_input_that_is_left_out_is_none():
    x = ir.Value(name="x")
    node = ir.node("Clip", [x, None])
    assert [input_at(node, index) for index in range(4)] == [x, None, None, None]


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


def test_the_weights_of_experts_are_not_their_biases():
    names = ("x", "router", "up", "bias", "down")
    x, router, up, bias, down = (ir.Value(name=name) for name in names)
    up.const_value = down.const_value = ir.tensor([[[1.0]]])
    graph = ir.Graph([], [], nodes=[], initializers=[up, down], opset_imports={"": 21})
    experts = ir.node("MoE", [x, router, up, bias, down], domain="com.microsoft")
    assert [one.value for one in weights_of(experts)] == list(graph.initializers.values())
