"""Cutting a model into parts: run one after the other they compute what the whole does."""

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwright.errors import ModelError
from bitwright.graph import infer_shapes, load_model
from bitwright.run import Extractor, Session, cut_model

TEXT = """
<ir_version: 10, opset_import: ["" : 21]>
residual (float[1, 4] x, float[1, 4] mask) => (float[1, 4] y, float[1, 4] h1)
<float[4, 4] w1 = {1,0,2,0, 0,1,0,3, 1,1,0,0, 0,0,1,1},
 float[4, 4] w2 = {0,1,0,0, 1,0,0,0, 0,0,0,1, 0,0,1,0}>
{
   [first] h0 = MatMul (x, w1)
   [act] h1 = Relu (h0)
   [gate] g = Mul (h1, mask)
   [second] h2 = MatMul (g, w2)
   [sum] s = Add (h2, x)
   [third] h3 = MatMul (s, w1)
   [last] y = Add (h3, h1)
}
"""


def parse(text: str) -> ir.Model:
    model = load_model(ir.to_proto(ir.from_onnx_text(text)))
    infer_shapes(model)
    return model


def whole() -> ir.Model:
    return parse(TEXT)


def run_in_parts(model, starts, feeds):
    known = dict(feeds)
    for part in cut_model(model, starts):
        session = Session(Extractor(model).extract(part))
        known.update(session.run({name: known[name] for name in part.inputs}))
    return known


@settings(max_examples=20, deadline=None)
@given(st.sets(st.sampled_from(["first", "act", "gate", "second", "sum", "third", "last"])))
def test_parts_compute_what_the_whole_model_does(starts):
    model = whole()
    feeds = {
        "x": np.array([[1, -2, 3, 4]], np.float32),
        "mask": np.array([[1, 0, 2, 1]], np.float32),
    }
    wanted = Session(model).run(feeds)
    found = run_in_parts(model, starts, feeds)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)


def test_a_part_takes_only_what_it_reads_and_gives_only_what_others_read():
    parts = cut_model(whole(), ["second", "third"])
    assert [(p.first, p.inputs, p.outputs) for p in parts] == [
        ("first", ("x", "mask"), ("h1", "g")),
        ("second", ("g", "x"), ("s",)),
        ("third", ("s", "h1"), ("y",)),
    ]


def test_a_part_can_have_other_weights_than_the_model():
    model = whole()
    part = cut_model(model, ["second", "third"])[1]
    zeros = ir.tensor(np.zeros((4, 4), np.float32), name="w2")
    own = Extractor(model).extract(part, {"w2": zeros, "w1": zeros})
    x = np.ones((1, 4), np.float32)
    np.testing.assert_array_equal(Session(own).run({"g": x, "x": 3 * x})["s"], 3 * x)
    assert model.graph.initializers["w2"].const_value.numpy().any()


def test_what_a_body_reads_from_outside_passes_the_border():
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    branches (float[2] x, bool c) => (float[2] y)
    {
       [before] a = Relu (x)
       [choice] y = If (c) <
          then_branch = t () => (float[2] u) { u = Add (a, x) },
          else_branch = e () => (float[2] v) { v = Neg (a) }
       >
    }
    """
    model = parse(text)
    parts = cut_model(model, ["choice"])
    assert set(parts[1].inputs) == {"c", "a", "x"}
    feeds = {"x": np.array([1, 2], np.float32), "c": np.array(True)}
    np.testing.assert_array_equal(run_in_parts(model, ["choice"], feeds)["y"], [2, 4])


def test_an_unknown_node_is_refused_with_a_suggestion():
    with pytest.raises(ModelError, match=r"no node 'secnd'. Did you mean 'second'"):
        cut_model(whole(), ["secnd"])


def test_a_wrong_size_in_the_file_does_not_keep_a_part_from_running():
    model = whole()
    hidden = next(node for node in model.graph if node.name == "act").outputs[0]
    hidden.shape = ir.Shape([1, 8])
    feeds = {"x": np.ones((1, 4), np.float32), "mask": np.ones((1, 4), np.float32)}
    assert run_in_parts(model, ["first", "gate"], feeds)["y"].shape == (1, 4)


def test_sequences_are_made_again_where_they_are_read():
    x, first, both, y = (ir.Value(name=name) for name in ("x", "first", "both", "y"))
    empty = ir.Value(name="empty")
    x.type, x.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([1, 2])
    double = ir.Value(name="double", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, 2]))
    y.type = ir.TensorType(ir.DataType.FLOAT)
    nodes = [
        ir.node("SequenceEmpty", [], outputs=[empty], name="start"),
        ir.node("SequenceInsert", [empty, x], outputs=[first], name="insert"),
        ir.node("Add", [x, x], outputs=[double], name="add"),
        ir.node("SequenceInsert", [first, double], outputs=[both], name="more"),
        ir.node("ConcatFromSequence", [both], {"axis": 0}, outputs=[y], name="join"),
    ]
    graph = ir.Graph([x], [y], nodes=nodes, opset_imports={"": 17}, name="g")
    model = ir.Model(graph, ir_version=8)
    infer_shapes(model)
    parts = cut_model(model, ["add", "join"])
    assert [part.inputs for part in parts] == [("x",), ("x",), ("double", "x")]
    sample = np.array([[1.0, 2.0]], np.float32)
    values = {"x": sample}
    for part in parts:
        if part.outputs:
            session = Session(Extractor(model).extract(part))
            values.update(session.run({name: values[name] for name in part.inputs}))
    np.testing.assert_array_equal(values["y"], np.concatenate([sample, 2 * sample]))
