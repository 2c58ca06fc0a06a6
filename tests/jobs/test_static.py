"""The pipeline: every stage by name and in order, on values that nobody changes."""

import ast
import dataclasses
import inspect

import numpy as np
import onnx_ir as ir
import pytest
from support.models import make_cnn, make_samples

import bitwright
from bitwright import load_recipe
from bitwright.errors import DataError, RecipeError
from bitwright.jobs import static
from bitwright.jobs.calibration import Calibrated, Calibration, Evaluation
from bitwright.jobs.opening import ON_CPU, Compute, Prepared, open_model
from bitwright.jobs.output import Planned, Written
from bitwright.jobs.static import Decided, make_static_plan, plan_static, quantize_static
from bitwright.recipe import Recipe, SmoothQuant


def calls_of(function):
    """Return the names of the functions that a function calls, in the order of its lines."""
    calls = [
        (node.lineno, node.func.id)
        for node in ast.walk(ast.parse(inspect.getsource(function)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    return [name for _, name in sorted(calls)]


def test_every_stage_stands_in_order_in_one_file():
    wanted = ["plan_static", "round_weights", "emit_model", "assess_model"]
    assert [name for name in calls_of(static.quantize_static) if name in wanted] == wanted
    wanted = ["lay_out", "smooth_activations", "calibrate", "decide_layout"]
    assert [name for name in calls_of(static.plan_static) if name in wanted] == wanted


@pytest.mark.parametrize(
    "value", [Prepared, Calibration, Calibrated, Evaluation, Decided, Planned, Written, Compute]
)
def test_what_passes_from_stage_to_stage_is_frozen(value):
    assert value.__dataclass_params__.frozen
    one = object.__new__(value)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(one, dataclasses.fields(value)[0].name, None)


@pytest.mark.parametrize(
    "recipe",
    [
        load_recipe("int8-per-channel"),
        Recipe(bias_correction="sequential"),
        Recipe(smooth=SmoothQuant()),
        load_recipe("npu-cnn"),
    ],
    ids=lambda recipe: recipe.name,
)
def test_stages_leave_the_prepared_model_as_it_is(recipe):
    model = make_cnn()
    samples = make_samples(model, 10)
    prepared = open_model(model, recipe)
    before = ir.to_proto(prepared.model).SerializeToString(deterministic=True)
    decided = plan_static(prepared, Calibration(data=samples))
    assert decided.plan.fingerprint == decided.prepared.fingerprint
    bitwright.apply_plan(make_static_plan(prepared, Calibration(data=samples)), model)
    assert ir.to_proto(prepared.model).SerializeToString(deterministic=True) == before


def test_a_plan_and_the_whole_job_decide_the_same():
    model, recipe = make_cnn(), load_recipe("int8-per-channel")
    samples = make_samples(model, 8)
    calibration = Calibration(data=samples, holdout=False)
    prepared = open_model(model, recipe)
    result = quantize_static(prepared, calibration)
    assert make_static_plan(prepared, calibration) == result.plan


def test_random_data_is_a_field_of_the_plan_and_a_note_for_people():
    model = make_cnn()
    data = bitwright.RandomData(count=4)
    plan = bitwright.make_plan(model, data=data, recipe="int8")
    assert plan.random_data and any("random data" in note for note in plan.notes)
    kept = bitwright.quantize(
        model, data=data, recipe={"base": "int8", "bias_correction": "sequential"}
    )
    assert kept.plan.random_data
    real = bitwright.make_plan(model, data=make_samples(model, 4), recipe="int8")
    assert not real.random_data
    assert bitwright.QuantPlan.from_json(plan.to_json()).random_data


def test_data_that_can_be_read_once_is_kept_where_a_recipe_reads_it_twice():
    model = make_cnn()
    samples = make_samples(model, 8)
    once = quantize_static(open_model(model, Recipe()), Calibration(data=iter(samples)))
    assert once.samples == 1 and once.samples_are_unseen
    corrected = open_model(model, Recipe(bias_correction="sequential"))
    kept = quantize_static(corrected, Calibration(data=iter(samples)))
    assert kept.plan == quantize_static(corrected, Calibration(data=samples)).plan


def test_no_data_is_told_before_anything_is_run():
    with pytest.raises(DataError, match="quantizes activations and needs calibration data"):
        quantize_static(open_model(make_cnn(), Recipe()), Calibration())


def test_a_device_for_plain_rounding_is_refused():
    with pytest.raises(RecipeError, match="the device 'cuda' is for weight-only recipes"):
        quantize_static(open_model(make_cnn(), Recipe()), Calibration(), Compute(device="cuda"))
    assert ON_CPU.refuse_for_plain_rounding() is None


def test_number_types_without_a_range_need_no_data_and_are_measured_on_what_is_given():
    model = make_cnn()
    samples = make_samples(model, 12)
    prepared = open_model(model, load_recipe("bfloat16-pairs"))
    result = quantize_static(prepared, Calibration(data=samples))
    assert result.data == "no data: these number types need none"
    assert result.samples == 8 and result.samples_are_unseen
    assert np.isfinite(result.outputs[0].sqnr)
