"""HardSigmoid and HardSwish as saturating additions: levels as promised, fused by the runtime."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.form_models import IntegerNet, differences, kernels, rewritten
from support.models import run, run_plain

GATE = 1 / 255


def make_gate(op, kind="uint8", scale=1 / 24, zero=100, result=(0.04, 30), **attributes):
    """Every level of an 8-bit input goes through one node."""
    net = IntegerNet()
    source = net.quantize("x", scale, zero, kind)
    made = net.add(op, [source], "gate", **attributes)
    return net.model([net.quantize(made, *result, kind)], {"x": [1, 4, 8, 8]})


def levels_apart(before, after, scale, source=(1 / 24, 100), lowest=0):
    """How many levels results are apart, for each of 256 inputs; as the graph says, and as run."""
    numbers = (np.arange(lowest, lowest + 256) - source[1]) * source[0]
    feeds = {"x": numbers.astype(np.float32).reshape(1, 4, 8, 8)}
    apart = [
        np.rint((run_[0] - run_plain(before, feeds)[0]) / scale)
        for run_ in (run_plain(after, feeds), run(after, feeds))
    ]
    return [np.abs(one).astype(int) for one in apart]


@settings(max_examples=25)
@given(
    step=st.floats(0.004, 0.2),
    zero=st.integers(0, 255),
    alpha=st.sampled_from([1 / 6, 0.2, 0.5]),
    end=st.floats(0.4, 1.0),
    signed=st.booleans(),
)
def test_a_hard_sigmoid_keeps_its_levels_but_on_ties(step, zero, alpha, end, signed):
    kind, lowest = ("int8", -128) if signed else ("uint8", 0)
    scale, source = float(np.float32(end / 255)), (step, zero + lowest)
    before = make_gate("HardSigmoid", kind, *source, (scale, lowest), alpha=alpha)
    after, notes = rewritten(before)
    assert notes == [
        "wrote 1 HardSigmoid or HardSwish node as saturating integer additions and products"
    ]
    for apart in levels_apart(before, after, scale, source, lowest):
        assert apart.max() <= 1
        assert apart.astype(bool).mean() < 0.1


@settings(max_examples=25)
@given(
    step=st.floats(0.004, 0.2),
    zero=st.integers(0, 255),
    levels=st.integers(150, 255),
)
def test_a_hard_swish_rounds_once_more(step, zero, levels):
    # Where it is not saturated, the gate is up to half of a 255th off; then the result is rounded.
    top = max((255 - zero) * step, 0.5)
    scale = float(np.float32((top + 0.4) / levels))
    before = make_gate("HardSwish", "uint8", step, zero, (scale, round(0.4 / scale)))
    after, _ = rewritten(before)
    bound = np.ceil(max(min(zero * step, 3.0), top) / 255 / 2 / scale + 0.5)
    for apart in levels_apart(before, after, scale, (step, zero)):
        assert apart.max() <= bound <= 4


def test_a_gate_that_is_only_multiplied_needs_no_quantizer_of_its_own():
    net = IntegerNet(exact=False)
    source = net.conv(net.quantize("x"), 16, 16)
    gate = net.add("HardSigmoid", [net.conv(source, 16, 16)], "gate", alpha=1 / 6)
    before = net.model([net.op("Mul", [source, gate], scale=0.02)], {"x": [1, 16, 6, 6]})
    after, notes = rewritten(before)
    assert len(notes) == 1
    assert kernels(after).count("QLinearMul") == kernels(after).count("QLinearAdd") == 1
    assert "HardSigmoid" not in kernels(after)
    # Half a level of the gate's 255, of a number up to 15; and the rounding of the result.
    assert differences(before, after) <= 15 / 255 / 2 + 0.02


def test_a_gate_that_is_read_as_float_stays_float():
    net = IntegerNet(exact=False)
    gate = net.add("HardSigmoid", [net.conv(net.quantize("x"), 16, 16)], "gate", alpha=1 / 6)
    before = net.model([net.add("Erf", [gate], "erf")], {"x": [1, 16, 6, 6]})
    assert rewritten(before)[1] == []


@pytest.mark.parametrize("op", ["HardSigmoid", "HardSwish"])
def test_the_runtime_runs_them_on_integers(op):
    net = IntegerNet(exact=False)
    source = net.conv(net.quantize("x"), 32, 32)
    scale = {"scale": GATE, "zero_point": 0} if op == "HardSigmoid" else {}
    out = net.conv(net.op(op, [source], **scale), 32, 32)
    after, _ = rewritten(net.model([out], {"x": [1, 32, 6, 6]}))
    wanted = ["QLinearAdd"] + ["QLinearMul"] * (op == "HardSwish")
    inner = ["QLinearConv", *wanted, "QLinearConv"]
    moves = ("QuantizeLinear", "DequantizeLinear", "Transpose")
    assert [name for name in kernels(after) if name not in moves] == inner


@pytest.mark.parametrize(
    ("op", "kind", "result", "attributes"),
    [
        ("HardSigmoid", "uint8", (GATE, 3), {}),
        ("HardSigmoid", "uint8", (1.2 / 255, 0), {}),
        ("HardSigmoid", "uint8", (GATE, 0), {"beta": 0.0}),
        ("HardSigmoid", "uint8", (GATE, 0), {"alpha": -0.2}),
        ("HardSwish", "uint16", (GATE, 0), {}),
    ],
)
def test_others_stay_float(op, kind, result, attributes):
    before = make_gate(op, kind, 1 / 24, 100, result, **attributes)
    assert rewritten(before)[1] == []
