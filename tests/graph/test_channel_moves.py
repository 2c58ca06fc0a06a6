"""Which channels come out of nodes that move them, held against ONNX Runtime."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import run_plain

from bitwright.graph.channel_moves import channel_readers

HEAD = '<ir_version: 9, opset_import: ["" : 18]> g (float[{},12,2,3] x) => (float[?,?,?,?] y)'
MOVES = {
    "shuffle": (
        "s{0} = Constant<value_ints=[0,{1},-1,2,3]>() a{0} = Reshape({2}, s{0}) "
        "b{0} = Transpose<perm=[0,2,1,3,4]>(a{0}) e{0} = Constant<value_ints=[0,-1,2,3]>() "
        "{3} = Reshape(b{0}, e{0})"
    ),
    "slice": (
        "s{0} = Constant<value_ints=[{1}]>() e{0} = Constant<value_ints=[9223372036854775807]>() "
        "i{0} = Constant<value_ints=[1]>() j{0} = Constant<value_ints=[2]>() "
        "{3} = Slice({2}, s{0}, e{0}, i{0}, j{0})"
    ),
    "split": "u{0}, {3} = Split<axis=1, num_outputs=2>({2})",
}


def read(moves, batch=1):
    """Return (the readers behind moves that a Relu reads, the model)."""
    steps = [
        MOVES[kind].format(index, number, f"v{index}" if index else "x", f"v{index + 1}")
        for index, (kind, number) in enumerate(moves)
    ]
    body = " ".join([*steps, f"y = Relu(v{len(moves)})"])
    proto = onnx.parser.parse_model(f"{HEAD.format(batch)} {{ {body} }}")
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto, data_prop=True))
    first = next(node for node in model.graph if node.inputs and node.inputs[0].name == "x")
    return [*channel_readers(first)], proto


@settings(max_examples=25)
@given(
    kinds=st.lists(st.sampled_from(["slice", "split"]), max_size=2),
    groups=st.sampled_from([2, 3, 4]),
    start=st.integers(0, 1),
    batch=st.sampled_from([1, 3, "n"]),
)
def test_the_channels_are_those_that_the_runtime_gives(kinds, groups, start, batch):
    readers, proto = read([("shuffle", groups), *((kind, start) for kind in kinds)], batch)
    found = [reader for reader in readers if reader is not None and reader.node.op_type == "Relu"]
    assert [reader.place for reader in found] == [0]
    count = batch if isinstance(batch, int) else 2
    x = np.random.default_rng(0).uniform(0, 1, (count, 12, 2, 3)).astype(np.float32)
    np.testing.assert_array_equal(run_plain(proto, {"x": x})[0], x[:, found[0].order])


@pytest.mark.parametrize(
    "body",
    [
        "a = Transpose<perm=[0,1,3,2]>(x) y = Relu(a)",
        "a = Transpose<perm=[1,0,2,3]>(x) y = Relu(a)",
        "i = Constant<value_ints=[0,6,4,3]>() a = Reshape(x, i) y = Relu(a)",
        "y = Transpose<perm=[0,1,2,3]>(x)",
    ],
)
def test_all_else_is_no_reader_of_channels(body):
    proto = onnx.parser.parse_model(f"{HEAD.format(2)} {{ {body} }}")
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto, data_prop=True))
    first = next(node for node in model.graph if node.inputs and node.inputs[0].name == "x")
    assert [*channel_readers(first)] == [None]
