import numpy as np
import onnx_ir as ir
import pytest

from bitwright.emit.quantized import Quantized, add_quantized, quantized_tensor
from bitwright.graph import NameScope
from bitwright.numerics.types import INT4, INT8, UINT2, UINT8


@pytest.fixture
def model():
    return ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 21}), ir_version=10)


def constant(model, name, array):
    return add_quantized(model.graph, NameScope(model), name, np.asarray(array, np.uint8), UINT8)


@pytest.mark.parametrize(("qtype", "size"), [(INT8, 4), (INT4, 2), (UINT2, 1)])
def test_integers_are_stored_in_their_own_width(qtype, size):
    tensor = quantized_tensor(np.array([1, 0, 1, 1], qtype.dtype), qtype)
    assert tensor.dtype == qtype.onnx_type and tensor.nbytes == size
    np.testing.assert_array_equal(tensor.numpy().astype(int), [1, 0, 1, 1])


def test_a_tensor_of_no_axis_keeps_its_shape(model):
    assert constant(model, "zero_point", np.uint8(3)).shape == ir.Shape([])


def test_equal_integers_mean_the_same_where_scale_and_zero_point_are_equal(model):
    values = [constant(model, name, [1]) for name in ("a", "b", "c")]
    other = constant(model, "other", [2])
    one = Quantized(values[0], values[1], values[2])
    assert one.means_the_same_as(Quantized(other, values[1], values[2]))
    assert one.means_the_same_as(Quantized(other, values[2], values[1]))  # by their numbers
    assert not one.means_the_same_as(Quantized(other, other, values[2]))
    assert one.is_whole
