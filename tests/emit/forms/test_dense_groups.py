"""Grouped convolutions written as dense ones: the same integers, by the kernel without im2col."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.form_models import IntegerNet, differences, kernels, rewritten
from support.models import constants_of, nodes_by_name


def make_grouped(group, reads, writes, kernel, *, exact=True, seed=0, bias=True, **attributes):
    net = IntegerNet(seed, exact)
    first = net.conv(net.quantize("x"), 16, reads * group)
    shape = (reads * group, writes * group, kernel)
    last = net.conv(first, *shape, group=group, bias=bias, **attributes)
    return net.model([last], {"x": [1, 16, 7, 7]})


@settings(max_examples=15)
@given(
    group=st.sampled_from([2, 4, 8]),
    reads=st.sampled_from([1, 2, 3, 4]),
    writes=st.sampled_from([2, 4, 5]),
    kernel=st.sampled_from([1, 3]),
    seed=st.integers(0, 1000),
    bias=st.booleans(),
    stride=st.sampled_from([1, 2]),
)
def test_the_integers_stay_the_same(group, reads, writes, kernel, seed, bias, stride):
    shape = (group, reads, writes, kernel)
    before = make_grouped(*shape, seed=seed, bias=bias, strides=[stride] * 2)
    after, notes = rewritten(before)
    assert any("with the zeros between groups" in note for note in notes)
    assert all(n.attribute[0].i == 1 for n in after.graph.node if n.op_type == "Conv")
    assert differences(before, after) == 0


@pytest.mark.parametrize("seed", range(3))
def test_kernels_give_the_same_integers_and_are_of_one_group(seed):
    before = make_grouped(8, 4, 4, 3, exact=False, seed=seed)
    after, _ = rewritten(before)
    assert differences(before, after, plain=False) == 0
    assert kernels(after).count("QLinearConv") == kernels(before).count("QLinearConv") == 2


def test_a_weight_that_another_convolution_reads_is_left_to_it():
    net = IntegerNet()
    source = net.quantize("x")
    net.conv(source, 32, 32, 3, group=8)
    first = net.nodes[-3]
    again = net.add("Conv", list(first.input), "again", pads=[1] * 4, group=8)
    before = net.model([net.quantize(again)], {"x": [1, 32, 5, 5]})
    after, _ = rewritten(before)
    assert differences(before, after) == 0


@pytest.mark.parametrize("case", ["depthwise", "few_groups", "float_result", "float_weight"])
def test_others_stay_as_they_are(case):
    net = IntegerNet()
    source, channels = net.quantize("x"), 256 if case == "few_groups" else 32
    group = {"depthwise": 32, "few_groups": 2}.get(case, 8)
    if case == "float_weight":
        net.constant("w", constants_of(make_grouped(8, 4, 4, 3))["conv2_w"].astype("float32")[:32])
        out = net.quantize(net.add("Conv", [source, "w"], "conv", group=8, pads=[1] * 4))
    else:
        out = net.conv(source, channels, channels, 3, group=group, pair=case != "float_result")
    before = net.model([out], {"x": [1, channels, 5, 5]})
    after, notes = rewritten(before)
    assert not notes
    assert nodes_by_name(after).keys() == nodes_by_name(before).keys()
