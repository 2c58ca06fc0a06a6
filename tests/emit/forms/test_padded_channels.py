"""Channels of zeros: the same integers, by kernels that want multiples of 4 and 16."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.form_models import STEP, IntegerNet, differences, kernels, rewritten
from support.models import constants_of

from bitwright.decide.ops.integer_kernels import padded_channels

NOTE = "with zeros: the same values"


def channels_of(proto):
    """What each convolution writes and reads."""
    weights = constants_of(proto)
    dequantized = {n.output[0]: n.input[0] for n in proto.graph.node}
    convs = [node for node in proto.graph.node if node.op_type == "Conv"]
    return [weights[dequantized[conv.input[1]]].shape[:2] for conv in convs]


def make_block(channels, *, exact=True, seed=0, gated=True, bias=True, per_channel=True):
    """A block of MobileNet: 1x1, depthwise 3x3, a gate, 1x1, added to what it read."""
    net = IntegerNet(seed, exact)
    source = net.conv(net.quantize("x"), 8, 16)
    wide = net.conv(source, 16, channels, bias=bias)
    wide = net.conv(wide, channels, channels, 3, group=channels, bias=bias)
    if gated:
        pooled = net.op("GlobalAveragePool", [wide])
        gate = net.conv(net.conv(pooled, channels, 18), 18, channels)
        gate = net.op("HardSigmoid", [gate], scale=STEP / 16, zero_point=0)
        wide = net.op("Mul", [wide, gate])
        wide = net.op("HardSwish", [wide])
    out = net.op("Add", [source, net.conv(wide, channels, 16)])
    if not per_channel:
        for name in [name for name in net.constants if name.endswith(("_w_s", "_b_s"))]:
            one = net.constants[name].max() * 0 + np.float32(2.0**-9 / (16 if "b_s" in name else 1))
            net.constants[name] = one
            net.constants[name[:-1] + "z"] = net.constants[name[:-1] + "z"][0]
    return net.model([out], {"x": [1, 8, 7, 7]})


@settings(max_examples=12)
@given(
    channels=st.integers(9, 40),
    seed=st.integers(0, 1000),
    gated=st.booleans(),
    bias=st.booleans(),
    per_channel=st.booleans(),
)
def test_the_integers_stay_the_same(channels, seed, gated, bias, per_channel):
    options = {"seed": seed, "gated": False, "bias": bias, "per_channel": per_channel}
    before = make_block(channels, **options)
    after, notes = rewritten(before)
    assert (channels % 16 != 0) == any(NOTE in note for note in notes)
    widths = [shape[0] for shape in channels_of(after)]
    assert widths[1] == widths[2] == -(-channels // 16) * 16
    assert differences(before, after) == 0


def test_what_is_tied_by_gates_and_sums_is_padded_together():
    before = make_block(24)
    after, _ = rewritten(before)
    wide = [(16, 8), (32, 16), (32, 1), (20, 32), (32, 20), (16, 32)]
    assert channels_of(after) == wide


@pytest.mark.parametrize("seed", range(3))
def test_the_runtime_fuses_as_before_and_gives_the_same_integers(seed):
    before = make_block(24, exact=False, seed=seed, gated=False)
    after, _ = rewritten(before)
    assert kernels(after) == kernels(before)
    assert kernels(after).count("QLinearConv") == 4
    assert differences(before, after, plain=False) == 0


def make_joined(first, last, *, exact=True, seed=0, pooled=False, added=False, nested=False):
    """Channels of two convolutions, joined, and then read by others."""
    net = IntegerNet(seed, exact)
    source, channels = net.conv(net.quantize("x"), 8, 16), first + last
    joined = net.op("Concat", [net.conv(source, 16, n) for n in (first, last)], axis=1)
    if nested:
        joined = net.op("Concat", [net.conv(source, 16, first), joined], axis=1)
        channels += first
    if added:
        joined = net.op("Add", [joined, net.conv(source, 16, channels)])
    if pooled:
        joined = net.op("MaxPool", [joined], kernel_shape=[2, 2])
    wide = net.conv(joined, channels, channels, 3, group=channels)
    outputs = [net.conv(wide, channels, 16), net.conv(joined, channels, 16, 3)]
    return net.model(outputs, {"x": [1, 8, 6, 6]})


@settings(max_examples=15)
@given(
    first=st.integers(9, 34),
    last=st.integers(9, 34),
    seed=st.integers(0, 1000),
    pooled=st.booleans(),
    added=st.booleans(),
    nested=st.booleans(),
)
def test_zeros_stand_where_the_inputs_of_a_concat_have_them(first, last, seed, **options):
    before = make_joined(first, last, seed=seed, **options)
    after, _ = rewritten(before)
    widths = [shape[0] for shape in channels_of(after)]
    assert widths[1:3] == [padded_channels(n, depthwise=False) for n in (first, last)]
    assert differences(before, after) == 0


@pytest.mark.parametrize("seed", range(3))
def test_the_runtime_joins_padded_channels_as_integers(seed):
    before = make_joined(18, 30, exact=False, seed=seed, added=True)
    after, _ = rewritten(before)
    assert kernels(after) == kernels(before)
    assert "QLinearConcat" in kernels(after)
    assert differences(before, after, plain=False) == 0


@pytest.mark.parametrize(
    "case", ["output", "float", "concat", "joined", "sums", "all", "grouped", "constant", "spatial"]
)
def test_channels_that_somebody_needs_as_they_are_stay(case):
    net = IntegerNet()
    wide = net.conv(net.quantize("x"), 16, 30)
    outputs = []
    if case == "output":
        outputs.append(wide)
    elif case == "float":
        outputs.append(net.add("ReduceMax", [wide], "max", axes=[1]))
    elif case == "concat":
        outputs.append(net.op("Concat", [wide, wide], axis=1))
    elif case == "joined":
        joined = net.op("Concat", [wide, wide], axis=1)
        outputs += [net.conv(joined, 60, 16), net.add("ReduceMax", [joined], "max", axes=[1])]
    elif case == "sums":  # of channels with zeros in different places
        other = net.conv(wide, 30, 10)
        sums = [net.op("Concat", parts, axis=1) for parts in ([wide, other], [other, wide])]
        outputs.append(net.conv(net.op("Add", sums), 40, 16))
    elif case == "all":  # each Concat has parts of its own, as in GhostNet
        ends = [net.conv(wide, 30, 10), net.conv(wide, 30, 18)]
        sums = [net.op("Concat", [wide, ends[0]], axis=1)]
        sums.append(net.op("Concat", [ends[1], net.conv(ends[1], 18, 22)], axis=1))
        outputs.append(net.conv(net.op("Add", sums), 40, 16))
    elif case == "grouped":
        outputs.append(net.conv(wide, 30, 1024, 3, group=2))
    elif case == "constant":
        vector = net.stored("v", np.arange(30).reshape(1, 30, 1, 1), "uint8")
        wide = net.op("Mul", [wide, vector])
    else:
        wide = net.op("Softmax", [wide], axis=1)
    before = net.model([net.conv(wide, 30, 16), *outputs], {"x": [1, 16, 4, 4]}, opset=13)
    after, _ = rewritten(before)
    assert channels_of(after) == channels_of(before)


def test_weights_of_uint8_are_padded_with_what_stands_for_zero():
    net = IntegerNet()
    wide = net.conv(net.conv(net.quantize("x"), 16, 30, 3), 30, 16, 3)
    before = net.model([wide], {"x": [1, 16, 5, 5]})
    for tensor in before.graph.initializer:
        if tensor.name.endswith(("_w", "_w_z")):
            moved = (constants_of(before)[tensor.name].astype(int) + 128).astype(np.uint8)
            tensor.raw_data, tensor.data_type = moved.tobytes(), 2
    after, _ = rewritten(before)
    assert channels_of(after) == [(32, 16), (16, 32)]
    assert differences(before, after) == 0
