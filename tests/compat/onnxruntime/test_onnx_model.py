"""`ONNXModel`, beside ONNX Runtime's own."""

from __future__ import annotations

import importlib

import numpy as np
import onnx
import pytest
from support.models import (
    make_cnn,
    make_mlp,
)

from bitwright.compat.onnxruntime.onnx_model import ONNXModel
from bitwright.errors import ModelError


def test_a_model_is_looked_at_as_the_peers_is():
    theirs = importlib.import_module("onnxruntime.quantization.onnx_model").ONNXModel(make_cnn())
    mine = ONNXModel(make_cnn())
    for name in ("get_initializer_name_set", "get_non_initializer_inputs", "ir_version"):
        assert getattr(mine, name)() == getattr(theirs, name)()
    for tensor in ("x", "y", "w1", "c1"):
        assert mine.is_graph_input(tensor) == theirs.is_graph_input(tensor)
        assert mine.is_graph_output(tensor) == theirs.is_graph_output(tensor)
        assert (mine.get_initializer(tensor) is None) == (theirs.get_initializer(tensor) is None)
    for index in range(len(mine.nodes())):
        for name in ("get_children", "get_parents"):
            found, wanted = (getattr(m, name)(m.nodes()[index]) for m in (mine, theirs))
            assert [node.name for node in found] == [node.name for node in wanted]
    assert mine.output_name_to_node()["c1"].name == "conv1"


def test_a_model_is_changed_in_place(tmp_path):
    model = ONNXModel(make_mlp())
    (first, *_) = list(model.nodes())
    model.remove_node(first)
    model.replace_input_of_all_nodes(first.output[0], "renamed")
    first.output[0] = "renamed"
    model.add_nodes([first])
    model.add_initializer(onnx.numpy_helper.from_array(np.zeros(3, np.float32), "idle"))
    model.topological_sort()
    assert model.nodes()[0].name == first.name
    model.clean_initializers()
    assert "idle" not in model.get_initializer_name_set()
    model.set_opset_import("com.microsoft", 1)
    model.save_model_to_file(tmp_path / "m.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "m.onnx"))
    with pytest.raises(ModelError, match="there is no node"):
        model.remove_node(onnx.helper.make_node("Relu", ["a"], ["b"], name="nobody"))
