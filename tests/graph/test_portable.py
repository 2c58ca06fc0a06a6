import pickle

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from support.models import make_transformer, run

from bitwright.graph import PortableModel, carried_model, carry_model, load_model
from bitwright.numerics.arrays import NUMPY


def travel(model):
    return pickle.loads(pickle.dumps(PortableModel(model))).model


def test_a_model_arrives_as_it_left():
    model = load_model(make_transformer(width=32))
    there = travel(model)
    assert ir.to_proto(there) == ir.to_proto(model)
    feeds = {v.name: np.ones([1 if isinstance(d, ir.SymbolicDim) else d for d in v.shape],
                             v.dtype.numpy()) for v in model.graph.inputs}  # fmt: skip
    for one, other in zip(run(ir.to_proto(model), feeds), run(ir.to_proto(there), feeds),
                          strict=True):  # fmt: skip
        np.testing.assert_array_equal(one, other)


def test_external_tensors_and_types_of_few_bits_travel(tmp_path):
    arrays = {
        "float": np.arange(900, dtype=np.float32),
        "bfloat16": np.arange(900).astype(ml_dtypes.bfloat16),
        "int4": (np.arange(3000) % 16 - 8).astype(ml_dtypes.int4),
        "small": np.arange(3, dtype=np.int64),
    }
    values = [ir.Value(name=name, const_value=ir.tensor(array)) for name, array in arrays.items()]
    graph = ir.Graph([], [], nodes=[], initializers=values, opset_imports={"": 21})
    path = tmp_path / "model.onnx"
    message = ir.to_proto(ir.Model(graph, ir_version=10))
    onnx.save(message, path, save_as_external_data=True, size_threshold=0)
    model = ir.load(path)
    assert isinstance(model.graph.initializers["float"].const_value, ir.ExternalTensor)
    there = travel(model)
    (tmp_path / "model.onnx").unlink()
    for name, array in arrays.items():
        tensor = there.graph.initializers[name].const_value
        assert not isinstance(tensor, ir.ExternalTensor)
        np.testing.assert_array_equal(tensor.numpy(), array)


def test_what_is_no_model_of_ours_travels_as_it_is():
    assert carried_model(carry_model(None)) is None
    model = load_model(make_transformer())
    assert carried_model(carry_model(model)) is model
    assert pickle.loads(pickle.dumps(NUMPY)) is NUMPY
