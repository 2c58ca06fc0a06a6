"""Float16 by the names of ONNX Runtime and of onnxconverter-common, beside the first."""

import numpy as np
import onnx
import onnxruntime
import pytest
from support.models import make_mlp, make_transformer, ops

import bitwright
from bitwright.compat import float16
from bitwright.compat.onnxconverter_common import float16 as common
from bitwright.compat.paths import import_quietly

DEMO = bitwright.load_demo()
PEER = import_quietly("onnxruntime.transformers.float16")


def answer(model, dtype=np.float32):
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {"image": DEMO.images[:50].astype(dtype)})[0].astype(np.float32)


@pytest.mark.parametrize("keep", [True, False])
def test_the_result_has_the_types_and_answers_of_the_peers(keep):
    model = onnx.load(DEMO.model_path)
    ours = float16.convert_float_to_float16(model, keep_io_types=keep)
    theirs = PEER.convert_float_to_float16(onnx.load(DEMO.model_path), keep_io_types=keep)
    kinds = [v.type.tensor_type.elem_type for v in (*ours.graph.input, *ours.graph.output)]
    assert kinds == [
        v.type.tensor_type.elem_type for v in (*theirs.graph.input, *theirs.graph.output)
    ]
    assert ops(ours) == ops(theirs)
    dtype = np.float32 if keep else np.float16
    assert np.abs(answer(ours, dtype) - answer(theirs, dtype)).max() < 0.05
    assert model.SerializeToString() == onnx.load(DEMO.model_path).SerializeToString()


def test_blocked_operators_and_nodes_stay_float32():
    model = make_transformer(width=32)
    first = next(node.name for node in model.graph.node if node.op_type == "MatMul")
    made = float16.convert_float_to_float16(
        model,
        keep_io_types=True,
        op_block_list=[*float16.DEFAULT_OP_BLOCK_LIST, "Softmax"],
        node_block_list=[first],
    )
    inferred = onnx.shape_inference.infer_shapes(made).graph
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*inferred.input, *inferred.value_info)
    }
    for node in made.graph.node:
        if node.op_type == "Softmax" or node.name == first:
            assert types[node.input[0]] == onnx.TensorProto.FLOAT
    assert onnx.TensorProto.FLOAT16 in types.values()


def test_single_inputs_and_outputs_stay_float32():
    model = onnx.load(DEMO.model_path)
    name = model.graph.input[0].name
    made = float16.convert_float_to_float16(model, keep_io_types=[name])
    types = [v.type.tensor_type.elem_type for v in (*made.graph.input, *made.graph.output)]
    assert types == [onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16]
    assert np.isfinite(answer(made)).all() and ops(made)["Cast"] == 1


def test_constants_are_moved_into_the_range():
    model = make_mlp()
    tensor = model.graph.initializer[0]
    array = onnx.numpy_helper.to_array(tensor).copy()
    array.flat[:4] = 1e6, -1e6, 1e-12, 0
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    made = common.convert_float_to_float16(model)
    found = {t.name: onnx.numpy_helper.to_array(t) for t in made.graph.initializer}
    stored = next(a for a in found.values() if a.shape == array.shape).ravel()[:4]
    assert stored.dtype == np.float16
    assert stored.tolist() == [1e4, -1e4, float(np.float16(1e-7)), 0]


def test_a_model_in_float16_is_told_apart(tmp_path):
    half = common.convert_float_to_float16(onnx.load(DEMO.model_path))
    with pytest.raises(ValueError, match="already converted to float16"):
        common.convert_float_to_float16(half)
    again = common.convert_float_to_float16(half, check_fp16_ready=False)
    assert [v.type for v in again.graph.input] == [v.type for v in half.graph.input]
    assert np.array_equal(answer(again, np.float16), answer(half, np.float16))
    onnx.save(make_mlp(), tmp_path / "m.onnx")
    made = common.convert_float_to_float16_model_path(tmp_path / "m.onnx", keep_io_types=True)
    assert ops(made)["Cast"] == 2


def test_what_has_no_form_is_warned_of():
    with pytest.warns(UserWarning, match="force_fp16_initializers is ignored"):
        float16.convert_float_to_float16(make_mlp(), force_fp16_initializers=True)
