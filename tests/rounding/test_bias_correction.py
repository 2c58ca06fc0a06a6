import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.models import build, node, normal, run

from bitwright.graph import infer_shapes
from bitwright.rounding.bias_correction import add_to_bias, find_biased_layers, mean_error


def site_of(proto, name="layer"):
    model = ir.from_proto(proto)
    infer_shapes(model)
    sites, left = find_biased_layers(model, [name])
    assert not left
    return sites[0]


def layer(op, weight, channels, x_shape, **attributes):
    constants = {"w": weight, "b": normal(channels, seed=3)}
    step = node(op, ["x", "w", "b"], ["y"], name="layer", **attributes)
    return build([step], {"x": x_shape}, {"y": None}, constants)


def with_weight(proto, weight):
    changed = type(proto)()
    changed.CopyFrom(proto)
    [stored] = [t for t in changed.graph.initializer if t.name == "w"]
    stored.raw_data = weight.tobytes()
    return changed


def measured(proto, weight, changed, x):
    """Return what the runtime gives for the mean output of each channel, less what it was."""
    before, after = (
        run(with_weight(proto, w), {"x": x})[0].astype(np.float64) for w in (weight, changed)
    )
    gap = after - before
    axis = 1 if gap.ndim > 2 else -1
    return np.moveaxis(gap, axis, -1).reshape(-1, gap.shape[axis]).mean(axis=0)


windows = st.fixed_dictionaries(
    {
        "rank": st.integers(1, 3),
        "groups": st.sampled_from([1, 2]),
        "inputs": st.integers(1, 3),
        "outputs": st.integers(1, 3),
        "kernel": st.integers(1, 3),
        "stride": st.integers(1, 2),
        "dilation": st.integers(1, 2),
        "pads": st.tuples(st.integers(0, 2), st.integers(0, 2)),
        "auto_pad": st.sampled_from(["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]),
        "length": st.integers(4, 7),
        "seed": st.integers(0, 1000),
    }
)


def attributes_of(case):
    rank = case["rank"]
    found = {
        "group": case["groups"],
        "strides": [case["stride"]] * rank,
        "dilations": [case["dilation"]] * rank,
        "auto_pad": case["auto_pad"],
    }
    if case["auto_pad"] == "NOTSET":
        found["pads"] = [case["pads"][0]] * rank + [case["pads"][1]] * rank
    return found


def check_windows(op, case):
    reach = case["dilation"] * (case["kernel"] - 1) + 1
    assume(max(case["pads"]) < reach <= case["length"])
    # The runtime does not take both.
    assume(case["auto_pad"] == "NOTSET" or case["dilation"] == 1)
    rank, groups = case["rank"], case["groups"]
    channels, outputs = groups * case["inputs"], groups * case["outputs"]
    shape = (outputs, case["inputs"]) if op == "Conv" else (channels, case["outputs"])
    weight = normal(*shape, *([case["kernel"]] * rank), seed=case["seed"])
    changed = weight + normal(*weight.shape, seed=case["seed"] + 1, size=0.1)
    mean = normal(channels, seed=case["seed"] + 2).astype(np.float64)
    x_shape = (2, channels, *([case["length"]] * rank))
    proto = layer(op, weight, outputs, x_shape, **attributes_of(case))
    x = np.broadcast_to(mean.reshape(1, -1, *([1] * rank)), x_shape).astype(np.float32)
    difference = changed.astype(np.float64) - weight
    expected = measured(proto, weight, changed, x)
    found = mean_error(site_of(proto), difference, mean)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@given(windows)
@settings(deadline=None, max_examples=40)
def test_the_mean_error_of_a_convolution_is_what_the_runtime_shows(case):
    check_windows("Conv", case)


@given(windows)
@settings(deadline=None, max_examples=40)
def test_the_mean_error_of_a_transposed_convolution_is_what_the_runtime_shows(case):
    check_windows("ConvTranspose", case)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_the_mean_error_of_a_gemm_is_that_of_a_direct_computation(trans_a, trans_b):
    x, weight = normal(5, 4, seed=0), normal(4, 3, seed=1)
    changed = weight + normal(4, 3, seed=2, size=0.1)
    if trans_a:
        x = np.ascontiguousarray(x.T)
    stored = [np.ascontiguousarray(w.T) if trans_b else w for w in (weight, changed)]
    proto = layer(
        "Gemm", stored[0], 3, x.shape, transA=trans_a, transB=trans_b, alpha=0.5, beta=2.0
    )
    site = site_of(proto)
    mean = np.moveaxis(x, site.input_axis, -1).astype(np.float64).mean(axis=0)
    found = mean_error(site, stored[1].astype(np.float64) - stored[0], mean)
    rows = (x.T if trans_a else x).astype(np.float64)
    direct = 0.5 * (rows @ (changed.astype(np.float64) - weight)).mean(axis=0)
    np.testing.assert_allclose(found, direct, rtol=1e-12)
    np.testing.assert_allclose(found, measured(proto, *stored, x), rtol=1e-4, atol=1e-5)
    # The bias is multiplied with beta, so half of it takes back all of it.
    assert site.factor == 2.0


def test_a_product_takes_its_correction_in_the_constant_that_is_added_to_it():
    constants = {"w": normal(4, 3), "b": normal(1, 1, 3)}
    steps = [
        node("MatMul", ["x", "w"], ["p"], name="layer"),
        node("Add", ["b", "p"], ["y"], name="sum"),
    ]
    site = site_of(build(steps, {"x": [2, 5, 4]}, {"y": None}, constants))
    assert site.bias.name == "b"
    mean = np.arange(4.0)
    difference = normal(4, 3, seed=5)
    np.testing.assert_allclose(mean_error(site, difference, mean), mean @ difference, rtol=1e-6)
    assert add_to_bias(constants["b"], np.ones(3)).shape == (1, 1, 3)


def two_readers():
    constants = {"w": normal(3, 3), "b": normal(3)}
    steps = [node("Gemm", ["x", "w", "b"], ["y"], name="layer"), node("Add", ["y", "b"], ["z"])]
    return build(steps, {"x": [2, 3]}, {"z": None}, constants)


def computed(index):
    inputs = ["x", "w", "b"]
    inputs[index] = "made"
    constants = {"w": normal(3, 3), "b": normal(3)}
    del constants["wb"[index - 1]]
    shape = [3, 3] if index == 1 else [3]
    step = node("Gemm", inputs, ["y"], name="layer")
    return build([step], {"x": [2, 3], "made": shape}, {"y": None}, constants)


@pytest.mark.parametrize(
    ("proto", "reason"),
    [
        (two_readers(), "it shares its bias"),
        (computed(1), "its weight is computed at run time"),
        (computed(2), "its bias is computed at run time"),
        (layer("Gemm", normal(3, 3), 1, [2, 3]), "its bias is one number for all channels"),
        (layer("Gemm", normal(3, 3), 3, [2, 3], beta=0.0), "it multiplies its bias with 0"),
    ],
)
def test_a_layer_that_cannot_be_corrected_says_why(proto, reason):
    sites, left = find_biased_layers(ir.from_proto(proto), ["layer"])
    assert not sites
    assert left == {"layer": reason}
