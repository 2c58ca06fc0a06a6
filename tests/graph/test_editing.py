import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from bitwright.errors import ModelError
from bitwright.graph import (
    NameScope,
    add_initializer,
    constant_of,
    drop_if_unused,
    graph_of,
    insert_after,
    insert_before,
    insert_behind_value,
    like,
    remove_nodes,
    remove_unused_initializers,
    remove_unused_nodes,
    replace_constant,
    replace_inputs,
    replace_value,
)
from bitwright.graph.editing import append_node, copy_node


@pytest.fixture
def model():
    """x -> Mul by w -> y -> Relu -> z."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
    w = ir.Value(name="w", const_value=ir.tensor(np.ones(2, np.float32), name="w"))
    first = ir.node("Mul", [x, w], name="first", outputs=[like(x, "y")])
    last = ir.node("Relu", first.outputs, name="last", outputs=[like(x, "z")])
    nodes = [first, last]
    graph = ir.Graph([x], last.outputs, nodes=nodes, initializers=[w], opset_imports={"": 21})
    return ir.Model(graph, ir_version=10)


def op_types(model):
    return [node.op_type for node in model.graph]


def test_a_new_initializer_gets_a_free_name_and_keeps_type_and_shape(model):
    value = add_initializer(model.graph, NameScope(model), "w", np.float16(2))
    assert value.name == "w_1" and model.graph.initializers["w_1"] is value
    assert (value.dtype, value.shape) == (ir.DataType.FLOAT16, ir.Shape([]))
    assert value.const_value.name == "w_1"


def test_a_tensor_is_held_as_it_is(model):
    tensor = ir.tensor([1, 2])
    assert add_initializer(model.graph, NameScope(model), "t", tensor).const_value is tensor


def test_nodes_are_inserted_where_they_belong(model):
    first, last = model.graph
    insert_before(last, "Neg", [first.outputs[0]], ir.Value(name="n"), "neg")
    insert_after(model.graph, ir.node("Abs", [first.outputs[0]]), first)
    insert_after(model.graph, ir.node("Exp", [model.graph.inputs[0]]), None)
    assert op_types(model) == ["Exp", "Mul", "Abs", "Neg", "Relu"]


def test_a_node_behind_a_value_writes_it_anew_for_readers_and_callers(model):
    first, last = model.graph
    node = insert_behind_value(first.outputs[0], "Neg", [], renamed="y_before", name="neg")
    assert last.inputs[0] is node.outputs[0] and node.outputs[0].name == "y"
    assert first.outputs[0].name == "y_before" and op_types(model) == ["Mul", "Neg", "Relu"]
    insert_behind_value(last.outputs[0], "Neg", [], renamed="z_before", name="neg2")
    assert model.graph.outputs[0].name == "z" and model.graph.outputs[0].shape == ir.Shape([2])


def test_a_replaced_value_hands_over_name_readers_and_what_is_known_of_it(model):
    first, last = model.graph
    new = insert_before(last, "Neg", [model.graph.inputs[0]], ir.Value(name="n"), "neg")
    replace_value(first.outputs[0], new)
    assert last.inputs[0] is new and (new.name, new.shape) == ("y", ir.Shape([2]))
    remove_nodes([first])
    assert not model.graph.initializers  # only the node that went read it


def test_replaced_inputs_are_exactly_the_new_ones(model):
    first, _ = model.graph
    replace_inputs(first, [model.graph.inputs[0], None, model.graph.inputs[0]])
    assert [value and value.name for value in first.inputs] == ["x", None, "x"]


def test_a_constant_is_replaced_in_place_or_as_a_copy(model):
    first, last = model.graph
    replace_constant(first, 1, np.zeros(2, np.float32), "w", NameScope(model))
    assert list(model.graph.initializers) == ["w"]
    replace_inputs(last, [first.outputs[0], first.inputs[1]])
    replace_constant(first, 1, np.float32(7), "w", NameScope(model))
    assert list(model.graph.initializers) == ["w", "w_1"]
    assert constant_of(first.inputs[1]) == 7 and constant_of(last.inputs[1]).tolist() == [0, 0]


def test_only_initializers_that_nothing_reads_are_dropped(model):
    unread = add_initializer(model.graph, NameScope(model), "unread", np.zeros(1))
    assert not drop_if_unused(model.graph.initializers["w"])
    assert remove_unused_initializers(model) == ["unread"] and unread.graph is None


def test_a_value_of_no_graph_is_refused():
    with pytest.raises(ModelError, match=r"tensor 'x' belongs to no graph of the model\."):
        graph_of(ir.Value(name="x"))


def test_a_copied_node_computes_the_same_of_other_values():
    x, y = ir.Value(name="x"), ir.Value(name="y")
    node = ir.node("Gemm", [x, x], {"transB": 1}, name="fc", metadata_props={"layer": "1"})
    copied = copy_node(node, [y, x], [ir.Value(name="z")], "fc_1")
    assert copied.inputs == (y, x) and copied.outputs[0].name == "z"
    assert (copied.op_type, copied.name, copied.metadata_props) == ("Gemm", "fc_1", {"layer": "1"})
    assert copied.attributes["transB"].as_int() == 1 and copied.graph is None
    assert node.inputs == (x, x)


def test_an_appended_node_is_the_last_one():
    x, y = ir.Value(name="x"), ir.Value(name="y")
    graph = ir.Graph([x], [], nodes=[ir.node("Relu", [x])], opset_imports={"": 21})
    assert append_node(graph, "Softmax", [x], y, "s", {"axis": 1}) is y
    assert graph[-1].name == "s" and graph[-1].attributes["axis"].as_int() == 1


def test_a_constant_that_only_the_body_of_a_removed_node_reads_goes_too(model):
    inner = ir.node("Neg", [model.graph.initializers["w"]], outputs=[ir.Value(name="inner")])
    other = ir.Value(name="other", const_value=ir.tensor(np.ones(2, np.float32), name="other"))
    model.graph.register_initializer(other)
    nested = ir.node("Neg", [other], outputs=[ir.Value(name="nested")])
    bodies = {
        name: ir.Graph([], list(node.outputs), nodes=[node], name=name)
        for name, node in (("then_branch", inner), ("else_branch", nested))
    }
    condition = ir.Value(name="c", const_value=ir.tensor(np.array(True), name="c"))
    model.graph.register_initializer(condition)
    model.graph.append(ir.node("If", [condition], bodies, outputs=[ir.Value(name="unread")]))
    remove_unused_nodes(model)
    assert [node.op_type for node in model.graph] == ["Mul", "Relu"]
    assert list(model.graph.initializers) == ["w"]  # which the Mul reads


@pytest.mark.parametrize("opset", [9, 13, 14, 15])
def test_a_batch_norm_in_training_mode_computes_what_it_did_when_nobody_reads_its_statistics(opset):
    statistics = ["m", "v", "sm", "sv"] if opset < 14 else ["m", "v"]
    mode = {} if opset < 14 else {"training_mode": 1}
    parameters = ["scale", "bias", "mean", "variance"]
    norm = helper.make_node("BatchNormalization", ["x", *parameters], ["y", *statistics], **mode)
    proto = helper.make_model(
        helper.make_graph(
            [norm],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 6])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 6])],
            [numpy_helper.from_array(np.ones(4, np.float32), name) for name in parameters],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8,
    )
    model = ir.from_proto(proto)
    remove_unused_nodes(model)
    feeds = {"x": np.random.default_rng(0).normal(size=(1, 4, 6)).astype(np.float32)}
    expected, got = (
        onnxruntime.InferenceSession(each.SerializeToString()).run(None, feeds)[0]
        for each in (proto, ir.to_proto(model))
    )
    np.testing.assert_array_equal(got, expected)
