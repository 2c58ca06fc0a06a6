"""High-bias absorption: the same function on all that was seen, and smaller ranges."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from support.equalization_models import equalized
from support.models import (
    as_proto,
    build,
    make_samples,
    node,
    normal,
    quality,
    retype,
    run,
    weight,
)

import bitwright
from bitwright import (
    CrossLayerEqualization,
    PlanError,
    QuantPlan,
    load_recipe,
)
from bitwright.equalize.absorption import absorption_for, find_absorption_points
from bitwright.equalize.smoothquant import apply_smoothing
from bitwright.graph import infer_shapes, load_model
from bitwright.observe import observe
from bitwright.plan import Smoothing

CHANNELS = 8
HIGH = np.float32([0, 30, 0, 12, 0, 0, 50, 0])  # what channels have above all that x can take away

RELU = [node("Relu", ["h"], ["a"])]
GEMM = {"w2": weight(CHANNELS, 5, seed=3)}
CONV = {"w2": weight(5, CHANNELS, 1, 1, seed=3)}
FLAT = {"w2": weight(CHANNELS * 36, 5, seed=3)}
LAST = node("Conv", ["a", "w2", "b2"], ["y"], name="tail")

CHAINS = {
    "Relu": (RELU, LAST, CONV),
    "no second bias": (RELU, node("Conv", ["a", "w2"], ["y"], name="tail"), CONV),
    "a kernel without padding": (RELU, LAST, {"w2": weight(5, CHANNELS, 3, 3, seed=3)}),
    "groups": (
        RELU,
        node("Conv", ["a", "w2"], ["y"], name="tail", group=4),
        {"w2": weight(4, 2, 1, 1, seed=3)},
    ),
    "LeakyRelu": ([node("LeakyRelu", ["h"], ["a"], alpha=0.1)], LAST, CONV),
    "Clip from 0": ([node("Clip", ["h", "zero"], ["a"])], LAST, CONV),
    "MaxPool": (
        [
            node("Relu", ["h"], ["r"]),
            node("MaxPool", ["r"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        ],
        LAST,
        CONV,
    ),
    "average and Flatten": (
        [
            node("Relu", ["h"], ["r"]),
            node("GlobalAveragePool", ["r"], ["g"]),
            node("Flatten", ["g"], ["a"]),
        ],
        node("Gemm", ["a", "w2", "b2"], ["y"], name="tail"),
        GEMM,
    ),
    "Flatten": (
        [node("Relu", ["h"], ["r"]), node("Flatten", ["r"], ["a"])],
        node("MatMul", ["a", "w2"], ["y"], name="tail"),
        FLAT,
    ),
}


def make(between, tail, constants, *, bias=True, group=1):
    """Conv, what is between, and a second layer; some channels of the first are always on."""
    arrays = {
        "w1": weight(CHANNELS, 3, 1, 1, seed=1),
        "b1": normal(CHANNELS, seed=2, size=0.1) + HIGH,
        "b2": normal(5, seed=4),
        "zero": np.float32(0),
        **constants,
    }
    head = node("Conv", ["x", "w1", "b1"] if bias else ["x", "w1"], ["h"], name="head")
    return build([head, *between, tail], {"x": [1, 3, 6, 6]}, {"y": None}, arrays)


def points_of(model):
    loaded = load_model(model)
    infer_shapes(loaded)
    return loaded, find_absorption_points(loaded)


def absorbed(model, samples):
    """Return the model with absorbed biases, and what they are."""
    loaded, points = points_of(model)
    axes = {tensor: point.axis for tensor, point in points.items()}
    seen = observe(loaded, list(points), samples, detail="extremes", per_channel=axes)
    found = absorption_for(points, seen.sketches)
    apply_smoothing(loaded, found, folding=True)
    return as_proto(loaded), found


def in_float64(model, x, outputs=None):
    wide = retype(onnx.ModelProto.FromString(model.SerializeToString()), np.float64, 11)
    return ReferenceEvaluator(wide).run(outputs, {"x": x.astype(np.float64)})[0]


def expected_of(seen):
    """The least values of channels, less a tenth of their ranges, where that is positive."""
    low, high = seen.min(axis=(0, 2, 3)), seen.max(axis=(0, 2, 3))
    return np.maximum(low - (high - low) / 10, 0)


@pytest.mark.parametrize("chain", CHAINS)
def test_on_what_was_seen_the_function_stays_and_the_range_falls(chain):
    model = make(*CHAINS[chain])
    samples = make_samples(model, 4)
    twin, found = absorbed(model, samples)
    assert set(found) == {"h"} and found["h"].nodes == ("tail",)
    seen = np.concatenate([in_float64(model, s["x"], ["h"]) for s in samples])
    np.testing.assert_allclose(found["h"].absorbed, expected_of(seen), atol=1e-5)
    for sample in samples:
        expected = in_float64(model, sample["x"])
        size = np.abs(expected).max()
        # Only biases, which are stored in float32, differ from exact arithmetic.
        np.testing.assert_allclose(in_float64(twin, sample["x"]), expected, atol=1e-6 * size)
        np.testing.assert_allclose(run(twin, sample)[0], expected, atol=1e-5 * size)
    highest = [max(in_float64(m, s["x"], ["a"]).max() for s in samples) for m in (model, twin)]
    assert highest[1] < highest[0] / 3


def test_below_what_was_seen_the_rectifier_cuts_off_just_that():
    model = make(*CHAINS["Relu"])
    samples = make_samples(model, 4)
    twin, found = absorbed(model, samples)
    x = 3 * normal(1, 3, 6, 6, seed=99)  # three times as far as any sample
    floors = np.array(found["h"].absorbed).reshape(1, -1, 1, 1)
    cut = np.maximum(floors - np.maximum(in_float64(model, x, ["h"]), 0), 0)
    assert cut.max() > 0
    error = in_float64(twin, x) - in_float64(model, x)
    weights = CONV["w2"].astype(np.float64)[:, :, 0, 0]
    np.testing.assert_allclose(error, np.einsum("oc,ncij->noij", weights, cut), atol=1e-4)


def test_a_bias_is_made_where_there_is_none():
    model = make(*CHAINS["Relu"], bias=False)
    samples = [{"x": np.abs(sample["x"])} for sample in make_samples(model, 4)]
    tensor = next(t for t in model.graph.initializer if t.name == "w1")
    array = np.abs(onnx.numpy_helper.to_array(tensor))
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, "w1"))
    for sample in samples:
        sample["x"] += 1
    twin, found = absorbed(model, samples)
    assert min(found["h"].absorbed) > 0
    assert len(twin.graph.node[0].input) == 3
    np.testing.assert_allclose(run(twin, samples[0])[0], run(model, samples[0])[0], atol=1e-4)


def padded(**attributes):
    weights = {"w2": weight(5, CHANNELS, 3, 3, seed=3)}
    return RELU, node("Conv", ["a", "w2"], ["y"], name="tail", **attributes), weights


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(padded(pads=[1, 1, 1, 1]), id="a layer that pads with zeros"),
        pytest.param(padded(auto_pad="SAME_UPPER"), id="automatically"),
        pytest.param(
            (
                RELU,
                node("ConvTranspose", ["a", "w2"], ["y"], name="tail"),
                {"w2": weight(CHANNELS, 5, 3, 3, seed=3)},
            ),
            id="a layer whose outputs see some inputs more often",
        ),
        pytest.param(
            (
                [
                    node("Relu", ["h"], ["r"]),
                    node(
                        "AveragePool",
                        ["r"],
                        ["a"],
                        kernel_shape=[3, 3],
                        pads=[1, 1, 1, 1],
                        count_include_pad=1,
                    ),
                ],
                LAST,
                CONV,
            ),
            id="an average that counts zeros",
        ),
        pytest.param(([node("Identity", ["h"], ["a"])], LAST, CONV), id="no rectifier"),
        pytest.param(
            (
                [
                    node("Relu", ["h"], ["r"]),
                    node("Add", ["r", "less"], ["s"]),
                    node("Relu", ["s"], ["a"]),
                ],
                LAST,
                {**CONV, "less": np.full((1, CHANNELS, 1, 1), -1, np.float32)},
            ),
            id="a second rectifier that sees less",
        ),
    ],
)
def test_what_cannot_be_absorbed_is_left(parts):
    assert points_of(make(*parts))[1] == {}


# As an option of equalization -----------------------------------------------------------------


def make_gates():
    """What squeeze-and-excite blocks have: always-on channels between two pointwise layers."""
    return make(*CHAINS["Relu"])


def quantized(model, samples, base="int8", **options):
    recipe = load_recipe(base).replace(equalize=CrossLayerEqualization(**options))
    return bitwright.quantize(model, data=samples, recipe=recipe, holdout=False)


@pytest.mark.parametrize(("base", "gain"), [("int8", 2), ("xint8", 0.4)])
def test_the_error_falls_and_the_plan_needs_no_data(base, gain):
    model = make_gates()
    samples = make_samples(model, 24)
    plain, better = (
        quantized(model, samples[:16], base, absorb_biases=absorb) for absorb in (False, True)
    )
    errors = [quality(model, found.model, samples[16:]) for found in (plain, better)]
    assert errors[1] > errors[0] + gain
    assert better.plan.smoothing["h"].absorbed and not plain.plan.smoothing
    assert any("1 layer absorbed the biases of 3 channels" in note for note in better.plan.notes)
    plan = QuantPlan.from_json(better.plan.to_json())
    again = bitwright.apply_plan(plan, model)
    assert again.to_proto().SerializeToString() == better.to_proto().SerializeToString()


def test_it_comes_after_the_equalization_of_weights():
    model = make_gates()
    samples = make_samples(model, 4)
    plan = quantized(model, samples, absorb_biases=True, weight_threshold=None).plan
    twin, _ = equalized(model, weight_threshold=None)
    seen = np.concatenate([in_float64(as_proto(twin), s["x"], ["h"]) for s in samples])
    expected = expected_of(seen)
    np.testing.assert_allclose(plan.smoothing["h"].absorbed, expected, rtol=1e-4, atol=1e-4)


def test_a_model_without_such_channels_says_so():
    model = make_gates()
    tensor = next(t for t in model.graph.initializer if t.name == "b1")
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.zeros(CHANNELS, np.float32), "b1"))
    plan = quantized(model, make_samples(model, 4), absorb_biases=True).plan
    assert not plan.smoothing
    assert any("no biases to absorb" in note for note in plan.notes)


def test_a_plan_for_another_model_is_refused():
    model = make_gates()
    plan = quantized(model, make_samples(model, 4)).plan
    entry = Smoothing(nodes=("tail",), absorbed=(1.0,) * (CHANNELS + 1))
    with pytest.raises(PlanError, match="'h' cannot be shifted"):
        bitwright.apply_plan(msgspec.structs.replace(plan, smoothing={"h": entry}), model)
