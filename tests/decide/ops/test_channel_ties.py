"""How many channels tensors between integer convolutions get, and where the zeros stand."""

import onnx
import onnx_ir as ir
import pytest

from bitwright.decide.ops.channel_ties import ChannelTies, Convolved

HEAD = '<ir_version: 9, opset_import: ["" : 18]> g (float[1,16,8,8] x) => (float[?,?,?,?] y)'
CHANNELS = {"w": (16, 18), "v": (16, 30), "u": (48, 16), "t": (18, 16)}


def ties_of(body):
    """Return (the ties of a model, its values); a Conv has the channels of its weight's name."""
    weights = [f"float[{c},{r},1,1] {name}" for name, (r, c) in CHANNELS.items()]
    head = HEAD.replace("x)", ", ".join(["x", *weights]) + ")")
    proto = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(f"{head} {{ {body} }}"))
    graph = ir.from_proto(proto).graph

    def convolved(node):
        return Convolved(1, *CHANNELS[node.inputs[1].name]) if node.op_type == "Conv" else None

    values = {value.name: value for node in graph for value in (*node.inputs, *node.outputs)}
    return ChannelTies.of_nodes(graph, convolved), values


def test_parts_of_a_concat_bring_their_zeros():
    body = "a = Conv(x, w) b = Conv(x, v) c = Concat<axis=1>(a, b) d = Relu(c) y = Conv(d, u)"
    ties, values = ties_of(body)
    assert [ties.size(values[name]) for name in "abcd"] == [20, 32, 52, 52]
    positions = [*range(18), *range(20, 50)]
    assert ties.layout(values["d"]).positions.tolist() == positions
    assert {value.name for value, _ in ties.padded()} == set("abcd")


@pytest.mark.parametrize(
    "last",
    [
        "y = Transpose<perm=[0,2,3,1]>(c)",
        "e = ReduceMax<keepdims=1>(c) f = Add(b, e) y = Softmax<axis=1>(f)",
        "y = Identity(c)",
    ],
)
def test_what_somebody_needs_as_it_is_fixes_the_parts(last):
    ties, values = ties_of(f"a = Conv(x, w) b = Conv(x, v) c = Concat<axis=1>(a, b) {last}")
    assert [ties.size(values[name]) for name in "abc"] == [18, 30, 48]


def test_a_sum_of_two_concats_fixes_the_parts_of_both():
    """Their zeros could stand in different places."""
    body = "a = Conv(x, w) b = Conv(x, v) c = Concat<axis=1>(a, b) d = Conv(x, v) e = Conv(x, w)"
    ties, values = ties_of(f"{body} f = Concat<axis=1>(d, e) h = Add(c, f) y = Conv(h, u)")
    sizes = {name: ties.size(values[name]) for name in "abcdefh"}
    assert sizes == {"a": 18, "b": 30, "c": 48, "d": 30, "e": 18, "f": 48, "h": 48}
    assert not [*ties.padded()]


def test_one_reader_that_works_otherwise_is_enough():
    ties, values = ties_of("a = Conv(x, w) b = Conv(a, t) y = ReduceMax(a)")
    assert ties.size(values["a"]) == 18
    ties, values = ties_of("a = Conv(x, w) b = Relu(a) y = Conv(b, t)")
    assert [ties.size(values[name]) for name in "ab"] == [20, 20]


def test_of_what_no_node_works_on_nothing_is_known():
    ties, _ = ties_of("y = Conv(x, w)")
    assert ties.size(None) == ties.size(ir.val("other", shape=[1, 18, 8, 8])) == 0
