from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx import TensorProto, helper

from bitwright.graph import (
    assume_types,
    element_type,
    infer_shapes,
    iter_values,
    load_model,
    normalize,
    static_shape,
    subgraphs_of,
)


def values(model):
    return dict(iter_values(model))


def test_shapes_and_types_are_filled_in(builders):
    model = load_model(builders.mlp())
    infer_shapes(model)
    assert str(values(model)["h"].shape[0]) == "n" and values(model)["h"].shape[1] == 64
    assert element_type(values(model)["r"]) == ir.DataType.FLOAT
    assert static_shape(values(model)["w1"]) == (64, 64)
    assert static_shape(values(model)["h"]) is None


def test_inference_leaves_the_tensors_alone(builders, tmp_path):
    model = load_model(builders.save_external(builders.mlp(), tmp_path))
    tensors = {name: value.const_value for name, value in model.graph.initializers.items()}
    infer_shapes(model)
    assert [v.name for v in model.graph.inputs] == ["x"]
    assert {n: v.const_value for n, v in model.graph.initializers.items()} == tensors
    assert all(tensor.raw is None or tensor.nbytes <= 1024 for tensor in tensors.values())


def test_small_tensors_are_read_so_that_reshape_is_known(builders):
    model = load_model(
        builders.build(
            [helper.make_node("Reshape", ["x", "s"], ["y"])],
            [builders.info("x", 1, [2, 6])],
            [builders.info("y")],
            {"s": np.array([3, -1])},
        )
    )
    infer_shapes(model)
    assert static_shape(values(model)["y"]) == (3, 4)


def test_bodies_are_inferred_too(builders):
    model = load_model(builders.branches())
    infer_shapes(model)
    assert static_shape(values(model)["choose/then_branch:t"]) == (2, 24)


def test_unknown_operators_do_not_stop_it_and_types_pass_through_contrib_ones(builders):
    nodes = [
        helper.make_node("Mystery", ["x"], ["a"], domain="mine"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Gelu", ["x"], ["c"], domain="com.microsoft"),
        helper.make_node("Unsqueeze", ["c", "zero"], ["d"]),
        helper.make_node("Shape", ["b"], ["s"]),
        helper.make_node("Cast", ["b"], ["h"], to=10),
    ]
    model = load_model(
        builders.build(
            nodes,
            [builders.info("x", 1, [2])],
            [builders.info("d")],
            {"zero": np.array([0])},
            domains=["mine", "com.microsoft"],
        )
    )
    infer_shapes(model)
    types = {name: element_type(value) for name, value in values(model).items()}
    assert types["a"] is None and types["b"] is None
    assert types["c"] == types["d"] == ir.DataType.FLOAT
    assert types["s"] == ir.DataType.INT64 and types["h"] == ir.DataType.FLOAT16


def test_every_tensor_of_the_real_models_has_a_type(ocr_model):
    model = load_model(ocr_model[0])
    normalize(model)
    infer_shapes(model)
    assert [name for name, value in iter_values(model) if element_type(value) is None] == []


def test_every_tensor_inside_silero_has_a_type(silero):
    model = load_model(silero)
    normalize(model)
    infer_shapes(model)
    assert [name for name, value in iter_values(model) if element_type(value) is None] == []


def test_a_constant_that_is_an_output_without_a_shape_gets_its_own(builders):
    proto = builders.mlp()
    weight = proto.graph.initializer[0]
    proto.graph.output.append(builders.info(weight.name, weight.data_type, None))
    model = load_model(proto)
    infer_shapes(model)
    assert static_shape(values(model)[weight.name]) == tuple(weight.dims)
    assert model.graph.initializers[weight.name].shape == list(weight.dims)


def test_branches_with_the_same_names_do_not_lend_each_other_their_shapes():
    """As optimum merges a decoder without and with a cache: ONNX's inference mixes them up."""

    def branch(name, read):
        body = [
            helper.make_node("Shape", [read], ["size"]),
            helper.make_node("ConstantOfShape", ["size"], ["ones"]),
            helper.make_node("ReduceSum", ["ones"], [f"{name}_y"], keepdims=0),
        ]
        out = helper.make_tensor_value_info(f"{name}_y", 1, [])
        return helper.make_graph(body, name, [], [out])

    choose = helper.make_node(
        "If",
        ["c"],
        ["y"],
        name="if",
        else_branch=branch("without", "x"),
        then_branch=branch("with", "cache"),
    )
    graph = helper.make_graph(
        [choose],
        "merged",
        [
            helper.make_tensor_value_info("c", 9, []),
            helper.make_tensor_value_info("x", 1, None),
            helper.make_tensor_value_info("cache", 1, [2, 3, 4]),
        ],
        [helper.make_tensor_value_info("y", 1, [])],
    )
    model = load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    infer_shapes(model)
    shapes = {body.name: body[1].outputs[0].shape for _, body in subgraphs_of(model.graph[0])}
    assert shapes["without"] is None or not shapes["without"].is_static()


def test_a_short_time_spectrum_is_one_sided_unless_it_says_otherwise():
    """ONNX's own inference takes a missing attribute for 0."""
    import onnxruntime

    x, y = (helper.make_tensor_value_info(*args) for args in (("x", 1, [1, 64, 1]), ("y", 1, None)))
    node = helper.make_node("STFT", ["x", "hop", "window"], ["y"])
    constants = [
        helper.make_tensor("hop", 7, [], [8]),
        helper.make_tensor("window", 1, [16], np.ones(16)),
    ]
    graph = helper.make_graph([node], "g", [x], [y], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = load_model(proto)
    infer_shapes(model)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (found,) = session.run(None, {"x": np.zeros((1, 64, 1), np.float32)})
    assert static_shape(model.graph.outputs[0]) == found.shape
    assert not model.graph[0].attributes


def test_unknown_operators_are_taken_to_give_the_assumed_type():
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.node("Custom", [x], domain="com.example")
    graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 21})
    node.outputs[0].name = "y"
    assume_types(ir.Model(graph, ir_version=10), ir.DataType.FLOAT16)
    assert node.outputs[0].dtype == ir.DataType.FLOAT16


def test_a_row_of_2_to_the_40_is_not_listed_to_follow_its_values():
    nodes = [
        helper.make_node("Cast", ["x"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["floats", "floats"], ["y"]),
    ]
    x, y = (
        helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (
            ("x", TensorProto.INT64, [1 << 40]),
            ("y", TensorProto.FLOAT, None),
        )
    )
    made = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), ir_version=8)
    model = load_model(made)
    infer_shapes(model)
    assert static_shape(values(model)["floats"]) == (1 << 40,)
