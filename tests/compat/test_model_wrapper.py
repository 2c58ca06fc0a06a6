"""`ONNXModel` of weight-only tools: what it shows and changes, as the class of that name does."""

import numpy as np
import onnx
import pytest
from onnx import helper
from support.models import constants_of, make_cnn, make_samples, make_transformer, ops, run

from bitwright.compat.neural_compressor import ONNXModel
from bitwright.errors import ModelError

peer = pytest.importorskip("onnxruntime.quantization.neural_compressor.onnx_model")


def both(make=make_transformer):
    return ONNXModel(make()), peer.ONNXModel(make())


def names(nodes):
    return [node.name for node in nodes]


@pytest.mark.parametrize("make", [make_cnn, make_transformer])
def test_what_it_shows_is_what_the_peer_shows(make):
    ours, theirs = both(make)
    assert ours.input() == theirs.input() and ours.output() == theirs.output()
    assert ours.ir_version() == theirs.ir_version()
    assert ours.graph_info == theirs.graph_info
    assert {k: names(v) for k, v in ours.input_name_to_nodes.items()} == {
        k: names(v) for k, v in theirs.input_name_to_nodes.items()
    }
    assert {k: v.name for k, v in ours.output_name_to_node.items()} == {
        k: v.name for k, v in theirs.output_name_to_node.items()
    }
    for mine, other in zip(ours.nodes(), theirs.nodes(), strict=True):
        assert names(ours.get_parents(mine)) == names(theirs.get_parents(other))
        assert names(ours.get_children(mine)) == names(theirs.get_children(other))
        assert names(ours.get_siblings(mine)) == names(theirs.get_siblings(other))
    for tensor in theirs.initializer():
        name = tensor.name
        assert ours.get_initializer_share_num(name) == theirs.get_initializer_share_num(name)


def test_chains_and_paths_are_those_of_the_peer():
    ours, theirs = both()
    last = theirs.nodes()[-1].name
    stop = theirs.nodes()[1].name
    assert ours.get_nodes_chain([last], [stop]) == theirs.get_nodes_chain([last], [stop])
    node, other = ours.get_node(last), theirs.get_node(last)
    parent = theirs.get_parents(other)[0].op_type
    found, wanted = [], []
    path = ours.match_parent_path(node, [parent], [None], return_indice=found)
    same = theirs.match_parent_path(other, [parent], [None], return_indice=wanted)
    assert names(path) == names(same) and found == wanted
    assert ours.match_parent(node, "Nope") is None
    assert ours.match_parent_path(node, ["Nope"], [0]) is None
    assert ours.match_parent(node, parent, exclude=path) is None
    with pytest.raises(ModelError, match="there is no node"):
        ours.get_nodes_chain(["nobody"], [])


def test_nodes_are_put_in_taken_out_and_sorted():
    """An Identity in front of the last node, added at the end, then moved into its place."""
    model = ONNXModel(make_transformer())
    samples = make_samples(model.model, 1)
    before = run(model.model, samples[0])
    last = model.nodes()[-1]
    source = last.input[0]
    model.replace_input_of_all_nodes(source, "moved", white_optype=[last.op_type])
    model.add_node(helper.make_node("Identity", [source], ["moved"], name="mover"))
    model.add_nodes([helper.make_node("Relu", [source], ["idle"], name="idle")])
    model.add_initializers([onnx.numpy_helper.from_array(np.zeros(3, np.float32), "unread")])
    model.topological_sort(enable_subgraph=True)
    order = names(model.nodes())
    assert order.index("mover") < order.index(last.name)
    model.remove_unused_nodes()
    assert model.get_node("idle") is None and model.get_initializer("unread") is None
    for value, wanted in zip(run(model.model, samples[0]), before, strict=True):
        np.testing.assert_array_equal(value, wanted)
    count = ops(model.model)["Identity"]
    model.replace_input_of_all_nodes("moved", source)
    model.remove_node(model.get_node("mover"))
    assert ops(model.model)["Identity"] == count - 1
    with pytest.raises(ModelError, match="there is no node 'gone'"):
        model.remove_nodes([helper.make_node("Relu", ["a"], ["b"], name="gone")])


def test_filters_of_a_replacement_are_those_of_the_peer():
    for options in ({}, {"white_optype": ["MatMul"]}, {"black_optype": ["MatMul"]}):
        ours, theirs = both()
        shared = max(theirs.input_name_to_nodes, key=lambda k: len(theirs.input_name_to_nodes[k]))
        for model in (ours, theirs):
            model.replace_input_of_all_nodes(shared, "other", **options)
            model.replace_output_of_all_nodes(shared, "made", **options)
        assert [(list(n.input), list(n.output)) for n in ours.nodes()] == [
            (list(n.input), list(n.output)) for n in theirs.nodes()
        ]


def test_constants_and_outputs_change():
    ours, theirs = both(make_cnn)
    name = theirs.initializer()[0].name
    values = np.full(constants_of(ours.model)[name].shape, 0.5)
    for model in (ours, theirs):
        model.set_initializer(name, values)
        model.add_tensors_to_outputs([theirs.nodes()[0].output[0]])
    np.testing.assert_array_equal(constants_of(ours.model)[name], constants_of(theirs.model)[name])
    assert constants_of(ours.model)[name].dtype == np.float32
    assert ours.output() == theirs.output()
    ours.remove_tensors_from_outputs([ours.output()[-1], "nothing"])
    assert len(ours.output()) == len(theirs.output()) - 1
    with pytest.raises(ModelError, match="there is no constant 'nothing'"):
        ours.set_initializer("nothing", values)
