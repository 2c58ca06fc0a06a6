"""Cross-layer equalization: the published formulas, the same function, better numbers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.equalization_models import difference, equalized, make_chain, make_mobilenet, uneven
from support.models import (
    as_proto,
    build,
    constants_of,
    make_samples,
    node,
    normal,
    quality,
)

import bitwright
from bitwright import CrossLayerEqualization, Recipe, RecipeError, Rewrites
from bitwright.equalize import cle

RELU = [("Relu", [], {})]


def wide(model):
    return {name: array.astype(np.float64) for name, array in constants_of(model).items()}


def sizes_of(arrays):
    """Largest weights of each channel of `make_chain`, on both sides."""
    return np.abs(arrays["w1"]).max(axis=(1, 2, 3)), np.abs(arrays["w2"]).max(axis=(0, 2, 3))


# The formulas ---------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), channels=st.integers(1, 9))
def test_both_sides_of_a_pair_become_the_root_of_their_product(seed, channels):
    model = make_chain(RELU, seed=seed, channels=channels)
    twin, _ = equalized(model, {"append_bias": False}, weight_threshold=None)
    before, after = wide(model), wide(twin)
    root = np.sqrt(np.prod(sizes_of(before), axis=0))
    for size in sizes_of(after):
        np.testing.assert_allclose(size, root, rtol=1e-6)
    factors = np.sqrt(sizes_of(before)[1] / sizes_of(before)[0])
    np.testing.assert_allclose(after["w1"], before["w1"] * factors[:, None, None, None], rtol=1e-6)
    np.testing.assert_allclose(after["b1"], before["b1"] * factors, rtol=1e-6)
    np.testing.assert_allclose(after["w2"], before["w2"] / factors[None, :, None, None], rtol=1e-6)
    np.testing.assert_array_equal(after["b2"], before["b2"])


def test_a_bias_counts_as_one_more_weight():
    model = make_chain(RELU, channels=8, bias=2.0)
    before = wide(model)
    ahead, behind = sizes_of(before)
    counted = np.maximum(ahead, np.abs(before["b1"]) / 2)  # the ordinary case: half the bias
    assert (counted > ahead).any()
    factors = np.sqrt(behind / counted)
    twin, _ = equalized(model, weight_threshold=None)
    expected = before["w1"] * factors[:, None, None, None]
    np.testing.assert_allclose(wide(twin)["w1"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("weight", "bias", "expected"),
    [
        (0.1, 1.0, 2),  # both moderate
        (0.1, 1.9, 2),
        (0.1, 2.5, 10),  # 25 times the weight
        (0.1, 5.0, 20),
        (1.0, 12.0, 5),  # a bias above 10, but only 12 times the weight
        (1.0, 20.0, 10),
        (1.0, 31.0, 20),
    ],
)
def test_large_biases_count_less(weight, bias, expected):
    rows = np.full((4, 9), weight)
    assert cle.bias_divisor(rows, np.full(4, bias)) == expected


def test_weights_of_very_different_size_let_moderate_biases_count_less():
    rows = np.full((1, 10), 1e-4)
    rows[0, 0] = 1.0
    assert cle.bias_divisor(rows, np.array([0.5])) == 5  # the median ratio is 5000
    rows[0, 5:] = 0.0  # zeros count as the smallest weight of their row, not as 1e-7
    assert cle.bias_divisor(rows, np.array([0.005])) == 2


def test_rows_of_zeros_have_no_bias_to_count():
    rows = np.zeros((2, 4))
    rows[1] = 0.1
    assert cle.bias_divisor(rows, np.array([1e6, 0.1])) == 2


def test_all_three_sizes_of_a_depthwise_triple_become_their_geometric_mean():
    model = make_mobilenet(blocks=1)
    twin, _ = equalized(model)
    before, after = wide(model), wide(twin)

    def sizes(arrays):
        return (
            np.abs(arrays["expand0_w"]).max(axis=(1, 2, 3)),
            np.abs(arrays["depth0_w"]).max(axis=(1, 2, 3)),
            np.abs(arrays["project0_w"]).max(axis=(0, 2, 3)),
        )

    first, middle, last = sizes(before)
    mean = np.cbrt(first * middle * last)
    for size in sizes(after):
        np.testing.assert_allclose(size, mean, rtol=1e-6)
    np.testing.assert_allclose(after["expand0_b"], before["expand0_b"] * mean / first, rtol=1e-6)
    np.testing.assert_allclose(after["depth0_b"], before["depth0_b"] * last / mean, rtol=1e-6)


def test_small_channels_are_left_alone_below_the_threshold():
    model = make_chain(RELU, channels=8)
    before = wide(model)
    ahead, behind = sizes_of(before)
    middle = float(np.median(ahead + behind))
    twin, _ = equalized(model, {"append_bias": False}, weight_threshold=middle)
    after = wide(twin)
    small = ahead + behind < middle
    assert 0 < small.sum() < 8
    np.testing.assert_array_equal(after["w1"][small], before["w1"][small])
    assert (after["w1"][~small] != before["w1"][~small]).any(axis=(1, 2, 3)).all()


@pytest.mark.parametrize("zeroed", ["w1", "w2", "both"])
def test_a_channel_of_zeros_keeps_its_numbers(zeroed):
    model = make_chain(RELU)
    for tensor in model.graph.initializer:
        if tensor.name in ("w1", "w2") and zeroed in (tensor.name, "both"):
            array = onnx.numpy_helper.to_array(tensor).copy()
            array[(1,) if tensor.name == "w1" else (slice(None), 1)] = 0
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    twin, _ = equalized(model, weight_threshold=None)
    before, after = wide(model), wide(twin)
    np.testing.assert_array_equal(after["w1"][1], before["w1"][1])
    np.testing.assert_array_equal(after["w2"][:, 1], before["w2"][:, 1])
    assert after["b1"][1] == before["b1"][1]
    assert all(np.isfinite(array).all() for array in after.values())
    assert difference(model, twin, make_samples(model)) < 1e-5


# Sweeps ---------------------------------------------------------------------------------------


def make_tower(depth=4, *, channels=6):
    c = {f"w{i}": uneven(channels, channels, 3, 3, seed=i) for i in range(depth)}
    nodes = []
    value = "x"
    for i in range(depth):
        nodes.append(node("Conv", [value, f"w{i}"], [f"c{i}"], name=f"conv{i}", pads=[1] * 4))
        nodes.append(node("Relu", [f"c{i}"], [f"r{i}"], name=f"relu{i}"))
        value = f"r{i}"
    return build(nodes, {"x": [1, channels, 6, 6]}, {value: None}, c)


def mismatch(model, depth=4):
    """The largest ratio of a channel's sizes ahead and behind: 1 where all is even."""
    arrays, worst = wide(model), 1.0
    for i in range(depth - 1):
        ahead = np.abs(arrays[f"w{i}"]).max(axis=(1, 2, 3))
        behind = np.abs(arrays[f"w{i + 1}"]).max(axis=(0, 2, 3))
        worst = max(worst, float((np.maximum(ahead, behind) / np.minimum(ahead, behind)).max()))
    return worst


