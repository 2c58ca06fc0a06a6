"""Options about the limits of the NPU's shifters: what each changes in the model written."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import (
    make_cnn,
    node,
    normal,
    producer_of,
    weight,
)
from support.vai_q_onnx import (
    behind_conv,
    conv,
    image_model,
    on_npu,
    option,
    position,
    recipe_of,
)


def two_branches(op_type, small, **attributes):
    constants = {
        "w1": weight(4, 3, 1, 1, seed=1),
        "w2": weight(4, 3, 1, 1, seed=2) * np.float32(small),
    }
    nodes = [
        conv(["x", "w1"], "a", "left"),
        conv(["x", "w2"], "b", "right"),
        node(op_type, ["a", "b"], ["y"], name="join", **attributes),
    ]
    return image_model(*nodes, constants=constants)


def cancelling_sum():
    kernel = weight(4, 3, 1, 1, seed=1)
    nodes = [
        conv(["x", "w1"], "a", "left"),
        conv(["x", "w2"], "b", "right"),
        node("Add", ["a", "b"], ["y"], name="join"),
    ]
    return image_model(*nodes, constants={"w1": kernel, "w2": kernel * np.float32(-0.9999)})


def lone_conv(size, bias):
    constants = {"w": weight(4, 3, 1, 1) * np.float32(size), "b": normal(4, seed=3, size=bias)}
    return image_model(conv(["x", "w", "b"], "y", "conv"), constants=constants)


def hard_sigmoid(size):
    return image_model(
        conv(["x", "w"], "c", "conv"),
        node("HardSigmoid", ["c"], ["y"], name="hard", alpha=1 / 6, beta=0.5),
        constants={"w": weight(4, 3, 1, 1) * np.float32(size)},
    )


def swish_of_next_to_nothing():
    """Large and negative, or -2.999: of all that the swish leaves next to nothing."""
    kernel = -300 * np.abs(weight(4, 3, 1, 1))
    return image_model(
        node("Relu", ["x"], ["r"], name="relu"),
        conv(["r", "w", "bias"], "c", "conv"),
        node("HardSigmoid", ["c"], ["h"], name="hard", alpha=1 / 6, beta=0.5),
        node("Mul", ["c", "h"], ["y"], name="swish"),
        constants={"w": kernel.astype(np.float32), "bias": np.full(4, -2.999, np.float32)},
    )


def violates_concat(made):
    return len({position(made, name) for name in "aby"}) > 1


def violates_pool(made):
    return position(made, "c") != position(made, "y")


def violates_read(made):
    return abs(position(made, "a") - position(made, "b")) > 7


def violates_write(made):
    return not -7 <= min(position(made, "a"), position(made, "b")) - position(made, "y") <= 25


def cut(made):
    return position(made, "w") + position(made, "x") - position(made, "y")


def violates_cut(made):
    return not 0 <= cut(made) <= 16


def violates_bias(made):
    shift = position(made, "w") + position(made, "x") - position(made, "b")
    return not min(0, -(24 - (8 + cut(made)))) <= shift <= 15


def violates_hard_sigmoid(made):
    return not 0 <= position(made, "c") <= 15


def violates_swish(made):
    shift = position(made, "c") + position(made, "h") - position(made, "y")
    return not 0 <= shift <= 15


POOL = node("AveragePool", ["c"], ["y"], name="pool", kernel_shape=[6, 6])
PAD = node("Pad", ["c", "pads", "value"], ["y"], name="pad")
PADDING = {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "value": np.float32(50)}
LIMITS = {
    "AlignConcat": (lambda: two_branches("Concat", 0.05, axis=1), violates_concat),
    "AlignPool": (lambda: behind_conv(POOL), violates_pool),
    "AlignPad": (lambda: behind_conv(PAD, constants=PADDING), violates_pool),
    "AdjustShiftRead": (lambda: two_branches("Add", 1e-4), violates_read),
    "AdjustShiftWrite": (cancelling_sum, violates_write),
    "AdjustShiftCut": (lambda: lone_conv(1e-4, 100), violates_cut),
    "AdjustShiftBias": (lambda: lone_conv(1, 1e-6), violates_bias),
    "AdjustHardSigmoid": (lambda: hard_sigmoid(300), violates_hard_sigmoid),
    "AdjustShiftSwish": (swish_of_next_to_nothing, violates_swish),
}


@option(*LIMITS, "NPULimitationCheck", "IPULimitationCheck")
@pytest.mark.filterwarnings("ignore:option 'IPULimitationCheck':DeprecationWarning")
@pytest.mark.parametrize("key", LIMITS)
@pytest.mark.sampled(5)
def test_a_limit_is_kept_on_its_switch(key):
    make, violates = LIMITS[key]
    # Without the NPU's own factor behind pools and sigmoids, whose outputs have other names.
    plain = {"SimulateDPU": False}
    # A bias may be brought within its limit by way of the weight, and a swish is a product.
    overlapping = {"AdjustShiftCut": "AdjustShiftBias", "AdjustShiftSwish": "AdjustShiftWrite"}
    if key in overlapping:
        plain[overlapping[key]] = False
    assert not violates(on_npu(make(), plain))
    assert violates(on_npu(make(), {**plain, key: False}))
    for switch in ("NPULimitationCheck", "IPULimitationCheck"):
        assert violates(on_npu(make(), {**plain, switch: False}))


@option("AlignSlice")
def test_a_slice_has_the_scale_of_what_it_reads():
    constants = {"s": np.array([0]), "e": np.array([2]), "a": np.array([1])}
    model = behind_conv(node("Slice", ["c", "s", "e", "a"], ["y"], name="cut"), constants=constants)
    for options in ({}, {"AlignSlice": True}, {"AlignSlice": False}):
        assert producer_of(on_npu(model, options), "y").input[1] == "c_scale"


@option("MaxLoopNum")
def test_rounds_over_the_limits():
    assert recipe_of(on_npu(make_cnn(), {"MaxLoopNum": 2}))["emulate"]["limits"]["max_rounds"] == 2
