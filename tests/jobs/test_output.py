"""What is emitted and measured: the written model, and the facts that it carries."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from support.models import info, make_cnn, make_samples, with_batch_norm

import bitwright
from bitwright import load_recipe
from bitwright.assess import OutputComparison
from bitwright.assess.judge import OutputJudgement, PartJudgement
from bitwright.errors import ModelError, RecipeError
from bitwright.jobs.calibration import Calibration, Evaluation
from bitwright.jobs.comparison import Measuring, open_float_side
from bitwright.jobs.opening import open_model
from bitwright.jobs.output import (
    TRAINED,
    Planned,
    _note_lost_outputs,
    assess_model,
    emit_model,
    float_model_to_round,
    sign_model,
)
from bitwright.jobs.static import plan_static
from bitwright.plan import QuantPlan
from bitwright.recipe import Placement, Recipe
from bitwright.run import Session


@pytest.fixture(scope="module")
def decided():
    model = make_cnn()
    return plan_static(open_model(model, Recipe()), Calibration(data=make_samples(model, 8)))


def test_learned_constants_are_rounded_in_place_of_the_models_own(decided):
    name = next(key for key, entry in decided.plan.tensors.items() if entry.role == "weight")
    learned = decided.prepared.model.graph.initializers[name].const_value.numpy() * 0
    rounded = float_model_to_round(decided.prepared, Planned(decided.plan, {name: learned}))
    assert not rounded.graph.initializers[name].const_value.numpy().any()
    assert decided.prepared.model.graph.initializers[name].const_value.numpy().any()


def test_inputs_with_a_default_are_inputs_of_what_is_written():
    model = make_cnn()
    weight = model.graph.initializer[0]
    model.graph.input.append(info(weight.name, list(weight.dims)))
    recipe = {"base": "int8", "keep_defaults": True}
    result = bitwright.quantize(model, data=make_samples(make_cnn(), 4), recipe=recipe)
    names = [value.name for value in result.model.graph.inputs]
    assert names == [value.name for value in model.graph.input]


def test_without_samples_the_result_is_run_but_not_measured(decided):
    written = emit_model(decided.prepared, Planned(decided.plan))
    result = assess_model(decided.prepared, written, Evaluation())
    assert result.outputs == [] and result.samples == 0 and result.data == "no data"
    measured = assess_model(decided.prepared, written, decided.calibrated.evaluation, "some")
    assert measured.outputs[0].sqnr > 10 and measured.data == "some"


def test_vendor_operators_without_bodies_are_written_and_said_not_to_have_been_run():
    model = make_cnn()
    recipe = Recipe(format="extended", place=Placement(portable=False))
    result = bitwright.quantize(model, recipe=recipe, data=make_samples(model, 4))
    assert result.outputs == []
    assert any(note.startswith("not run or measured here") for note in result.plan.notes)


def test_float8_products_are_measured_without_optimizations():
    model = make_cnn()
    result = bitwright.quantize(model, target="nvidia-tensorrt:fp8", data=make_samples(model, 16))
    assert result.outputs[0].sqnr > 15 and result.judgement is not None
    assert any(note.startswith("measured without optimizations") for note in result.plan.notes)
    with pytest.raises(ModelError):
        Session(result.model)


def test_float8_channels_next_to_zero_have_no_denormal_scale():
    model = make_cnn()
    (first, *_) = (t for t in model.graph.initializer if t.name == "w1")
    weight = numpy_helper.to_array(first).copy()
    weight[0], weight[1] = 1e-38, 0.0
    first.CopyFrom(numpy_helper.from_array(weight, "w1"))
    recipe = load_recipe(None, "nvidia-tensorrt:fp8").replace(per_channel=True)
    result = bitwright.quantize(model, recipe=recipe, data=make_samples(model, 2))
    assert bitwright.verify(result.model, "nvidia-tensorrt").ok
    assert result.plan.tensors["w1"].scale[:2] == [1.0, 1.0]


def test_effort_is_refused_for_what_cannot_be_run():
    model = make_cnn()
    recipe = Recipe(format="extended", place=Placement(portable=False))
    with pytest.raises(RecipeError, match="cannot be run here, and effort chooses"):
        bitwright.quantize(model, recipe=recipe, data=make_samples(model, 16), effort="medium")


def test_a_recipe_that_somebody_calls_trained_is_compared_as_any_other():
    # Its batch norms are folded, so that only a prepared float model has its tensors.
    model = make_cnn()
    samples = make_samples(model, 4)
    named = bitwright.quantize(model, recipe=Recipe(name="trained"), data=samples)
    plain = bitwright.quantize(model, recipe=Recipe(name="other"), data=samples)
    one, other = (bitwright.compare(model, result.model, data=samples) for result in (named, plain))
    assert [node.name for node in one.nodes] == [node.name for node in other.nodes]
    assert TRAINED not in named.model.metadata_props


@pytest.mark.parametrize("trained", [True, False])
def test_models_whose_scales_were_trained_stand_beside_the_float_model_as_it_is(trained):
    model, signed = (ir.from_proto(with_batch_norm()) for _ in range(2))
    plan = QuantPlan(recipe=Recipe(), fingerprint="", tensors={}, nodes={}, trained=trained)
    sign_model(signed, plan)
    assert (TRAINED in signed.metadata_props) is trained
    found = open_float_side(model, signed, None, Measuring())
    assert found.before_simulation is None
    kept = "BatchNormalization" in {node.op_type for node in found.model.graph}
    assert kept is trained


def test_a_result_that_lost_its_outputs_says_so():
    # Ranges of the wrong samples: a thousandth of the values that are then measured.
    model = make_cnn()
    data = make_samples(model)
    tiny = [{name: array / 1000 for name, array in sample.items()} for sample in data]
    plan = bitwright.make_plan(model, recipe="int8", data=tiny, progress=False)
    lost = bitwright.apply_plan(plan, model, data=data, progress=False)
    assert any("has little in common" in note and "'y'" in note for note in lost.plan.notes)
    good = bitwright.quantize(model, recipe="int8", data=data, progress=False)
    assert not any("has little in common" in note for note in good.plan.notes)


@pytest.mark.parametrize(
    ("figure", "told"), [(np.nan, "values that are no numbers"), (-np.inf, "-inf dB"), (9.0, "")]
)
def test_values_that_are_no_numbers_are_told_where_the_mean_loss_is_small(figure, told):
    losses = np.array([0.1, 0.3])
    part = PartJudgement("sqnr", "numbers", 1, (0, 1), figure, losses)
    judged = OutputJudgement("y", (part,), losses)
    notes = _note_lost_outputs([OutputComparison("y", 9.0, 0.9, 1.0, None, judged)])
    assert len(notes) == bool(told) and all(told in note for note in notes)