def test_each_sweep_evens_out_what_the_one_before_left():
    model = make_tower()
    found = [mismatch(model)]
    for steps in (1, 3, 10):
        twin, _ = equalized(model, steps=steps, weight_threshold=None)
        found.append(mismatch(twin))
        assert difference(model, twin, make_samples(model)) < 1e-5
    assert found == sorted(found, reverse=True)
    assert found[0] > 5 > found[1] > found[2]


def test_adaptive_sweeps_go_on_until_nothing_moves():
    model = make_tower()
    twin, found = equalized(model, steps=-1, weight_threshold=None)
    assert 3 < found.sweeps < 200
    assert mismatch(twin) < 1 + 1e-4
    assert difference(model, twin, make_samples(model)) < 1e-5
    again, second = equalized(as_proto(twin), steps=-1, weight_threshold=None)
    assert second.sweeps <= 3
    assert mismatch(again) < 1 + 1e-4


def test_a_larger_threshold_of_changes_stops_earlier():
    model = make_tower()
    sweeps = [
        equalized(model, {"total_layer_diff_threshold": most}, steps=-1, weight_threshold=None)[
            1
        ].sweeps
        for most in (0.0, 2e-7, 1e-2)
    ]
    assert sweeps[0] >= sweeps[1] > sweeps[2]


# The function stays ---------------------------------------------------------------------------

