from __future__ import annotations

import onnx_ir as ir
import pytest

from bitwright.errors import ModelError
from bitwright.graph import clone_model, iter_values, load_model


def test_a_clone_shares_tensors_and_nothing_that_can_be_changed(builders):
    model = load_model(builders.branches())
    model.meta["note"] = 1
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    twin = clone_model(model)
    assert twin.meta["note"] == 1
    assert ir.to_proto(twin).SerializeToString(deterministic=True) == before
    for (_, ours), (_, theirs) in zip(iter_values(twin), iter_values(model), strict=True):
        assert ours is not theirs and ours.const_value is theirs.const_value
        ours.dtype = ir.DataType.FLOAT16
        ours.shape = ir.Shape([7])
    for node in twin.graph.all_nodes():
        node.name = "changed"
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_an_unsorted_model_is_refused(builders):
    model = load_model(builders.mlp())
    first = model.graph.node("first")
    model.graph.remove(first)
    model.graph.append(first)
    with pytest.raises(ModelError, match="topological order"):
        clone_model(model)
