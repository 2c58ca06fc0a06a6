"""Clips at the edges of float MaxPools: the same integers, and the pool stays a float one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.form_models import IntegerNet, differences, kernels, rewritten
from support.models import run_plain

POOL = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}


def make_stem(kind="uint8", zero_point=0, scale=1 / 16, *, front=False):
    """A float convolution and a MaxPool before a quantizer; `front`: and behind one."""
    net = IntegerNet()
    net.constant("stem_w", np.random.default_rng(0).standard_normal((16, 8, 3, 3), np.float32))
    made = net.add("Conv", ["x", "stem_w"], "stem", pads=[1] * 4)
    if front:
        made = net.quantize(made, scale, zero_point, kind)
    out = net.op("MaxPool", [made], pair=False, **POOL)
    return net, net.quantize(out, scale, zero_point, kind)


@settings(max_examples=10)
@given(
    kind=st.sampled_from(["uint8", "int8"]),
    zero_point=st.integers(-128, 255),
    scale=st.floats(1e-4, 1.0),
    front=st.booleans(),
)
def test_the_integers_stay_the_same(kind, zero_point, scale, front):
    zero_point = int(np.clip(zero_point, *(np.iinfo(kind).min, np.iinfo(kind).max)))
    net, out = make_stem(kind, zero_point, scale, front=front)
    before = net.model([out], {"x": [1, 8, 6, 6]})
    after, notes = rewritten(before)
    assert notes == [
        "put a Clip beside 1 float MaxPool at the edge of the integers, which ONNX Runtime would "
        "run on bytes, slower: the same values"
    ]
    assert differences(before, after) == 0
    huge = {"x": np.full((1, 8, 6, 6), 1e30, np.float32)}
    np.testing.assert_array_equal(run_plain(before, huge)[0], run_plain(after, huge)[0])


@pytest.mark.parametrize("front", [False, True])
def test_the_runtime_leaves_the_pool_before_the_quantizer(front):
    net, out = make_stem(front=front)
    before = net.model([net.conv(out, 16, 16)], {"x": [1, 8, 6, 6]})
    order = kernels(before)
    assert order.index("QuantizeLinear") < order.index("MaxPool")
    order = kernels(rewritten(before)[0])
    assert order.index("Conv") < order.index("MaxPool") < order.index("QuantizeLinear")


def test_a_float_pool_behind_bytes_of_floats_reads_floats():
    net = IntegerNet()
    source = net.quantize("x", 1 / 16, 7)
    pool = net.op("MaxPool", [source], pair=False, **POOL)
    before = net.model([pool, net.conv(source, 16, 16)], {"x": [1, 16, 6, 6]})
    order = kernels(before)
    assert order.index("MaxPool") < order.index("DequantizeLinear")
    after, notes = rewritten(before)
    assert len(notes) == 1
    assert differences(before, after) == 0
    order = kernels(after)
    assert order.index("DequantizeLinear") < order.index("MaxPool")


@pytest.mark.parametrize("case", ["integer", "integer_to_float", "two_readers"])
def test_pools_with_a_fast_kernel_stay_as_they_are(case):
    net = IntegerNet()
    if case == "two_readers":
        pool = net.op("MaxPool", ["x"], pair=False, **POOL)
        outputs = [net.quantize(pool), net.add("Relu", [pool], "relu")]
    else:
        source = net.conv(net.quantize("x"), 16, 16)
        numbers = [net.constants[source.removesuffix("d") + end].item() for end in "sz"]
        pool = net.op("MaxPool", [source], pair=False, **POOL)
        outputs = [net.quantize(pool, *numbers) if case == "integer" else pool]
    before = net.model(outputs, {"x": [1, 16, 6, 6]})
    assert rewritten(before)[1] == []
    assert case == "two_readers" or "NhwcMaxPool" in kernels(before)
