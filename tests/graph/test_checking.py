from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import helper

from bitwright.errors import ModelError
from bitwright.graph import check_model, load_model


def test_good_models_pass_also_with_bodies_and_other_domains(builders):
    check_model(load_model(builders.mlp()))
    check_model(load_model(builders.branches()))
    check_model(load_model(builders.loop()))
    gelu = helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")
    check_model(
        load_model(
            builders.build(
                [gelu],
                [builders.info("x", 1, [1])],
                [builders.info("y")],
                domains=["com.microsoft"],
            )
        )
    )


@pytest.mark.parametrize("change", ["op", "attribute", "shape"])
def test_invalid_models_are_refused_in_one_sentence(builders, change):
    proto = builders.mlp()
    if change == "op":
        proto.graph.node[0].op_type = "Matmull"
    elif change == "attribute":
        proto.graph.node[2].attribute.append(helper.make_attribute("strange", 1))
    else:
        proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 63
    with pytest.raises(ModelError, match="not valid ONNX") as caught:
        check_model(load_model(proto))
    assert "\n" not in str(caught.value)


def test_nodes_out_of_order_and_missing_producers_are_named(builders):
    model = load_model(builders.mlp())
    first = model.graph.node("first")
    model.graph.remove(first)
    with pytest.raises(ModelError, match="node 'bias' reads 'h' before"):
        check_model(model)
    model.graph.append(first)
    with pytest.raises(ModelError, match="node 'bias' reads 'h' before"):
        check_model(model)
    model.graph.sort()
    check_model(model)
    model.graph.outputs.append(ir.Value(name="ghost"))
    with pytest.raises(ModelError, match="no node makes the graph output 'ghost'"):
        check_model(model)


def test_a_body_may_read_what_was_made_before_its_owner_only(builders):
    proto = builders.branches()
    proto.graph.node.append(helper.make_node("Neg", ["y"], ["late"], name="late"))
    model = load_model(proto)
    inner = model.graph.node(0).attributes["else_branch"].as_graph().node("neg")
    inner.replace_input_with(0, model.graph.node("late").outputs[0])
    with pytest.raises(ModelError, match="'choose/else_branch:neg' reads 'late'"):
        check_model(model)
