"""Recipes are judged fold by fold, and what is written has the ranges of all folds."""

import numpy as np
import pytest
from support.models import make_cnn, make_mlp, make_samples

import bitwright
from bitwright import load_recipe
from bitwright.assess.judge.noise import Noise
from bitwright.errors import RecipeError
from bitwright.jobs.calibration import Calibration, keep_data
from bitwright.jobs.improve.recipes import MAX_JUDGED, Judged, RecipeMaker
from bitwright.jobs.opening import open_model
from bitwright.jobs.output import open_quantized
from bitwright.recipe import MSE, CrossLayerEqualization, MinMax


def maker_of(model, samples, recipe="int8"):
    prepared = open_model(model, load_recipe(recipe) if isinstance(recipe, str) else recipe)
    return RecipeMaker(prepared, keep_data(prepared, Calibration(samples, progress=False)))


@pytest.mark.parametrize("method", [MinMax(), MSE()])
def test_what_is_finished_is_what_all_samples_but_the_holdout_give(method):
    model = make_cnn()
    samples = make_samples(model, 24)
    recipe = load_recipe("int8").replace(ranges=method)
    _, planned = maker_of(model, samples).finish(recipe)
    whole = bitwright.quantize(model, data=samples, recipe=recipe, progress=False)
    assert planned.plan.tensors == whole.plan.tensors


def test_a_fold_is_judged_by_the_ranges_of_the_others():
    model, recipe = make_mlp(), load_recipe("int8")
    samples = make_samples(model, 32)
    kept = [number for number in range(32) if number % 8 != 7]
    fold = 3
    for number in kept[fold::4]:  # ranges of the other folds cut these off, their own do not
        samples[number] = {name: array * 50 for name, array in samples[number].items()}
    maker = maker_of(model, samples)
    folds = maker.make(Judged(recipe, "folds")).losses
    planned = maker.make(Judged(recipe, "planned")).losses
    assert folds.size == 4 * MAX_JUDGED
    assert folds[-MAX_JUDGED:].mean() > planned.mean() + 10


def test_what_corrects_biases_has_not_seen_the_samples_that_judge_it():
    model, recipe = make_mlp(), load_recipe("int8").replace(bias_correction="sequential")
    seen = []
    maker = maker_of(model, make_samples(model, 32))
    original = maker._round
    maker._round = lambda decided, data: (
        seen.extend(data.open(model_of(maker))) or original(decided, data)
    )
    assert maker.make(Judged(recipe)).is_final
    judged = {array.tobytes() for s in maker.judged[-1] for array in s.values()}
    used = {array.tobytes() for sample in seen for array in sample.values()}
    assert len(judged) == MAX_JUDGED
    assert len(used) > MAX_JUDGED
    assert not judged & used


def model_of(maker):
    return maker.prepared.model


def test_what_it_is_calibrated_on_is_told_with_its_number_of_samples():
    maker = maker_of(make_mlp(), make_samples(make_mlp(), 24))
    assert maker.data.startswith("21 samples of")


def test_a_simulation_gives_what_the_runtime_gives_by_the_same_plan():
    model, recipe = make_cnn(), load_recipe("int8-per-channel")
    samples = make_samples(model, 24)
    maker = maker_of(model, samples, "int8-per-channel")
    simulated = maker.make(Judged(recipe, "planned"))
    prepared, planned = maker.finish(recipe)
    session = open_quantized(prepared, planned, checked=False).session
    noise, reference = Noise(prepared.reference), prepared.reference_session
    losses = [
        noise.decibels(noise.keep(s, reference.run(s)), session.run(s)) for s in maker.judged[-1]
    ]
    # Where a value is halfway between two levels, sums in another order decide.
    assert np.median(np.abs(simulated.losses - losses)) < 0.1


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
        maker.make(Judged(recipe.replace(ranges=ranges), "folds"))
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
    maker.make(Judged(recipe.replace(ranges=MSE()), "folds"))
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


def test_a_higher_price_of_noise_leaves_more_float_and_observes_nothing_again(monkeypatch):
    from bitwright.jobs.improve import recipes as module

    passes = []
    observe = module.observe_everything
    monkeypatch.setattr(
        module, "observe_everything", lambda *a, **k: passes.append(1) or observe(*a, **k)
    )
    model = make_cnn(channels=64, size=48)
    base = load_recipe("int8-per-channel").replace(
        place={"purpose": "balanced", "cpu": "x86-vnni", "noise_price": 0}
    )
    samples = make_samples(model, 24)
    for sample in samples:  # most values share few levels
        sample["x"][..., 0, 0] *= 300
    maker = maker_of(model, samples, base)
    free, dear = (
        maker.decide(base.replace(place={"noise_price": price})).plan for price in (0, 1000)
    )
    quantized = [sum(n.quantized for n in plan.nodes.values()) for plan in (free, dear)]
    assert quantized[1] < quantized[0]
    assert len(passes) == 1
    float_now = [
        n for name, n in dear.nodes.items() if free.nodes[name].quantized and not n.quantized
    ]
    assert any("lose more than the time is worth" in n.why for n in float_now)


@pytest.mark.parametrize("price", [-1, float("nan"), float("inf")])
def test_a_price_below_nothing_is_refused(price):
    with pytest.raises(RecipeError, match="noise_price"):
        load_recipe("int8-per-channel").replace(place={"noise_price": price})
