"""Packed weights: their names, and the codes of float16 weights."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnxruntime.quantization.neural_compressor import weight_only as peer
from support.models import FLOAT16, build, constants_of, node, retype, weight
from support.neural_compressor import mlp

from bitwright.compat.neural_compressor.weight_only import gptq_quantize, rtn_quantize


def packed(model):
    return {n.name: list(n.input[1:]) for n in model.nodes() if n.op_type == "MatMulNBits"}


def test_names_are_those_that_neural_compressor_writes():
    found = rtn_quantize(mlp(), {"fc1": {"bits": 8, "group_size": 64, "scheme": "sym"}})
    first, second = (n.input[1] for n in mlp().graph.node if n.op_type == "MatMul")
    assert packed(found) == {
        "fc1_Q8": [f"{first}_Q8G64", f"{first}_scale"],
        "fc2_Q4": [f"{second}_Q4G32", f"{second}_scale", f"{second}_zp"],
    }
    onnx.checker.check_model(found.model)


def test_constants_that_two_nodes_read_have_one_name():
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="a"),
        node("MatMul", ["h", "w"], ["y"], name="b"),
    ]
    found = rtn_quantize(build(nodes, {"x": [2, 32]}, {"y": [2, 32]}, {"w": weight(32, 32)}))
    assert packed(found) == {f"{name}_Q4": ["w_Q4G32", "w_scale", "w_zp"] for name in ("a", "b")}


def test_a_second_call_takes_the_same_settings():
    config = {
        "fc1": {"bits": 4, "group_size": 32, "scheme": "asym", "algorithm": "GPTQ"},
        "fc2": {"bits": 8, "group_size": 32, "scheme": "asym", "algorithm": "RTN"},
    }
    shape = [d.dim_value or 2 for d in mlp().graph.input[0].type.tensor_type.shape.dim]
    loader = [(weight(*shape, seed=seed), 0) for seed in range(4)]
    once = gptq_quantize(mlp(), loader, config)
    assert list(packed(once)) == ["fc1_Q4"]
    assert list(packed(rtn_quantize(once, config))) == ["fc1_Q4", "fc2_Q8"]


def product(rows=128, columns=96):
    return retype(
        build(
            [node("MatMul", ["x", "w"], ["y"], name="fc")],
            {"x": ["m", rows]},
            {"y": ["m", columns]},
            {"w": weight(rows, columns)},
            opset=21,
        ),
        np.float16,
        FLOAT16,
    )


@pytest.mark.parametrize(
    "options",
    [{}, {"num_bits": 8, "group_size": 64}, {"ratios": {"w": 0.9}}],
    ids=["4 bits", "8 bits", "ratio"],
)
def test_codes_scales_and_zero_points_are_the_peers(options, monkeypatch):
    monkeypatch.setattr(peer, "simple_progress_bar", lambda *counts: None)
    theirs = constants_of(peer.rtn_quantize(product(), algorithm="rtn", **options).model)
    ours = constants_of(rtn_quantize(product(), **options).model)
    assert theirs.keys() == ours.keys() and len(ours) == 3
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name].ravel(), array.ravel(), err_msg=name)
