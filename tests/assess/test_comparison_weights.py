"""Weights of two models side by side."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import constants_of, make_cnn, make_mlp, make_samples

import bitwright
from bitwright.decide.ops.quantized_view import QuantizedView
from bitwright.graph import load_model
from bitwright.graph.constants import constant_of
from bitwright.graph.quantized_ops import DEQUANTIZERS


@pytest.mark.parametrize(
    "recipe",
    ["int8", "int8-per-channel", {"weight": "int4"}, "a16w8", {"block_size": 4, "weight": "int4"}],
)
def test_weights_are_restored_to_within_a_step(recipe):
    blocks = isinstance(recipe, dict)
    model = make_mlp() if blocks else make_cnn()
    result = bitwright.quantize(model, data=make_samples(model), recipe=recipe)
    given = load_model(model).graph.initializers
    graph = QuantizedView(result.model)
    restored_weights = {
        node.inputs[0].name.removesuffix("_quantized"): graph.numbers_of(node.outputs[0])
        for node in graph.model.graph
        if node.op_type in DEQUANTIZERS and node.inputs[0].is_initializer()
    }
    arrays = constants_of(result)
    names = {"w1", "w2"} if blocks else {"w1", "w2", "w3", "b1", "b2", "b3"}
    assert names <= restored_weights.keys()
    for name in names & {"w1", "w2", "w3"}:
        weight, restored = constant_of(given[name]), restored_weights[name]
        step = float(np.max(arrays[f"{name}_scale"]))
        # Not half of it: some round the other way, so that errors of a kernel cancel out.
        assert 0 < np.abs(weight - restored).max() <= 1.0001 * step
