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
