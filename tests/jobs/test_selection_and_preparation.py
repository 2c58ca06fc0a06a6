"""Naming nodes that the clean-up before quantizing takes away."""

import onnx
import pytest

import bitwright
from bitwright import RecipeError, load_demo


def test_a_node_that_preparation_merged_is_told_as_such():
    demo = load_demo()
    facts = bitwright.inspect(demo.model_path)
    assert "BatchNormalization" in facts.ops

    [name, *_] = [
        node.name
        for node in onnx.load(demo.model_path).graph.node
        if node.op_type == "BatchNormalization"
    ]
    with pytest.raises(RecipeError, match=r"was merged into its neighbours.*optimize=False"):
        bitwright.quantize(
            demo.model_path, data=demo.calibration[:8], recipe={"select": {"exclude": [name]}}
        )
    result = bitwright.quantize(
        demo.model_path,
        data=demo.calibration[:8],
        recipe={"optimize": False, "select": {"exclude": [name]}},
    )
    assert result.plan.nodes[name].reason == "it is excluded by name"
