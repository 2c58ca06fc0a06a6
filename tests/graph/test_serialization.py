from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.models import make_transformer

from bitwright.graph import load_model
from bitwright.graph.cloning import to_message


def _odd_model() -> ir.Model:
    """A model with everything that is not written in the short way."""
    x = ir.val("x", ir.DataType.FLOAT, ["n", 3, None])
    x.shape.set_denotation(0, "DATA_BATCH")
    typed = ir.Value(name="typed", type=ir.TensorType(ir.DataType.FLOAT, denotation="IMAGE"))
    sequence = ir.Value(name="s", type=ir.SequenceType(ir.TensorType(ir.DataType.FLOAT)))
    plain = [ir.val(name, ir.DataType.FLOAT, ["n", 3, None]) for name in ("a", "b", "y")]
    plain[1].doc_string, plain[1].metadata_props["k"] = "said", "v"
    plain[0].meta["quant_parameter_tensor_names"] = {"SCALE_TENSOR": "w", "B": "z"}
    weight = ir.Value(name="w", const_value=ir.tensor(np.ones(3, np.float32), name="other"))
    nodes = [
        ir.node("Relu", [x], outputs=[plain[0]], name="relu"),
        ir.node("Dropout", [plain[0], None], outputs=[typed, ir.Value(name="")]),
        ir.node("Custom", [typed, weight], {"k": 2.0}, domain="d", outputs=[plain[1]]),
        ir.node("SequenceConstruct", [plain[1]], outputs=[sequence], doc_string="why"),
        ir.node("SequenceAt", [sequence, weight], outputs=[plain[2]], metadata_props={"a": "b"}),
    ]
    graph = ir.Graph(
        [x], [plain[2]], nodes=nodes, initializers=[weight], opset_imports={"": 21, "d": 1}
    )
    return ir.Model(graph, ir_version=10)


@pytest.mark.parametrize("ir_version", [8, 10])
def test_a_message_has_the_bytes_that_onnx_ir_writes(ir_version):
    inner = ir.val("i", ir.DataType.FLOAT, [2])
    body = ir.node("Relu", [inner], name="inside")
    body.outputs[0].name = "o"
    function = ir.Function(
        "d", "Custom", graph=ir.Graph([inner], body.outputs, nodes=[body]), attributes=[]
    )
    for model in (_odd_model(), load_model(make_transformer(width=16))):
        model.ir_version = ir_version
        model.functions[function.identifier()] = function
        expected = ir.to_proto(model).SerializeToString(deterministic=True)
        assert to_message(model).SerializeToString(deterministic=True) == expected


def test_shapes_that_are_alike_are_copied_and_others_are_not():
    values = [
        ir.val(name, ir.DataType.FLOAT, dims)
        for name, dims in zip("abcd", ([2, "n"], [2, "n"], [2, "m"], [2, None]), strict=True)
    ]
    graph = ir.Graph(values, values, nodes=[], opset_imports={"": 21})
    message = to_message(ir.Model(graph, ir_version=10)).graph
    last = [value.type.tensor_type.shape.dim[1] for value in message.input]
    assert [dim.dim_param for dim in last] == ["n", "n", "m", ""]
    assert onnx.GraphProto.FromString(message.SerializeToString()) == message
