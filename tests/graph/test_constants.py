import numpy as np
import onnx_ir as ir
import pytest

from bitwright.graph import constant_of, constant_tensor, float_constant_of, input_at, is_constant


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
