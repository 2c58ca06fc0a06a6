"""Bits for each weight of a language model, so that the metric is kept in few bytes."""

import pytest
from support.language_models import make_block, make_samples

import bitwright
from bitwright.errors import RecipeError


@pytest.fixture(scope="module")
def given():
    return make_block(), make_samples(8), make_samples(64)


def tuned(given, **options):
    model, data, samples = given
    return bitwright.tune(
        model, data=data, eval_data=samples, recipe="int4-rtn", purpose="size", **options
    )


@pytest.fixture(scope="module")
def worked(given, tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    return tuned(given, evaluate="cosine", max_drop=0.002, work=folder), folder


def test_weights_that_lose_most_get_more_bits_until_the_metric_is_kept(given, worked):
    plain = bitwright.quantize(given[0], data=given[1], recipe="int4-rtn")
    result, _ = worked
    assert result.met
    assert result.point.measured.drop <= 0.002
    bits = {weight.bits for weight in result.plan.weights.values()}
    assert 8 in bits
    assert {unit.state for unit in result.fallen} <= {"w8", "float"}
    assert plain.size < result.point.measured_cost < result.float_cost
    assert result.probes == ()
    names = [name for name, _ in result.loss_units]
    assert names[0] in {unit.node for unit in result.fallen}


def test_four_bits_that_keep_the_metric_stay(given):
    result = tuned(given, evaluate="cosine", max_drop=0.5)
    assert result.met
    assert result.fallen == ()
    assert result.evaluations == 1


@pytest.mark.slow
def test_a_budget_in_bytes_is_kept_and_spent_on_the_weights_that_lose_most(given, worked):
    _, folder = worked
    small = bitwright.quantize(given[0], data=given[1], recipe="int4-rtn").size
    wide = bitwright.quantize(given[0], data=given[1], recipe="int8-weights").size
    most = (small + wide) // 2
    result = tuned(given, evaluate="cosine", max_drop=0.5, max_size=most, work=folder)
    assert result.met and result.max_size == most
    assert small < result.point.measured_cost <= most
    assert result.point.measured_cost > most - (wide - small) / 3  # it is spent
    assert {weight.bits for weight in result.plan.weights.values()} == {4, 8}
    plain = tuned(given, evaluate="cosine", max_drop=0.5, work=folder)
    assert result.point.measured.drop < plain.point.measured.drop
    assert "Goal: met: at most 0.5 of " in result.summary()


def test_a_budget_below_all_bits_is_missed_with_the_smallest_model(given):
    result = tuned(given, evaluate="cosine", max_drop=0.5, max_size="10kB")
    assert not result.met and not result.is_float
    assert "no model of this recipe is as small as 10.0 kB" in " ".join(result.notes)
    assert {weight.bits for weight in result.plan.weights.values()} == {4}


def test_a_budget_above_float_leaves_the_model_as_it_is(given):
    result = tuned(given, evaluate="cosine", max_drop=0.5, max_size="1GB")
    assert result.is_float and not result.met
    assert "small enough as it is" in " ".join(result.notes)
    assert not result.plan.weights  # tables that are looked up included


def test_the_same_search_is_found_in_the_journal(given, worked):
    first, folder = worked
    second = tuned(given, evaluate="cosine", max_drop=0.002, work=folder)
    assert second.evaluations == 0
    assert second.point == first.point


def test_what_goes_with_static_recipes_only_is_refused(given):
    with pytest.raises(RecipeError, match="as long as reading them: tune it for size"):
        bitwright.tune(given[0], data=given[1], eval_data=given[2], recipe="int4-rtn")
    with pytest.raises(RecipeError, match="effort is for recipes that calibrate activations"):
        tuned(given, effort="medium")
