from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from bitwright.graph import load_model
from bitwright.graph.messages import holding, to_message


@pytest.mark.parametrize("which", ["mlp", "branches"])
def test_a_message_is_what_onnx_ir_writes(builders, which):
    model = load_model(getattr(builders, which)())
    model.producer_name, model.graph.doc_string = "someone", "a graph"
    model.metadata_props["key"] = model.graph.metadata_props["key"] = "value"
    assert to_message(model) == ir.to_proto(model)


def test_other_inputs_and_initializers_leave_the_model_as_it_was(builders):
    model = load_model(builders.mlp())
    before = ir.to_proto(model)
    weights = model.graph.initializers
    zeros = ir.tensor(np.zeros((64, 4), np.float32), name="w2")
    message = to_message(
        model,
        inputs=[*model.graph.inputs, holding(weights["w1"], None)],
        initializers=[weights["b1"], holding(weights["w2"], zeros)],
    )
    assert [value.name for value in message.graph.input] == ["x", "w1"]
    assert [tensor.name for tensor in message.graph.initializer] == ["b1", "w2"]
    assert not any(message.graph.initializer[1].raw_data)
    assert message.graph.node == before.graph.node
    assert ir.to_proto(model) == before


def test_a_stand_in_takes_type_and_shape_from_the_tensor_where_the_value_has_none():
    weight = ir.Value(name="w", const_value=ir.tensor(np.zeros((2, 3), np.float16)))
    stand_in = holding(weight, None)
    assert stand_in.dtype == ir.DataType.FLOAT16
    assert stand_in.shape == (2, 3)
    assert stand_in.const_value is None and weight.const_value is not None
