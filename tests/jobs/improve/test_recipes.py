"""Recipes are tried on halves of the samples, and what is kept is calibrated on both."""

import numpy as np
import pytest
from support.models import make_cnn, make_mlp, make_samples

import bitwright
from bitwright import load_recipe
from bitwright.jobs.calibration import Calibration, keep_data
from bitwright.jobs.improve.recipes import FIRST, HALVES, Judged, RecipeMaker
from bitwright.jobs.opening import open_model
from bitwright.recipe import MSE, CrossLayerEqualization, MinMax


def maker_of(model, samples, recipe="int8"):
    prepared = open_model(model, load_recipe(recipe))
    return RecipeMaker(prepared, keep_data(prepared, Calibration(samples, progress=False)))


@pytest.mark.parametrize("method", [MinMax(), MSE()])
def test_what_is_finished_is_what_all_samples_but_the_holdout_give(method):
    model = make_cnn()
    samples = make_samples(model, 24)
    recipe = load_recipe("int8").replace(ranges=method)
    _, planned = maker_of(model, samples).finish(recipe)
    whole = bitwright.quantize(model, data=samples, recipe=recipe, progress=False)
    assert planned.plan.tensors == whole.plan.tensors


def test_a_trial_is_judged_on_the_half_that_it_was_not_calibrated_on():
    model = make_mlp()
    samples = make_samples(model, 24)
    plain = maker_of(model, samples)
    # The second half is far larger: ranges of the first cut it off, those of the second do not.
    kept = [number for number in range(24) if number % 8 != 7]
    for number in kept[1::2]:
        samples[number] = {name: array * 50 for name, array in samples[number].items()}
    uneven = maker_of(model, samples)
    recipe = load_recipe("int8")
    losses = [maker.make(Judged(recipe, FIRST)).loss for maker in (plain, uneven)]
    assert losses[1] > 5 * losses[0]
    both = uneven.make(Judged(recipe, HALVES))
    assert both.judgement.samples == len(kept)


def test_what_it_is_calibrated_on_is_told_with_its_number_of_samples():
    maker = maker_of(make_mlp(), make_samples(make_mlp(), 24))
    assert maker.data.startswith("21 samples of")


def test_more_halves_add_to_what_a_trial_was_judged_on():
    at_once, later = (maker_of(make_mlp(), make_samples(make_mlp(), 24)) for _ in range(2))
    recipe = load_recipe("int8")
    first, whole = later.make(Judged(recipe, FIRST)), later.make(Judged(recipe))
    assert np.array_equal(at_once.make(Judged(recipe)).losses, whole.losses)
    assert np.array_equal(first.losses, whole.losses[: first.losses.size])
    assert later.make(Judged(recipe, FIRST)) is first


def test_models_are_prepared_once_whatever_their_ranges_biases_and_equalization(monkeypatch):
    opened = []
    from bitwright.jobs.improve import recipes as module

    def count(source, recipe, providers):
        opened.append(recipe)
        return original(source, recipe, providers)

    original = module.open_model
    monkeypatch.setattr(module, "open_model", count)
    maker = maker_of(make_cnn(), make_samples(make_cnn(), 16))
    recipe = load_recipe("int8")
    for ranges in (MinMax(), MSE()):
        maker.make(Judged(recipe.replace(ranges=ranges)))
    equalized = recipe.replace(equalize=CrossLayerEqualization(), bias_correction="fast")
    found = maker.open(equalized)
    assert opened == []
    assert found.content_fingerprint == open_model(make_cnn(), equalized).content_fingerprint
    maker.open(recipe.replace(optimize=False))
    assert len(opened) == 1


def test_a_recipe_is_laid_out_once_for_all_samples(monkeypatch):
    from bitwright.jobs.improve import recipes as module

    laid_out = []

    def count(model, recipe, **options):
        laid_out.append(recipe)
        return original(model, recipe, **options)

    original = module.lay_out
    monkeypatch.setattr(module, "lay_out", count)
    maker = maker_of(make_cnn(), make_samples(make_cnn(), 16))
    recipe = load_recipe("int8")
    first = maker.decide(recipe).plan
    maker.make(Judged(recipe))
    assert maker.decide(recipe).plan == first
    maker.finish(recipe)
    assert len(laid_out) == 2  # to observe, with a bias for each layer, and to decide
    maker.forget_all_but(recipe.replace(ranges=MSE()))
    maker.decide(recipe)
    assert len(laid_out) > 2  # of a model that may have been prepared anew


def test_a_range_that_was_searched_for_is_found_once(monkeypatch):
    searched = []
    from bitwright.decide.scales import parameters as module

    def count(*given, **options):
        searched.append(given)
        return original(*given, **options)

    original = module.choose_range
    monkeypatch.setattr(module, "choose_range", count)
    maker = maker_of(make_cnn(), make_samples(make_cnn(), 16))
    recipe = load_recipe("int8").replace(ranges=MSE())
    first = maker.decide(recipe).plan
    count_of_first = len(searched)
    again = maker.decide(recipe.replace(weight_ranges=MSE())).plan
    assert len(searched) == count_of_first > 0
    ranges = [{k: t.scale for k, t in p.tensors.items() if t.role == "activation"}
              for p in (first, again)]  # fmt: skip
    assert ranges[0] == ranges[1]
