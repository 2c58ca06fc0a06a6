"""Channel shuffles as columns of zeros: the same integers, and no bytes are moved."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.form_models import IntegerNet, differences, kernels, rewritten

NOTE = "in front of 1 channel shuffle,"
SIZE = 5


class ShuffleNet(IntegerNet):
    """A net whose nodes move bytes, each with a pair of the scale in front."""

    def move(self, op_type, source, *parameters, like=None, pair=True, results=1, **attributes):
        stem = (like or source).removesuffix("_d")
        scale, zero_point = (self.constants[f"{stem}_{end}"].item() for end in "sz")
        name = f"{op_type.lower()}{len(self.nodes)}"
        inputs = [source, *(self.constant(f"{name}_in{i}", np.int64(p)) for i, p in parameters)]
        made = self.add(op_type, inputs, name, **attributes)
        names = [made, *(f"{made}_{index}" for index in range(1, results))]
        self.nodes[-1].output[:] = names
        found = [self.quantize(n, scale, zero_point) if pair else n for n in names]
        return found if results > 1 else found[0]

    def shuffle(self, source, channels, groups, **options):
        apart = [1, groups, channels // groups, SIZE, SIZE]
        moved = self.move("Reshape", source, (1, apart), like=source, **options)
        moved = self.move("Transpose", moved, like=source, perm=[0, 2, 1, 3, 4], **options)
        return self.move("Reshape", moved, (1, [1, channels, SIZE, SIZE]), like=source)

    def halves(self, source, channels, split=False):
        if split:
            half = [channels // 2, channels - channels // 2]
            return self.move("Split", source, (1, half), axis=1, results=2)
        ends = [(0, channels // 2), (channels // 2, 2**62)]
        return [self.move("Slice", source, (1, [a]), (2, [b]), (3, [1])) for a, b in ends]


def make_unit(channels=24, groups=2, *, exact=True, seed=0, split=False, bias=True):
    """A unit of ShuffleNetV2: of the shuffled channels one half is passed on."""
    net, half = ShuffleNet(seed, exact), channels // 2
    source = net.conv(net.quantize("x"), 8, channels)
    kept, read = net.halves(net.shuffle(source, channels, groups), channels, split)
    wide = net.conv(read, channels - half, half, bias=bias)
    wide = net.conv(wide, half, half, 3, group=half, bias=bias)
    out = net.op("Concat", [kept, net.conv(wide, half, half)], axis=1)
    return net.model([net.conv(out, half + half, 16)], {"x": [1, 8, SIZE, SIZE]})


def make_reduction(channels=16, *, exact=True, seed=0):
    """A unit that halves the image: all channels are read by two branches."""
    net = ShuffleNet(seed, exact)
    moved = net.shuffle(net.conv(net.quantize("x"), 8, channels), channels, 4)
    shape = (channels, channels, 3)
    deep = net.conv(moved, *shape, group=channels, strides=[2, 2])
    wide = net.conv(moved, channels, 24, 3, strides=[2, 2])
    branches = [net.conv(deep, channels, 16), net.conv(deep, channels, 8), wide]
    return net.model(branches, {"x": [1, 8, SIZE, SIZE]})


@settings(max_examples=10)
@given(
    groups=st.sampled_from([2, 3, 4]),
    each=st.integers(4, 9),
    seed=st.integers(0, 1000),
    split=st.booleans(),
    bias=st.booleans(),
)
def test_the_integers_stay_the_same(groups, each, seed, split, bias):
    before = make_unit(groups * each, groups, seed=seed, split=split, bias=bias)
    after, notes = rewritten(before)
    assert any(NOTE in note for note in notes)
    assert not {"Reshape", "Transpose", "Slice", "Split"} & {n.op_type for n in after.graph.node}
    assert differences(before, after) == 0


@settings(max_examples=5)
@given(channels=st.sampled_from([16, 24, 40]), seed=st.integers(0, 1000))
def test_depthwise_filters_and_what_reads_their_results_change_their_order(channels, seed):
    before = make_reduction(channels, seed=seed)
    after, notes = rewritten(before)
    assert any(NOTE in note for note in notes)
    assert "Transpose" not in {n.op_type for n in after.graph.node}
    assert differences(before, after) == 0


@pytest.mark.parametrize("make", [make_unit, make_reduction])
@pytest.mark.parametrize("seed", range(3))
def test_the_runtime_moves_no_bytes_and_gives_the_same_integers(make, seed):
    before = make(32, exact=False, seed=seed)
    after, _ = rewritten(before)
    found, more = kernels(after), int(make is make_unit)
    # What is left of them: images to NHWC and back, at the model's ends.
    assert found.count("Transpose") == 1 + len(before.graph.output)
    assert kernels(before).count("Transpose") > found.count("Transpose")
    assert not {"Reshape", "Slice"} & {*found}
    assert found.count("QLinearConv") == kernels(before).count("QLinearConv") + more
    assert found.count("QuantizeLinear") == 1
    assert differences(before, after, plain=False) == 0


def test_pairs_between_moves_are_not_needed():
    net = ShuffleNet()
    source = net.conv(net.quantize("x"), 8, 16)
    moved = net.shuffle(source, 16, 4, pair=False)
    before = net.model([net.conv(moved, 16, 16)], {"x": [1, 8, SIZE, SIZE]})
    after, notes = rewritten(before)
    assert any(NOTE in note for note in notes)
    assert differences(before, after) == 0


@pytest.mark.parametrize(
    "case", ["output", "float", "pool", "scale", "spatial", "many", "few_depthwise", "added"]
)
def test_shuffles_that_others_read_stay(case):
    channels = 1600 if case == "many" else 24
    net = ShuffleNet()
    source, outputs = net.conv(net.quantize("x"), 8, channels), []
    moved = net.shuffle(source, channels, 2)
    if case == "output":
        outputs = [moved]
    elif case == "float":
        outputs = [net.add("ReduceMax", [moved], "max", axes=[1])]
    elif case == "pool":
        moved = net.op("MaxPool", [moved], kernel_shape=[2, 2])
    elif case == "scale":
        moved = net.quantize(moved, 0.5, 3)
    elif case == "spatial":
        moved = net.move("Transpose", moved, perm=[0, 1, 3, 2])
    elif case == "many":
        moved, _ = net.halves(moved, channels)
    elif case == "few_depthwise":
        half, _ = net.halves(moved, channels)
        outputs = [net.conv(net.conv(half, 12, 12, 3, group=12), 12, 16)]
    elif case == "added":
        moved = net.op("Add", [moved, source])
    outputs = [*outputs, net.conv(moved, channels // (2 if case == "many" else 1), channels)]
    before = net.model(outputs, {"x": [1, 8, SIZE, SIZE]}, opset=13)
    after, notes = rewritten(before)
    assert not any("shuffle" in note for note in notes)
    assert differences(before, after) == 0
