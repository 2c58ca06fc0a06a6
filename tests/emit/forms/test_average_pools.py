"""Averages as depthwise convolutions and global pools: the same integers, by integer kernels."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.form_models import IntegerNet, differences, kernels, rewritten
from support.models import ops

_ENDS = ("QuantizeLinear", "DequantizeLinear")


def make_pool(op, *, exact=True, seed=0, opset=17, convs=True, **attributes):
    net = IntegerNet(seed, exact)
    source = net.conv(net.quantize("x"), 16, 16) if convs else net.quantize("x")
    axes = [net.constant("axes", np.int64([-1, 2]))] if op == "ReduceMean" and opset > 17 else []
    pooled = net.op(op, [source, *axes], **attributes)
    out = net.conv(pooled, 16, 16) if convs else pooled
    return net.model([out], {"x": [1, 16, 8, 8]}, opset)


@settings(max_examples=15)
@given(
    kernel=st.sampled_from([[2, 2], [1, 4], [4, 2], [8, 8]]),
    stride=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 1000),
)
def test_averages_of_powers_of_two_are_the_same_integers(kernel, stride, seed):
    options = {"kernel_shape": kernel, "strides": [stride] * 2, "seed": seed}
    before = make_pool("AveragePool", convs=False, **options)
    after, notes = rewritten(before)
    assert [note.split(" as ")[0] for note in notes] == ["wrote 1 average"]
    assert ops(after)["Conv"] == 1
    assert differences(before, after) == 0


def test_nothing_of_an_average_is_left_on_the_convolution():
    options = {"kernel_shape": [2, 2], "count_include_pad": 1, "ceil_mode": 0, "auto_pad": "NOTSET"}
    before = make_pool("AveragePool", convs=False, **options)
    after, _ = rewritten(before)
    onnx.checker.check_model(after)
    assert differences(before, after) == 0


@pytest.mark.parametrize("opset", [17, 18])
def test_a_mean_over_height_and_width_is_a_global_pool(opset):
    axes = {"axes": [2, -1]} if opset < 18 else {}
    before = make_pool("ReduceMean", opset=opset, **axes)
    after, _ = rewritten(before)
    assert ops(after)["GlobalAveragePool"] == 1
    assert differences(before, after) == 0


def test_a_mean_without_the_axes_is_a_global_pool_that_is_flattened():
    net = IntegerNet()
    source = net.conv(net.quantize("x"), 16, 16)
    mean = net.op("ReduceMean", [source], axes=[2, 3], keepdims=0)
    weight = net.stored("w", net.rng.integers(-127, 128, (16, 8)), "int8", 2.0**-9)
    before = net.model([net.op("Gemm", [mean, weight])], {"x": [1, 16, 8, 8]}, 17)
    after, notes = rewritten(before)
    assert [note.split(" as ")[0] for note in notes] == ["wrote 1 average"]
    assert differences(before, after) == 0
    wanted = ["QLinearConv", "QLinearGlobalAveragePool", "Flatten", "QGemm"]
    assert [op for op in kernels(after) if op not in ("Transpose", *_ENDS)] == wanted


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("op", "attributes", "kernel"),
    [
        ("AveragePool", {"kernel_shape": [3, 3]}, "QLinearConv"),
        ("ReduceMean", {"axes": [2, 3]}, "QLinearGlobalAveragePool"),
    ],
)
def test_the_runtime_takes_its_integer_kernels(op, attributes, kernel, seed):
    before = make_pool(op, exact=False, seed=seed, **attributes)
    after, _ = rewritten(before)
    order = kernels(after)
    start = order.index("QLinearConv")
    assert order[start : start + 3] == ["QLinearConv", kernel, "QLinearConv"]
    # A level of the last convolution: an average between two levels may become either.
    assert differences(before, after, plain=False) <= 1.4 / 16 * 1.01


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("AveragePool", {"kernel_shape": [3, 3], "pads": [1] * 4}),
        ("AveragePool", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
        ("AveragePool", {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER"}),
        ("ReduceMean", {"axes": [1]}),
        ("ReduceMean", {"axes": [2]}),
    ],
)
def test_others_stay_as_they_are(op, attributes):
    before = make_pool(op, convs=False, **attributes)
    assert rewritten(before)[1] == []
