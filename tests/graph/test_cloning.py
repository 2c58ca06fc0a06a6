from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from bitwright.errors import ModelError
from bitwright.graph import clone_model, iter_values, load_model
from bitwright.graph.cloning import strip_weights, to_message, value_with_tensor


def test_a_clone_shares_tensors_and_nothing_that_can_be_changed(builders):
    model = load_model(builders.branches())
    model.meta["note"] = 1
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    clone = clone_model(model)
    assert clone.meta["note"] == 1
    assert ir.to_proto(clone).SerializeToString(deterministic=True) == before
    for (_, ours), (_, theirs) in zip(iter_values(clone), iter_values(model), strict=True):
        assert ours is not theirs and ours.const_value is theirs.const_value
        ours.dtype = ir.DataType.FLOAT16
        ours.shape = ir.Shape([7])
    for node in clone.graph.all_nodes():
        node.name = "changed"
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_an_unsorted_model_is_refused(builders):
    model = load_model(builders.mlp())
    first = model.graph.node("first")
    model.graph.remove(first)
    model.graph.append(first)
    with pytest.raises(ModelError, match="topological order"):
        clone_model(model)


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
        inputs=[*model.graph.inputs, value_with_tensor(weights["w1"], None)],
        initializers=[weights["b1"], value_with_tensor(weights["w2"], zeros)],
    )
    assert [value.name for value in message.graph.input] == ["x", "w1"]
    assert [tensor.name for tensor in message.graph.initializer] == ["b1", "w2"]
    assert not any(message.graph.initializer[1].raw_data)
    assert message.graph.node == before.graph.node
    assert ir.to_proto(model) == before


def test_a_stand_in_takes_type_and_shape_from_the_tensor_where_the_value_has_none():
    weight = ir.Value(name="w", const_value=ir.tensor(np.zeros((2, 3), np.float16)))
    stand_in = value_with_tensor(weight, None)
    assert stand_in.dtype == ir.DataType.FLOAT16
    assert stand_in.shape == (2, 3)
    assert stand_in.const_value is None and weight.const_value is not None


def test_big_tensors_become_inputs_and_small_ones_stay(builders):
    model = load_model(builders.mlp())
    before = ir.to_proto(model)
    stripped = strip_weights(model)
    assert [value.name for value in stripped.proto.graph.input] == ["x", "w1"]
    assert [tensor.name for tensor in stripped.proto.graph.initializer] == ["b1", "w2"]
    assert stripped.placeholders == {"w1": model.graph.initializers["w1"]}
    assert ir.to_proto(model) == before


def test_a_big_tensor_of_a_body_becomes_an_input_of_the_main_graph(builders):
    model = load_model(builders.branches())
    before = ir.to_proto(model)
    stripped = strip_weights(model)
    (name,) = stripped.placeholders
    added = stripped.proto.graph.input[len(model.graph.inputs) :]
    assert [(value.name, len(value.type.tensor_type.shape.dim)) for value in added] == [(name, 2)]
    (body,) = (a.g for a in stripped.proto.graph.node[-1].attribute if a.name == "then_branch")
    assert name in body.node[0].input
    assert not body.initializer
    assert ir.to_proto(model) == before


def test_a_big_default_of_an_input_goes_and_the_input_stays(builders):
    proto = builders.mlp()
    proto.graph.input.append(builders.info("w1", shape=[64, 64]))
    stripped = strip_weights(load_model(proto))
    assert [value.name for value in stripped.proto.graph.input] == ["x", "w1"]
    assert "w1" in stripped.placeholders


def test_a_body_without_tensors_needs_no_copy(builders, monkeypatch):
    import bitwright.graph.cloning as module

    body = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["t"])], "b", [], [builders.info("t")]
    )
    proto = builders.build(
        [helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)],
        [builders.info("x", shape=[2]), builders.info("c", dtype=9, shape=[])],
        [builders.info("y")],
        {"w": np.zeros(1000, np.float32)},
    )
    monkeypatch.setattr(module, "clone_model", None)
    assert list(strip_weights(load_model(proto)).placeholders) == ["w"]
