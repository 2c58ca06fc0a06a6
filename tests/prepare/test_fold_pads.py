"""Max pools and convolutions whose edges were padded compute the same without the Pad."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from support.models import build, node
from support.rewriting import assert_same, op_types, rewrite

import bitwright
from bitwright.prepare import lowest_pads_into_pools, prepare_exactly, zero_pads_into_convolutions

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
    model, count, _ = rewrite(proto, lowest_pads_into_pools)
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
    model, count, _ = rewrite(proto, lowest_pads_into_pools)
    assert count == 1
    assert_same(proto, model)


@pytest.mark.parametrize(
    "case",
    [
        {"value": 0.0},
        {"value": -65504.0},
        {"mode": "reflect"},
        {"around": (0, 1, 0, 0, 0, 0, 0, 0)},
        {"around": (0, 0, 3, 0, 0, 0, 0, 0)},
        {"around": (0, 0, -1, 0, 0, 0, 0, 0)},
        {"around": (0, 0, -1, 0, 0, 0, 0, 0), "pads": [1, 0, 0, 0]},
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
    model, count, _ = rewrite(proto, lowest_pads_into_pools, infer=False)
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


def conv_of(around, value=0.0, *, opset=13, shape=(2, 3, 9, 8), axes=None, outputs=("y",), **conv):
    rank = len(shape) - 2
    mode = conv.pop("mode", "constant")
    pad = ["x", "pads", "" if value is None else "value", *(["axes"] if axes else [])]
    nodes = [node("Pad", pad, ["p"], mode=mode), node("Conv", ["p", "w"], ["y"], **conv)]
    nodes += [node("Abs", ["p"], ["other"])] if "other" in outputs else []
    weight = np.random.default_rng(0).normal(size=(4, shape[1], *[3, 2, 3][:rank]))
    arrays = {"pads": np.array(around), "w": weight.astype(np.float32)}
    arrays |= {} if value is None else {"value": np.array(value, np.float32)}
    arrays |= {"axes": np.array(axes)} if axes else {}
    return build(nodes, {"x": shape}, dict.fromkeys(outputs), arrays, opset=opset)


@settings(deadline=None, max_examples=60)
@given(rank=st.integers(1, 3), data=st.data())
def test_zeros_on_any_side_are_the_convolutions_own_pads(rank, data):
    """Drawn for both nodes, wider than the kernel too, with strides and dilations."""

    def draw(low, high, count=rank):
        return data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    begins, ends = draw(0, 4), draw(0, 4)
    proto = conv_of(
        [0, 0, *begins, 0, 0, *ends],
        data.draw(st.sampled_from([None, 0.0])),
        shape=(1, 2, *draw(5, 7)),
        pads=draw(0, 2, 2 * rank), strides=draw(1, 2), dilations=draw(1, 2),
    )  # fmt: skip
    model, count, _ = rewrite(proto, zero_pads_into_convolutions)
    assert count == 1
    assert op_types(model) == {"Conv": 1}
    assert_same(proto, model, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axes", [(2, 3), (-1, 2), (3,)])
def test_pads_of_named_axes(axes):
    proto = conv_of([*range(1, len(axes) + 1), *[0] * len(axes)], opset=18, axes=axes)
    model, count, _ = rewrite(proto, zero_pads_into_convolutions)
    assert (count, op_types(model)) == (1, {"Conv": 1})
    assert_same(proto, model, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("outputs", [("y", "p"), ("y", "other")])
def test_other_readers_keep_the_pad(outputs):
    proto = conv_of((0, 0, 0, 1, 0, 0, 1, 1), outputs=outputs)
    model, count, _ = rewrite(proto, zero_pads_into_convolutions)
    assert count == 1
    (conv,) = [n for n in model.graph if n.op_type == "Conv"]
    assert conv.inputs[0].name == "x" and op_types(model)["Pad"] == 1
    assert_same(proto, model, rtol=1e-4, atol=1e-5)
    proto = model_of(outputs=("y", "p"))
    model, count, _ = rewrite(proto, lowest_pads_into_pools)
    assert (count, op_types(model)) == (1, {"MaxPool": 1, "Pad": 1})
    assert_same(proto, model)


@pytest.mark.parametrize(
    "case",
    [
        {"value": 0.5},
        {"mode": "edge"},
        {"around": (0, 1, 0, 0, 0, 0, 0, 0), "shape": (2, 2, 9, 8)},
        {"around": (0, 0, 1, -1, 0, 0, 1, 1)},
        {"around": (0, 0, -1, 0, 0, 0, 0, 0), "pads": [1, 0, 0, 0]},
        {"auto_pad": "SAME_UPPER"},
        {"auto_pad": "VALID"},
    ],
    ids=str,
)
def test_convolutions_keep_what_is_no_pad_of_theirs(case):
    proto = conv_of(**{"around": (0, 0, 0, 1, 0, 0, 1, 1), **case})
    _, count, _ = rewrite(proto, zero_pads_into_convolutions, infer=False)
    assert count == 0


def test_pads_that_are_computed_stay():
    proto = conv_of((0, 0, 0, 1, 0, 0, 1, 1))
    proto.graph.node.insert(0, node("Abs", ["pads"], ["computed"]))
    proto.graph.node[1].input[1] = "computed"
    assert rewrite(proto, zero_pads_into_convolutions)[1] == 0


def test_only_an_optimized_model_has_its_convolutions_pads_folded():
    """Other tools' verbs ask for no optimization and quantize the Pad."""
    proto = conv_of((0, 0, 0, 1, 0, 0, 1, 1))
    model = rewrite(proto, lowest_pads_into_pools)[0]
    assert prepare_exactly(model, optimize=False) == []
    assert prepare_exactly(model) == ["folded the pads of 1 convolution"]
