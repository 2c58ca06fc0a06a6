"""Rounding by second moments in whole jobs, measured on what ONNX Runtime computes."""

import re

import numpy as np
import pytest
from onnx import numpy_helper
from support.models import build, node, normal, run, weight

import bitwright
from bitwright import load_recipe
from bitwright.errors import DataError


def make_net():
    """Convolutions with strides, groups and padding of their own, a Gemm and a MatMul."""
    constants = {
        "w1": weight(8, 3, 3, 3, seed=1),
        "b1": normal(8, seed=1, size=0.3),
        "w2": weight(8, 1, 3, 3, seed=2),
        "w3": weight(12, 4, 1, 1, seed=3),
        "w4": weight(6, 12, seed=4),
        "w5": weight(6, 5, seed=5),
        "b5": normal(5, seed=5, size=0.3),
    }
    steps = [
        node("Conv", ["x", "w1", "b1"], ["c1"], name="conv", auto_pad="SAME_UPPER", strides=[2, 2]),
        node("Relu", ["c1"], ["r1"], name="relu"),
        node("Conv", ["r1", "w2"], ["c2"], name="depthwise", group=8, pads=[2, 2, 2, 2],
             dilations=[2, 2]),
        node("Relu", ["c2"], ["r2"], name="relu2"),
        node("Conv", ["r2", "w3"], ["c3"], name="grouped", group=2),
        node("Relu", ["c3"], ["r3"], name="relu3"),
        node("GlobalAveragePool", ["r3"], ["pool"], name="pool"),
        node("Flatten", ["pool"], ["flat"], name="flat"),
        node("Gemm", ["flat", "w4"], ["g"], name="gemm", transB=1),
        node("MatMul", ["g", "w5"], ["m"], name="matmul"),
        node("Add", ["m", "b5"], ["y"], name="add"),
    ]  # fmt: skip
    return build(steps, {"x": [1, 3, 9, 9]}, {"y": [1, 5]}, constants)


def smooth_samples(count, seed):
    """Images whose pixels are like their neighbours."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        coarse = rng.normal(0.5, 1, (1, 3, 3, 3)).repeat(3, 2).repeat(3, 3)
        found.append({"x": (coarse + 0.1 * rng.normal(size=(1, 3, 9, 9))).astype(np.float32)})
    return found


def error(model, found, samples):
    gaps = [run(found, s)[0].astype(np.float64) - run(model, s)[0] for s in samples]
    return float(np.square(gaps).sum())


def quantized(model, samples, **changes):
    recipe = load_recipe("a8w4").replace(**changes)
    return bitwright.quantize(model, data=samples, recipe=recipe, progress=False)


@pytest.mark.parametrize("changes", [{}, {"per_channel": False}, {"weight_symmetric": False}])
@pytest.mark.sampled(1)
def test_four_bits_are_closer_to_float_on_unseen_samples(changes):
    model = make_net()
    samples, unseen = smooth_samples(48, 0), smooth_samples(48, 1)
    found = {
        rounding: quantized(model, samples, rounding=rounding, **changes)
        for rounding in ("nearest", "squant", "gptq")
    }
    errors = {k: error(model, result.to_proto(), unseen) for k, result in found.items()}
    assert errors["gptq"] < 0.8 * min(errors["nearest"], errors["squant"])
    [note] = [one for one in found["gptq"].plan.notes if one.startswith("rounded the weights of 5")]
    saved = re.search(r"by second moments: .* outputs falls by ([\d.]+) dB", note)
    assert float(saved[1]) > 1


def test_integers_lie_on_the_scales_of_the_plan():
    model = make_net()
    result = quantized(model, smooth_samples(24, 0), rounding="gptq")
    stored = {t.name: t for t in result.to_proto().graph.initializer}
    weights = [e for e in result.plan.tensors.values() if e.role == "weight"]
    assert len(weights) == 5
    for entry in weights:
        [name] = [n for n in stored if n.startswith(entry.tensor) and len(stored[n].dims) > 1]
        integers = numpy_helper.to_array(stored[name]).astype(np.int64)
        assert integers.min() >= -8 and integers.max() <= 7
        assert np.asarray(entry.scale).size == integers.shape[entry.axis]
        assert entry.rounding == "nearest"


def test_a_plan_is_applied_with_data_and_not_without():
    model, samples = make_net(), smooth_samples(24, 0)
    recipe = load_recipe("a8w4").replace(rounding="gptq", bias_correction="sequential")
    plan = bitwright.make_plan(model, data=samples, recipe=recipe, progress=False)
    again = bitwright.QuantPlan.from_json(plan.to_json())
    first, second = (
        bitwright.apply_plan(p, model, data=samples, progress=False).to_proto()
        for p in (plan, again)
    )
    assert first.SerializeToString() == second.SerializeToString()
    with pytest.raises(DataError, match="needs calibration data"):
        bitwright.apply_plan(plan, model)


def test_layers_that_it_cannot_round_are_noted():
    steps = [
        node("ConvTranspose", ["x", "w"], ["c"], name="transposed"),
        node("Conv", ["c", "v"], ["y"], name="conv"),
    ]
    constants = {"w": weight(3, 4, 2, 2), "v": weight(2, 4, 1, 1)}
    model = build(steps, {"x": [1, 3, 9, 9]}, {"y": None}, constants)
    notes = quantized(model, smooth_samples(8, 0), rounding="gptq").plan.notes
    assert "second moments left 1 weight: it is a ConvTranspose" in notes


def test_a_scale_that_was_widened_for_its_bias_is_not_made_smaller():
    constants = {"w": 1e-9 * weight(4, 3, 1, 1), "b": np.full(4, 5.0, np.float32)}
    step = node("Conv", ["x", "w", "b"], ["y"], name="conv")
    model = build([step], {"x": [1, 3, 9, 9]}, {"y": None}, constants)
    samples = smooth_samples(8, 0)
    result = quantized(model, samples, rounding="gptq")
    np.testing.assert_allclose(run(result.to_proto(), samples[0])[0], 5.0, rtol=0.02)
