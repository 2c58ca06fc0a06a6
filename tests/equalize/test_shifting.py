"""Channels shifted around zero: the same function, and finer steps for one-sided outliers."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
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
from support.qat_models import fused_ops

import bitwright
from bitwright import PlanError, QuantPlan, Recipe, SmoothQuant
from bitwright.equalize.shifting import find_shift
from bitwright.graph import NameScope, clone_model, infer_shapes, load_model
from bitwright.plan import Smoothing

WIDTH = 16
SHIFTS = np.linspace(-3, 9, WIDTH)
ONE_SIDED = [2, 7, 11]

NORMS = {
    "with a bias": [node("LayerNormalization", ["x", "gain", "offset"], ["n"], name="norm")],
    "without one": [node("LayerNormalization", ["x", "gain"], ["n"], name="norm")],
    "in pieces": [
        node("ReduceMean", ["x"], ["mean"], axes=[-1]),
        node("Sub", ["x", "mean"], ["centred"]),
        node("Mul", ["centred", "gain"], ["scaled"]),
        node("Add", ["scaled", "offset"], ["n"], name="norm"),
    ],
    "a Gemm": [node("Gemm", ["x", "v", "offset"], ["n"], name="norm")],
}
READERS = {
    "MatMul": [node("MatMul", ["n", "w"], ["y"], name="product")],
    "MatMul with a bias": [
        node("MatMul", ["n", "w"], ["p"], name="product"),
        node("Add", ["bias", "p"], ["y"], name="sum"),
    ],
    "Gemm": [node("Gemm", ["n", "w"], ["y"], name="product")],
    "Gemm with a bias": [node("Gemm", ["n", "wt", "bias"], ["y"], name="product", transB=1)],
    "residual": [
        node("MatMul", ["n", "w"], ["p"], name="product"),
        node("Add", ["p", "bias"], ["h"], name="sum"),
        node("Add", ["n", "h"], ["y"], name="residual"),
    ],
}


def make(norm, reader):
    constants = {
        "gain": 1 + normal(WIDTH, seed=1, size=0.2),
        "offset": normal(WIDTH, seed=2),
        "v": weight(WIDTH, WIDTH, seed=5),
        "w": weight(WIDTH, WIDTH, seed=3),
        "wt": weight(WIDTH, WIDTH, seed=3).T.copy(),
        "bias": normal(WIDTH, seed=4),
    }
    return build([*norm, *reader], {"x": [6, WIDTH]}, {"y": [6, WIDTH]}, constants)


def shifted(model, shifts=SHIFTS):
    """Return the model with the channels of `n` shifted for the node `product`, or None."""
    twin = clone_model(load_model(model))
    infer_shapes(twin)
    readers = [one for one in twin.graph if one.name == "product"]
    shift = find_shift(readers[0].inputs[0], readers, np.float64(shifts))
    if shift is None:
        return None
    shift.apply(NameScope(twin))
    return as_proto(twin)


def in_float64(model, x, outputs=None):
    wide = retype(onnx.ModelProto.FromString(model.SerializeToString()), np.float64, 11)
    return ReferenceEvaluator(wide).run(outputs, {"x": x.astype(np.float64)})[0]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("norm", NORMS)
def test_the_function_stays_and_the_tensor_is_shifted(norm, reader):
    model = make(NORMS[norm], READERS[reader])
    twin = shifted(model)
    onnx.checker.check_model(twin)
    x = normal(6, WIDTH, seed=9)
    expected = in_float64(model, x)
    # Only biases, which are stored in float32, differ from exact arithmetic.
    np.testing.assert_allclose(in_float64(twin, x), expected, atol=4e-6)
    np.testing.assert_allclose(run(twin, {"x": x})[0], expected, atol=2e-5)
    inside = in_float64(model, x, ["n"]) - in_float64(twin, x, ["n"])
    np.testing.assert_allclose(inside, np.broadcast_to(SHIFTS, inside.shape), atol=2e-6)
    added = len(twin.graph.node) - len(model.graph.node)
    assert added == (reader == "MatMul")


def test_a_constant_that_others_read_is_copied():
    model = make(NORMS["with a bias"], READERS["MatMul"])
    model.graph.node.append(node("Add", ["x", "offset"], ["z"], name="other"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, [6, WIDTH]))
    twin, x = shifted(model), normal(6, WIDTH, seed=9)
    np.testing.assert_array_equal(run(twin, {"x": x})[1], run(model, {"x": x})[1])


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param(
            [
                node("SimplifiedLayerNormalization", ["x", "gain"], ["n"], axis=-1),
                *READERS["MatMul"],
            ],
            id="a norm that adds nothing",
        ),
        pytest.param(
            [node("LayerNormalization", ["x", "g2", "o2"], ["n"], axis=0), *READERS["MatMul"]],
            id="a norm over more than the channels",
        ),
        pytest.param([node("Relu", ["x"], ["n"]), *READERS["MatMul"]], id="no constant to change"),
        pytest.param(
            [
                *NORMS["with a bias"],
                node("MatMul", ["n", "w"], ["p"], name="product"),
                node("Mul", ["p", "n"], ["y"]),
            ],
            id="another reader",
        ),
        pytest.param(
            [
                *NORMS["with a bias"],
                node("MatMul", ["n", "w"], ["p"], name="product"),
                node("Relu", ["p"], ["r"]),
                node("Add", ["r", "n"], ["y"]),
            ],
            id="a summand that makes up for nothing",
        ),
    ],
)
def test_what_cannot_be_shifted_is_left(nodes):
    model = make([], nodes)
    constants = {"g2": normal(6, WIDTH), "o2": normal(6, WIDTH)}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in constants.items()
    )
    assert shifted(model) is None


def test_an_output_of_the_model_is_left():
    model = make(NORMS["with a bias"], READERS["MatMul"])
    model.graph.output.append(onnx.helper.make_tensor_value_info("n", 1, [6, WIDTH]))
    assert shifted(model) is None


# With SmoothQuant -----------------------------------------------------------------------------


def make_encoder(*, post_norm=False, size=12.0):
    """Two layers of a small vision transformer, or of BERT, without the attention itself; a few
    channels of each norm lie far from zero, on one side."""
    constants, nodes, value = {}, [], "x"
    for i in range(2):
        offset = normal(WIDTH, seed=10 + i, size=0.1)
        offset[ONE_SIDED] = size
        constants |= {
            f"gain{i}": 1 + normal(WIDTH, seed=20 + i, size=0.1),
            f"offset{i}": offset,
            f"up{i}": weight(WIDTH, 32, seed=30 + i),
            f"up_bias{i}": normal(32, seed=40 + i, size=0.1),
            f"down{i}": weight(32, WIDTH, seed=50 + i),
            f"down_bias{i}": normal(WIDTH, seed=60 + i, size=0.1),
        }
        # What the offset adds is no signal: the bias behind takes it away again.
        constants[f"up_bias{i}"] -= (offset @ constants[f"up{i}"]).astype(np.float32)
        norm = ["LayerNormalization", [value, f"gain{i}", f"offset{i}"], [f"n{i}"]]
        nodes += [
            node(*norm, name=f"norm{i}", axis=-1),
            node("MatMul", [f"n{i}", f"up{i}"], [f"u{i}"], name=f"up{i}"),
            node("Add", [f"u{i}", f"up_bias{i}"], [f"b{i}"], name=f"up_sum{i}"),
            node("Relu", [f"b{i}"], [f"r{i}"], name=f"act{i}"),
            node("MatMul", [f"r{i}", f"down{i}"], [f"d{i}"], name=f"down{i}"),
            node("Add", [f"d{i}", f"down_bias{i}"], [f"e{i}"], name=f"down_sum{i}"),
            node("Add", [f"e{i}", f"n{i}" if post_norm else value], [f"s{i}"], name=f"residual{i}"),
        ]
        value = f"s{i}"
    outputs = {value: [1, 8, WIDTH]}
    return build(nodes, {"x": [1, 8, WIDTH]}, outputs, constants)


def quantized(model, samples, **smooth):
    recipe = Recipe(per_channel=True, smooth=SmoothQuant(**smooth) if smooth else None)
    return bitwright.quantize(model, data=samples, recipe=recipe, holdout=False)


@pytest.mark.parametrize("post_norm", [False, True], ids=["ViT", "BERT"])
@pytest.mark.sampled(1)
def test_the_error_of_one_sided_outliers_falls_further_than_factors_take_it(post_norm, tmp_path):
    model = make_encoder(post_norm=post_norm)
    samples = make_samples(model, 96)
    plain, smooth, both = (
        quantized(model, samples[:64], **options)
        for options in ({}, {"alpha": "auto"}, {"alpha": "auto", "shift": True})
    )
    errors = [quality(model, found.model, samples[64:]) for found in (plain, smooth, both)]
    assert errors[2] > max(errors[:2]) + 3
    assert {"n0", "n1"} <= both.plan.smoothing.keys()
    assert all(both.plan.smoothing[name].shifts for name in ("n0", "n1"))
    kernels = [fused_ops(found.model, tmp_path) for found in (plain, both)]
    assert kernels[1]["MatMulIntegerToFloat"] == kernels[0]["MatMulIntegerToFloat"]


@pytest.mark.parametrize("alpha", [0.0, 0.5, "auto"])
def test_a_plan_with_shifts_gives_the_same_bytes_again(alpha):
    model = make_encoder()
    samples = make_samples(model)
    result = quantized(model, samples, alpha=alpha, shift=True)
    assert result.plan.smoothing["n0"].shifts
    plan = QuantPlan.from_json(result.plan.to_json())
    again = bitwright.apply_plan(plan, model)
    assert again.to_proto().SerializeToString() == result.to_proto().SerializeToString()


def test_auto_shifts_nothing_that_lies_around_zero():
    model = make_encoder(size=0.0)
    samples = make_samples(model, 16)
    for name in ("offset0", "offset1"):
        tensor = next(t for t in model.graph.initializer if t.name == name)
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.zeros(WIDTH, np.float32), name))
    for sample in list(samples):
        samples.append({"x": -sample["x"]})
    found = quantized(model, samples, alpha="auto", shift=True).plan.smoothing
    assert not found.get("n0") or not found["n0"].shifts


def test_a_plan_whose_shifts_have_no_place_is_refused():
    model = make_encoder()
    plan = quantized(model, make_samples(model)).plan
    entry = Smoothing(nodes=("down0",), shifts=(1.0,) * 32)  # what a Relu gives
    with pytest.raises(PlanError, match="'r0' cannot be shifted"):
        bitwright.apply_plan(msgspec.structs.replace(plan, smoothing={"r0": entry}), model)
