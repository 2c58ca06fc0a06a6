from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx import helper

from bitwright.graph import load_model
from bitwright.graph.skeleton import make_skeleton


def test_big_tensors_become_inputs_and_small_ones_stay(builders):
    model = load_model(builders.mlp())
    before = ir.to_proto(model)
    skeleton = make_skeleton(model)
    assert [value.name for value in skeleton.proto.graph.input] == ["x", "w1"]
    assert [tensor.name for tensor in skeleton.proto.graph.initializer] == ["b1", "w2"]
    assert skeleton.placeholders == {"w1": model.graph.initializers["w1"]}
    assert skeleton.input_count == 1
    assert ir.to_proto(model) == before


def test_a_big_tensor_of_a_body_becomes_an_input_of_the_main_graph(builders):
    model = load_model(builders.branches())
    before = ir.to_proto(model)
    skeleton = make_skeleton(model)
    (name,) = skeleton.placeholders
    added = skeleton.proto.graph.input[skeleton.input_count :]
    assert [(value.name, len(value.type.tensor_type.shape.dim)) for value in added] == [(name, 2)]
    (body,) = (a.g for a in skeleton.proto.graph.node[-1].attribute if a.name == "then_branch")
    assert name in body.node[0].input
    assert not body.initializer
    assert ir.to_proto(model) == before


def test_a_big_default_of_an_input_goes_and_the_input_stays(builders):
    proto = builders.mlp()
    proto.graph.input.append(builders.info("w1", shape=[64, 64]))
    skeleton = make_skeleton(load_model(proto))
    assert [value.name for value in skeleton.proto.graph.input] == ["x", "w1"]
    assert "w1" in skeleton.placeholders
    assert skeleton.input_count == 2


def test_a_body_without_tensors_needs_no_copy(builders, monkeypatch):
    import bitwright.graph.skeleton as module

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
    assert list(make_skeleton(load_model(proto)).placeholders) == ["w"]
