"""Activation scales that learn: the plan has them, and the written model comes closer to float."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx_ir as ir
import pytest
from support.models import build, constants_of, make_samples, node, normal

import bitwright
from bitwright import load_recipe
from bitwright.graph import expose, load_model
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.fine_tuning.activations import rescale
from bitwright.jobs.opening import open_model
from bitwright.jobs.static import plan_static
from bitwright.numerics.types import UINT4, UINT8
from bitwright.plan import QuantPlan, TensorPlan
from bitwright.recipe import AdaQuant, AdaRound, Override
from bitwright.run import Session

torch = pytest.importorskip("torch", reason="fine-tuning needs torch")

from bitwright.jobs.fine_tuning.activations import (  # noqa: E402
    find_learning_scales,
    smallest_factors,
)
from bitwright.jobs.fine_tuning.segment import (  # noqa: E402
    Checkpoints,
    Learned,
    SegmentLearner,
)
from bitwright.jobs.fine_tuning.sequence import fine_tune  # noqa: E402
from bitwright.learning.reports import SegmentReport  # noqa: E402

LEARNING = AdaRound(iterations=20, batch_size=8, learn_activation_scales=True)
UNSELECTIVE = {"fine_tune": {"selective": False}}


def make_chain(bias=None):
    """A chain whose third layer reads what a MaxPool gives."""
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["a"], name="one", kernel_shape=[3, 3]),
        node("Relu", ["a"], ["b"], name="relu"),
        node("Conv", ["b", "w2"], ["c"], name="two", kernel_shape=[1, 1]),
        node("MaxPool", ["c"], ["d"], name="pool", kernel_shape=[2, 2]),
        node("Conv", ["d", "w3"], ["y"], name="three", kernel_shape=[1, 1]),
    ]
    constants = {
        "w1": normal(4, 2, 3, 3, seed=1),
        "b1": np.full(4, 0.5 if bias is None else bias, np.float32),
        "w2": normal(4, 4, 1, 1, seed=2),
        "w3": normal(3, 4, 1, 1, seed=3),
    }
    return build(nodes, {"x": [1, 2, 8, 8]}, {"y": None}, constants, opset=21, ir_version=10)


def recipe(**changes):
    return load_recipe("a8w4").replace(**changes)


def quantize(model, samples, method, *, holdout=True, **changes):
    asked = recipe(fine_tune=method, **changes)
    return bitwright.quantize(model, data=samples, recipe=asked, holdout=holdout, progress=False)


def planned(model, **changes):
    job = open_model(model, recipe(**changes))
    data = Calibration(data=make_samples(model, 8), holdout=False, progress=False)
    return job.model, plan_static(job, data).plan


@pytest.mark.parametrize("kind", [AdaRound, AdaQuant])
@pytest.mark.sampled(1)
def test_four_bit_activations_come_closer_to_float(kind):
    nodes = [
        node("Conv", ["x", "w1"], ["a"], name="one", kernel_shape=[3, 3]),
        node("Relu", ["a"], ["b"], name="relu"),
        node("Conv", ["b", "w2"], ["c"], name="two", kernel_shape=[1, 1]),
        node("Relu", ["c"], ["d"], name="last"),
        node("Conv", ["d", "w3"], ["y"], name="three", kernel_shape=[1, 1]),
    ]
    shapes = {"w1": (8, 2, 3, 3), "w2": (8, 8, 1, 1), "w3": (3, 8, 1, 1)}
    constants = {name: normal(*shape, seed=len(name)) for name, shape in shapes.items()}
    model = build(nodes, {"x": [1, 2, 8, 8]}, {"y": None}, constants, opset=21, ir_version=10)
    samples = make_samples(model, 16)
    before, after = (
        quantize(
            model,
            samples,
            kind(iterations=20, batch_size=8, learn_activation_scales=on),
            activation=UINT4,
        )
        for on in (False, True)
    )
    assert after.outputs[0].sqnr > before.outputs[0].sqnr + 0.5  # on samples not learned from
    learned = [
        entry
        for entry in after.plan.tensors.values()
        if entry.role == "activation" and entry.method == "learned step size"
    ]
    assert learned
    for entry in learned:
        low, high = entry.range
        assert low <= 0 <= high and high - low == pytest.approx(15 * entry.scale)
        assert low == -entry.zero_point * entry.scale  # zero is exact
    assert not any(
        entry.method == "learned step size" and entry.role == "activation"
        for entry in before.plan.tensors.values()
    )


@pytest.mark.parametrize("ratio", [1.0, 0.5])
def test_the_same_plan_and_data_give_the_same_bytes(ratio):
    model = make_chain()
    samples = make_samples(model, 8)
    details = {"drop_ratio": ratio, "selective": False}
    asked = recipe(fine_tune=LEARNING.replace(iterations=4), emulate={"fine_tune": details})
    plan = bitwright.make_plan(model, data=samples, recipe=asked, progress=False)
    first, second = (
        bitwright.apply_plan(one, model, data=samples)
        for one in (plan, QuantPlan.from_json(plan.to_json()))
    )
    assert ir.to_proto(first.model) == ir.to_proto(second.model)
    assert first.plan.tensors == second.plan.tensors != plan.tensors
    # What was learned is in the plan: without more to learn, these scales are written.
    done = msgspec.structs.replace(first.plan, recipe=recipe(rounding="squant"))
    written = bitwright.apply_plan(QuantPlan.from_json(done.to_json()), model)
    scales = [constants_of(ir.to_proto(one.model))["x_scale"] for one in (first, written)]
    assert scales[0] == scales[1] != np.float32(plan.tensors["x"].scale)


def test_later_segments_read_what_learned_scales_give(monkeypatch):
    model = make_chain()
    samples = make_samples(model, 8)
    seen = {}
    learn = SegmentLearner.learn

    def watched(self, index, quantized, floats):
        quantized = {name: list(rows) for name, rows in quantized.items()}
        seen.update(quantized)
        return learn(self, index, quantized, floats)

    monkeypatch.setattr(SegmentLearner, "learn", watched)
    tuned = quantize(model, samples, LEARNING, holdout=False, emulate=UNSELECTIVE)
    assert tuned.plan.tensors["x"].method == "learned step size"
    written = expose(load_model(tuned.model), ["b", "d"])
    session = Session(written.model, level="disabled")
    for index, sample in enumerate(samples):
        found = session.run(sample)
        rectified = np.maximum(found["b"], 0)  # the written model's quantizer does it
        np.testing.assert_allclose(rectified, seen["b"][index], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found["d"], seen["d"][index], rtol=1e-4, atol=1e-4)


def test_a_scale_learns_in_the_segment_that_reads_it_first():
    model, plan = planned(make_chain())
    segments = SegmentLearner(model, plan, LEARNING, "cpu").segments
    found = find_learning_scales(model, plan, segments)
    # What the third layer reads has gone through the MaxPool, at the scale of the MaxPool's input.
    firsts = {key: segments[index].first for key, index in found.items()}
    assert firsts == {"x": "one", "b": "two"}
    assert plan.root("d") == plan.root("c") not in found


def test_given_scales_and_ranges_stay():
    given = {"x": Override(rmin=-1.0, rmax=1.0), "b": Override(scale=0.5, zero_point=0)}
    model, plan = planned(make_chain(), overrides=given)
    segments = SegmentLearner(model, plan, LEARNING, "cpu").segments
    assert find_learning_scales(model, plan, segments) == {}
    model, plan = planned(make_chain(), output_ranges={"Relu": (0.0, 6.0)})
    assert set(find_learning_scales(model, plan, segments)) == {"x"}


def test_no_scale_becomes_so_small_that_a_bias_overflows():
    model, plan = planned(make_chain())
    assert smallest_factors(model, plan, ["x", "b"])["x"] < 1e-6
    model, plan = planned(make_chain(bias=3e8))
    smallest = smallest_factors(model, plan, ["x"])["x"]
    entry = plan.tensors["x"]
    tensors = {**plan.tensors, "x": msgspec.structs.replace(entry, scale=entry.scale * smallest)}
    scale = msgspec.structs.replace(plan, tensors=tensors).parameters("b1").scale
    assert 0 < smallest <= 1 and np.max(3e8 / scale) < 2**31


def test_what_does_not_help_unseen_samples_is_not_kept():
    model, plan = planned(make_chain())
    hopeless = LEARNING.replace(iterations=4, activation_scale_learning_rate=2.7)
    samples = make_samples(make_chain(), 8)
    tuned = fine_tune(model, plan, hopeless, samples)
    for report in tuned.reports:
        assert report.after < report.before or not report.kept
    model, plan = planned(make_chain(), emulate=UNSELECTIVE)
    forced = fine_tune(model, plan, hopeless, samples)
    assert any(report.after > report.before for report in forced.reports)


def test_checkpoints_keep_learned_scales():
    with Checkpoints() as store:
        report = SegmentReport("one", 1, kept=True)
        store.put("0 one", Learned(report, activation_scales={"x": 0.1}))
        assert store.get("0 one").activation_scales == {"x": 0.1}


def test_segments_that_learn_apart_learn_their_scales():
    model, plan = planned(make_chain(), emulate=UNSELECTIVE)
    method = LEARNING.replace(sequential=False, iterations=4)
    tuned = fine_tune(model, plan, method, make_samples(make_chain(), 8))
    changed = {k for k, e in tuned.plan.tensors.items() if e.scale != plan.tensors[k].scale}
    assert changed == {"x", "b"}


def test_a_range_follows_its_scale():
    entry = TensorPlan(tensor="x", role="activation", qtype=UINT8, scale=1.0, zero_point=5)
    assert rescale(entry, 0.5).range == (-2.5, 125.0)
