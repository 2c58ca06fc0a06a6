"""Channels of zeros: the same integers, by kernels that want multiples of 4 and 16."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.form_models import STEP, IntegerNet, differences, kernels, rewritten
from support.models import constants_of

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


@pytest.mark.parametrize("case", ["output", "float", "concat", "grouped", "constant", "spatial"])
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
