"""A max pool whose edges were padded with the lowest number computes the same without the Pad."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from support.models import build, node
from support.rewriting import assert_same, op_types, rewrite

import bitwright
from bitwright.prepare import pads_into_pools

LOWEST = float(np.finfo(np.float32).min)


def model_of(
    around=(0, 0, 0, 1, 0, 0, 1, 1), value=-np.inf, *, opset=13, shape=(2, 3, 9, 8),
    mode="constant", outputs=("y",), **pool,
):  # fmt: skip
    pool = {"kernel_shape": [3, 3], "strides": [2, 2], **pool}
    nodes = [
        node("Pad", ["x", "pads", "value"], ["p"], mode=mode),
        node("MaxPool", ["p"], ["y"], **pool),
    ]
    arrays = {"pads": np.array(around), "value": np.array(value, np.float32)}
    return build(nodes, {"x": shape}, dict.fromkeys(outputs), arrays, opset=opset)


@pytest.mark.parametrize("opset", [11, 13, 18, 21])
@pytest.mark.parametrize("value", [-np.inf, LOWEST])
def test_pads_of_the_lowest_number_are_the_pools_own(opset, value):
    proto = model_of(value=value, opset=opset)
    model, count, _ = rewrite(proto, pads_into_pools)
    assert count == 1
    assert op_types(model) == {"MaxPool": 1}
    assert_same(proto, model)


@settings(deadline=None, max_examples=60)
@given(
    kernel=st.tuples(*[st.integers(1, 4)] * 2),
    strides=st.tuples(*[st.integers(1, 3)] * 2),
    sizes=st.tuples(*[st.integers(4, 9)] * 2),
    data=st.data(),
)
def test_any_pads_that_leave_each_window_a_number(kernel, strides, sizes, data):
    """Begins and ends of both nodes, drawn so that together they stay below the kernel."""
    outer = [data.draw(st.integers(0, k - 1)) for k in [*kernel, *kernel]]
    own = [data.draw(st.integers(0, k - 1 - o)) for k, o in zip([*kernel] * 2, outer, strict=True)]
    proto = model_of(
        [0, 0, *outer[:2], 0, 0, *outer[2:]],
        shape=(1, 2, *sizes), kernel_shape=kernel, strides=strides, pads=own,
    )  # fmt: skip
    model, count, _ = rewrite(proto, pads_into_pools)
    assert count == 1
    assert_same(proto, model)


@pytest.mark.parametrize(
    "case",
    [
        {"value": 0.0},
        {"value": -65504.0},
        {"mode": "reflect"},
        {"outputs": ("y", "p")},
        {"around": (0, 1, 0, 0, 0, 0, 0, 0)},
        {"around": (0, 0, 3, 0, 0, 0, 0, 0)},
        {"around": (0, 0, -1, 0, 0, 0, 0, 0)},
        {"ceil_mode": 1},
        {"dilations": [2, 2]},
        {"auto_pad": "SAME_UPPER"},
        {"opset": 10},
    ],
    ids=str,
)
def test_it_leaves_what_would_compute_another_maximum(case):
    options = dict(case)
    proto = model_of(**{**options, "opset": 13})
    proto.opset_import[0].version = options.get("opset", 13)
    model, count, _ = rewrite(proto, pads_into_pools, infer=False)
    assert count == 0
    assert op_types(model)["Pad"] == 1


def test_such_a_model_is_quantized_for_an_npu(tmp_path):
    """Its Pad had infinite values, which was a refusal."""
    rng = np.random.default_rng(0)
    proto = model_of()
    proto.graph.node.insert(0, node("Conv", ["x", "w"], ["c"]))
    proto.graph.node[1].input[0] = "c"
    weight = rng.normal(size=(3, 3, 1, 1)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    samples = [{"x": rng.normal(size=(2, 3, 9, 8)).astype(np.float32)}]
    result = bitwright.quantize(proto, tmp_path / "m.onnx", recipe="npu-cnn", data=samples)
    assert "folded the pads of 1 max pool" in result.plan.notes