_PASSES = st.sampled_from(
    [
        ("Relu", [], {}),
        ("LeakyRelu", [], {"alpha": 0.2}),
        ("Clip", [np.float32(0)], {}),
        ("Identity", [], {}),
        ("MaxPool", [], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        ("AveragePool", [], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        ("Pad", [np.array([0, 0, 1, 0, 0, 0, 0, 1])], {}),
        ("Sigmoid", [], {}),
        ("Clip", [np.float32(0), np.float32(6)], {}),
    ]
)


@st.composite
def towers(draw):
    """Convolutions of any kind of grouping, with up to two other nodes behind each."""
    seed = draw(st.integers(0, 10_000))
    channels = 4
    constants, nodes, value = {}, [], "x"
    for index in range(draw(st.integers(2, 4))):
        kind = draw(st.sampled_from(["plain", "grouped", "depthwise", "transposed", "wide"]))
        group = {"grouped": 2, "depthwise": channels, "wide": channels}.get(kind, 1)
        outputs = channels * 2 if kind == "wide" else channels if group > 1 else 4
        shape = (outputs, channels // group, 3, 3)
        if kind == "transposed":
            shape = (channels, outputs, 3, 3)
        constants[f"w{index}"] = uneven(*shape, seed=seed + index, width=1.5)
        inputs = [value, f"w{index}"]
        if draw(st.booleans()):
            constants[f"b{index}"] = normal(outputs, seed=seed + 50 + index, size=0.5)
            inputs.append(f"b{index}")
        extra = {"group": group} if group > 1 or draw(st.booleans()) else {}
        op_type = "ConvTranspose" if kind == "transposed" else "Conv"
        value = f"c{index}"
        nodes.append(node(op_type, inputs, [value], name=value, pads=[1] * 4, **extra))
        channels = outputs
        for at, (op, arrays, attributes) in enumerate(draw(st.lists(_PASSES, max_size=2))):
            output = f"p{index}_{at}"
            names = [f"{output}_{i}" for i in range(len(arrays))]
            constants |= dict(zip(names, arrays, strict=True))
            nodes.append(node(op, [value, *names], [output], name=output, **attributes))
            value = output
    return build(nodes, {"x": [1, 4, 6, 6]}, {value: None}, constants)


@settings(max_examples=40, deadline=None)
@given(
    model=towers(),
    steps=st.sampled_from([1, 2, -1]),
    append_bias=st.booleans(),
    threshold=st.sampled_from([None, 0.5]),
)
def test_any_net_computes_what_it_did(model, steps, append_bias, threshold):
    twin, _ = equalized(
        model, {"append_bias": append_bias}, steps=steps, weight_threshold=threshold
    )
    onnx.checker.check_model(as_proto(twin), full_check=True)
    assert difference(model, twin, make_samples(model, 2)) < 1e-5


# Whole jobs -----------------------------------------------------------------------------------


def quantized(model, samples, equalize=None, **options):
    recipe = Recipe(equalize=equalize, **options)
    return bitwright.quantize(model, data=samples, recipe=recipe, holdout=False)


EVEN = CrossLayerEqualization(weight_threshold=None)


def test_one_scale_a_tensor_is_much_better_on_an_equalized_net():
    model = make_mobilenet(width=1.5)
    samples = make_samples(model, 16)
    plain = quantized(model, samples)
    even = quantized(model, samples, EVEN)
    assert "equalized 3 depthwise triples of layers" in even.plan.notes
    assert quality(model, even, samples) > quality(model, plain, samples) + 6


def test_a_net_of_relu6_is_equalized_once_the_six_is_gone():
    model = make_mobilenet(width=1.5, clip=(0, 6))
    samples = make_samples(model, 8)
    refused = quantized(model, samples, EVEN)
    assert refused.plan.notes[-1].startswith("found no layers to equalize")
    even = quantized(model, samples, EVEN, rewrite=Rewrites(clip6_to_relu=True))
    assert "equalized 3 depthwise triples of layers" in even.plan.notes


def test_a_plan_is_applied_to_the_same_equalized_net(tmp_path):
    model = make_mobilenet()
    samples = make_samples(model, 4)
    made = quantized(model, samples, EVEN)
    made.plan.save(tmp_path / "plan.json")
    again = bitwright.apply_plan(tmp_path / "plan.json", model)
    assert as_proto(again).SerializeToString() == as_proto(made).SerializeToString()


def test_sketches_belong_to_the_equalized_net(tmp_path):
    model = make_mobilenet(blocks=1)
    samples = make_samples(model, 4)
    options = {"sketches": tmp_path / "s.sketch", "holdout": False}
    recipe = Recipe(equalize=EVEN)
    bitwright.quantize(model, data=samples, recipe=recipe, **options)
    bitwright.quantize(model, data=samples, recipe=recipe, **options)
    with pytest.raises(bitwright.DataError):
        bitwright.quantize(model, data=samples, recipe=Recipe(), **options)


def test_weights_of_a_dynamic_model_are_equalized_too():
    model = make_mobilenet(width=1.5)
    recipe = Recipe(mode="dynamic", equalize=EVEN)
    even = bitwright.quantize(model, recipe=recipe, force_dynamic=True)
    plain = bitwright.quantize(model, recipe=Recipe(mode="dynamic"), force_dynamic=True)
    samples = make_samples(model)
    assert quality(model, even, samples) > quality(model, plain, samples) + 3


@pytest.mark.parametrize("options", [{"steps": 0}, {"steps": -2}])
def test_impossible_options_are_refused(options):
    with pytest.raises(RecipeError, match="steps of equalize"):
        CrossLayerEqualization(**options)
