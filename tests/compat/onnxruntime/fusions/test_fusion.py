"""The base of fusions, which people derive their own from."""

from __future__ import annotations

import onnx
import pytest
from support.models import make_cnn, node
from support.peer_overrides import both

FUSIONS, MODELS = both("fusions.fusion"), both("onnx_model")


def fusions():
    for module, models in zip(FUSIONS, MODELS, strict=True):
        model = onnx.shape_inference.infer_shapes(make_cnn())
        yield module.Fusion(models.ONNXModel(model), "New", "Old")


def names(value):
    """Return a result with nodes by their names."""
    if isinstance(value, onnx.NodeProto):
        return value.name
    if isinstance(value, tuple | list):
        return [names(item) for item in value]
    return value


@pytest.mark.parametrize("start", range(6))
@pytest.mark.parametrize("op_type", ["Conv", "Relu", "Add", "Gemm"])
def test_nodes_around_a_node_are_found_as_the_peer_finds_them(start, op_type):
    found = []
    for fusion in fusions():
        first = fusion.model.nodes()[start]
        last = fusion.model.nodes()[-1 - start]
        makers = fusion.model.output_name_to_node()
        free = []
        path = [op_type, "Relu"]
        found.append(
            names(
                [
                    fusion.match_first_parent(last, op_type),
                    fusion.match_parent(last, op_type, 0, makers),
                    fusion.match_parent(last, op_type, 5, makers),
                    fusion.match_parent(last, op_type, return_indice=free),
                    free,
                    fusion.match_parent(last, op_type, 0, exclude=list(makers.values())),
                    fusion.match_parent_path(last, path, [0, 0], makers),
                    fusion.match_parent_path(last, path),
                    fusion.match_parent_paths(last, [(path, [0, 0]), ([op_type], [0])], makers),
                    fusion.find_first_child_by_type(first, op_type),
                    fusion.find_first_child_by_type(first, op_type, recursive=False),
                    fusion.input_index(first.output[0], last),
                    fusion.input_index(last.input[-1], last),
                ]
            )
        )
    assert found[0] == found[1]


def test_constants_and_shapes_are_read_as_the_peers():
    found = []
    for fusion in fusions():
        fusion.model.add_node(
            node("Constant", [], ["half"], value=onnx.helper.make_tensor("v", 1, [], [0.5]))
        )
        scaled = node("Mul", ["x", "half"], ["z"], name="scaled")
        shape = fusion.model.get_tensor_type("c1")
        found.append(
            [
                fusion.get_constant_input(scaled)[0],
                fusion.get_constant_input(node("Relu", ["x"], ["z"])),
                fusion.find_constant_input(scaled, 0.5),
                fusion.find_constant_input(scaled, 0.6),
                fusion.has_constant_input(scaled, 0.5004, delta=0.001),
                fusion.find_constant_input(node("Add", ["x", "w1"], ["z"]), 0.5),
                fusion.is_constant_with_specified_rank("w1", 4),
                fusion.is_constant_with_specified_rank("w1", 1),
                fusion.is_constant_with_specified_rank("x", 4),
                fusion.tensor_shape_to_list(shape),
                fusion.get_node_attribute(fusion.model.nodes()[0], "pads"),
                fusion.get_node_attribute(fusion.model.nodes()[0], "nothing"),
            ]
        )
    assert found[0] == found[1]


def test_names_of_fused_nodes_go_on_where_others_end():
    for fusion in fusions():
        fusion.model.add_node(node("Relu", ["x"], ["z"], name="New_fused_Old_4"))
        assert [fusion.create_unique_node_name() for _ in "ab"] == [
            "New_fused_Old_5",
            "New_fused_Old_6",
        ]


def test_a_fusion_without_a_pattern_is_abstract():
    fusion = FUSIONS[0].Fusion(MODELS[0].ONNXModel(make_cnn()), "New", "Conv")
    with pytest.raises(NotImplementedError):
        fusion.apply()
