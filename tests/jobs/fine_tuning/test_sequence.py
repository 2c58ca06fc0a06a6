"""Fine-tuning as part of a job: what is learned is what is written."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import pytest
from support.models import (
    build,
    constants_of,
    make_cnn,
    make_mlp,
    make_samples,
    make_transformer,
    node,
    normal,
)

import bitwright
from bitwright import load_recipe
from bitwright.errors import DataError, MissingPackageError, RecipeError
from bitwright.graph import expose, load_model
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.opening import open_model
from bitwright.jobs.output import Planned, emit_model
from bitwright.jobs.static import plan_static
from bitwright.numerics.types import BFLOAT16, INT4, INT8
from bitwright.recipe import AdaQuant, AdaRound, LearningDetails, MinMSE, Recipe
from bitwright.run import Session

torch = pytest.importorskip("torch", reason="fine-tuning needs torch")

from bitwright.jobs.fine_tuning.segment import SegmentLearner  # noqa: E402
from bitwright.jobs.fine_tuning.sequence import fine_tune  # noqa: E402

SHORT = AdaRound(iterations=20, batch_size=4)
UNSELECTIVE = {"fine_tune": {"selective": False}}


def correlated(model, count=24):
    """Samples whose elements go together, as those of images and sentences do."""
    samples = make_samples(model, count)
    for seed, sample in enumerate(samples):
        for name, array in sample.items():
            patterns = normal(4, *array.shape, seed=99)
            mixture = np.tensordot(normal(4, seed=seed), patterns, 1)
            sample[name] = (0.1 * array + mixture).astype(np.float32)
    return samples


def recipe(**changes):
    return load_recipe("int8").replace(weight=INT4, **changes)


def quantize(model, samples, **changes):
    return bitwright.quantize(model, data=samples, recipe=recipe(**changes), progress=False)


@pytest.mark.parametrize("scope", ["segment", "layer"])
def test_adaround_brings_the_output_closer_to_float(scope):
    model = make_cnn(opset=21, ir_version=10)
    samples = correlated(model)
    plain = quantize(model, samples)
    tuned = quantize(model, samples, fine_tune=AdaRound(iterations=80, batch_size=8, scope=scope))
    assert tuned.outputs[0].sqnr > plain.outputs[0].sqnr
    assert any(note.startswith("fine-tuned") for note in tuned.plan.notes)


@pytest.mark.slow
def test_adaquant_learns_weights_biases_and_scales():
    model = make_cnn(opset=21, ir_version=10)
    samples = correlated(model, 32)
    plain = quantize(model, samples)
    method = AdaQuant(iterations=60, learning_rate=1e-4, scale_learning_rate=1e-3, batch_size=8)
    tuned = quantize(model, samples, fine_tune=method)
    assert tuned.outputs[0].sqnr > plain.outputs[0].sqnr
    learned = [e for e in tuned.plan.tensors.values() if e.method == "learned step size"]
    assert learned and all(e.role == "weight" for e in learned)
    fixed = quantize(
        model, samples, fine_tune=AdaQuant(iterations=5, learn_scales=False), emulate=UNSELECTIVE
    )
    assert {k: e.scale for k, e in fixed.plan.tensors.items()} == {
        k: e.scale for k, e in plain.plan.tensors.items()
    }


def test_power_of_two_scales_stay_powers_of_two():
    model = make_mlp(opset=21, ir_version=10)
    options = {"scales": "power-of-two", "ranges": MinMSE(), "weight_ranges": MinMSE()}
    method = AdaQuant(iterations=5, learning_rate=0.01)
    result = quantize(model, correlated(model), fine_tune=method, emulate=UNSELECTIVE, **options)
    scales = [np.log2(e.scale) for e in result.plan.tensors.values() if e.role == "weight"]
    assert scales and np.all(np.mod(scales, 1) == 0)
    with pytest.raises(RecipeError, match="learn_scales would leave scales='power-of-two'"):
        recipe(fine_tune=AdaQuant(learn_scales=True), **options)


def test_the_written_integers_are_those_that_were_learned():
    model = make_mlp(opset=21, ir_version=10)
    samples = correlated(model)
    job = open_model(model, recipe(emulate=UNSELECTIVE))
    plan = plan_static(job, Calibration(data=samples, holdout=False, progress=False)).plan
    tuned = fine_tune(job.model, plan, AdaRound(iterations=60), samples)
    assert set(tuned.constants) == {"w1", "w2"}
    written = emit_model(job, Planned(tuned.plan, tuned.constants))
    stored = constants_of(bitwright_proto(written))
    for name, array in tuned.constants.items():
        scale = np.float32(plan.parameters(name).scale)
        np.testing.assert_array_equal(
            np.asarray(stored[f"{name}_quantized"], np.float32), np.round(array / scale)
        )
        floats = {
            "w1": job.model.graph.initializers["w1"],
            "w2": job.model.graph.initializers["w2"],
        }
        steps = np.abs(array - floats[name].const_value.numpy()) / scale
        assert steps.max() < 1 + 1e-5  # up or down, no further
        assert steps.max() > 0.5  # and not all to the nearest


def bitwright_proto(result):
    import onnx_ir as ir

    return ir.serde.serialize_model(result.model)


def test_the_error_of_the_last_block_is_that_of_the_written_model():
    model = make_transformer(opset=21, ir_version=10)
    samples = correlated(model, 8)
    details = {"selective": False, "holdout_fraction": 0}
    job = open_model(model, recipe(emulate={"fine_tune": details}))
    plan = plan_static(job, Calibration(data=samples, holdout=False, progress=False)).plan
    tuned = fine_tune(job.model, plan, AdaRound(iterations=20), samples)
    written = emit_model(job, Planned(tuned.plan, tuned.constants))
    # What comes behind the last segment, a norm, learns nothing.
    inner = [
        [session.run(sample)[exposed.outputs["sum2"]] for sample in samples]
        for exposed in (expose(m, ["sum2"]) for m in (written.model, job.model))
        for session in [Session(exposed.model)]
    ]
    errors = [np.mean((found - wanted) ** 2) for found, wanted in zip(*inner, strict=True)]
    # The runtime computes in integers.
    assert np.mean(errors) == pytest.approx(tuned.reports[-1].after, rel=0.25)


def test_the_same_recipe_gives_the_same_bytes():
    model = make_mlp(opset=21, ir_version=10)
    samples = correlated(model, 8)
    first, second = (quantize(model, samples, fine_tune=SHORT) for _ in range(2))
    assert bitwright_proto(first) == bitwright_proto(second)


def test_a_layer_that_torch_cannot_run_is_left_with_its_reason():
    nodes = [
        node("MatMul", ["x", "w1"], ["a"], name="first"),
        node("Celu", ["a"], ["b"], name="odd"),
        node("MatMul", ["b", "w2"], ["y"], name="second"),
    ]
    constants = {"w1": normal(16, 16, seed=1), "w2": normal(16, 4, seed=2)}
    model = build(nodes, {"x": [1, 16]}, {"y": None}, constants, opset=21, ir_version=10)
    result = quantize(model, correlated(model, 8), fine_tune=SHORT)
    notes = [note for note in result.plan.notes if note.startswith("fine-tuning: ")]
    assert [note.split()[1] for note in notes] == ["first:", "second:"]  # both without the Celu


def test_a_plan_that_fine_tunes_is_applied_with_data_only():
    model = make_mlp(opset=21, ir_version=10)
    samples = correlated(model, 8)
    plan = bitwright.make_plan(model, data=samples, recipe=recipe(fine_tune=SHORT), progress=False)
    with pytest.raises(DataError, match="needs calibration data"):
        bitwright.apply_plan(plan, model)
    applied = bitwright.apply_plan(plan, model, data=samples)
    assert any(note.startswith("fine-tuned") for note in applied.plan.notes)


def test_without_torch_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingPackageError, match=r"install bitwright\[torch\]"):
        quantize(make_mlp(opset=21, ir_version=10), correlated(make_mlp()), fine_tune=SHORT)


def test_a_missing_torch_or_device_is_told_before_any_data_is_read(monkeypatch):
    def data():
        pytest.fail("data was read")
        yield

    arguments = {"data": data(), "recipe": recipe(fine_tune=SHORT)}
    model = make_mlp(opset=21, ir_version=10)
    with pytest.raises(RecipeError, match="device='gpu' is no place to fine-tune; use cpu, cuda"):
        bitwright.quantize(model, device="gpu", **arguments)
    with pytest.raises(MissingPackageError, match="torch finds no CUDA device"):
        bitwright.quantize(model, device="cuda:99", **arguments)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingPackageError, match="fine-tuning needs torch"):
        bitwright.quantize(model, **arguments)


def test_contradictions_are_refused_at_once():
    for method in (SHORT, AdaQuant()):
        with pytest.raises(RecipeError, match="only integer weights learn"):
            Recipe(activation=BFLOAT16, weight=BFLOAT16, fine_tune=method)
    with pytest.raises(RecipeError, match="fine_tune has no effect in dynamic mode"):
        Recipe(mode="dynamic", fine_tune=SHORT)
    with pytest.raises(RecipeError, match="drop_ratio must lie in"):
        LearningDetails(drop_ratio=1.5)
    with pytest.raises(RecipeError, match="iterations of fine_tune must be at least 1"):
        AdaQuant(iterations=0)


def test_recipes_with_fine_tuning_round_trip():
    for method in (SHORT, AdaQuant(learn_scales=False)):
        asked = Recipe(weight=INT8, fine_tune=method)
        assert Recipe.from_json(asked.to_json()) == asked
    with pytest.raises(RecipeError, match="unknown option 'iteration'"):
        Recipe.from_mapping({"fine_tune": {"method": "adaround", "iteration": 5}})


def test_the_model_that_is_given_is_not_changed():
    model = make_mlp(opset=21, ir_version=10)
    before = onnx.ModelProto()
    before.CopyFrom(model)
    quantize(model, correlated(model, 8), fine_tune=SHORT)
    assert model == before


def test_blocks_learn_from_what_the_written_model_gives_them(monkeypatch):
    """Activations are on coarse steps, so that any other weights before a segment would show."""
    model = make_cnn(opset=21, ir_version=10)
    samples = correlated(model, count=8)
    seen = {}
    learn = SegmentLearner.learn

    def watched(self, index, quantized, floats):
        quantized = {name: list(rows) for name, rows in quantized.items()}
        seen.update(quantized)
        return learn(self, index, quantized, floats)

    monkeypatch.setattr(SegmentLearner, "learn", watched)
    tuned = bitwright.quantize(
        model, data=samples, recipe=recipe(fine_tune=SHORT), holdout=False, progress=False
    )
    inside = [name for name in seen if name not in samples[0]]
    assert len(inside) > 1
    written = expose(load_model(tuned.model), inside)
    session = Session(written.model, level="disabled")
    for index, sample in enumerate(samples):
        found = session.run(sample)
        for name in inside:
            np.testing.assert_allclose(found[name], seen[name][index], rtol=1e-4, atol=1e-4)
