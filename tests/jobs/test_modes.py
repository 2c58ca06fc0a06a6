"""Each mode of a recipe is carried out by one job."""

from typing import get_args, get_type_hints

import pytest
from support.models import make_cnn, make_samples

import bitwright
from bitwright import load_recipe
from bitwright.errors import PlanError
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.modes import MODES, apply_to_model, mode_of, quantize_model
from bitwright.jobs.opening import open_model
from bitwright.recipe import Recipe


def test_every_mode_that_a_recipe_can_have_is_in_the_table():
    assert set(get_args(get_type_hints(Recipe)["mode"])) == set(MODES)


@pytest.mark.parametrize("name", ["int8", "int8-dynamic", "int8-weights"])
def test_a_plan_applied_gives_the_model_of_the_whole_job(name):
    model, recipe = make_cnn(opset=21, ir_version=10), load_recipe(name)
    calibration = Calibration(data=make_samples(model, 8), holdout=False)
    plan = mode_of(recipe).make_plan(open_model(model, recipe), calibration)
    whole = quantize_model(model, recipe, calibration)
    applied = apply_to_model(plan, model, calibration)
    assert applied.to_proto().graph == whole.to_proto().graph


def test_a_plan_of_another_model_is_refused():
    model = make_cnn()
    plan = bitwright.make_plan(model, data=make_samples(model, 4), recipe="int8")
    with pytest.raises(PlanError):
        apply_to_model(plan, make_cnn(channels=4), Calibration())
