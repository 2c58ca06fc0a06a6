"""The level that n-bit products compute at, chosen by samples."""

import numpy as np
import pytest
from support.language_models import make_block, make_samples
from support.models import build, info, node

import bitwright
from bitwright import RandomData, Recipe, WeightOnly
from bitwright.recipe import HQQ, Nearest


def run(model=None, *, data=None, **options):
    recipe = Recipe(mode="weight-only", weights=WeightOnly(**options))
    return bitwright.quantize(make_block() if model is None else model, data=data, recipe=recipe)


def levels(result):
    """The accuracy level of each n-bit product."""
    return {
        product.name: product.attributes.get_int("accuracy_level", 0)
        for product in result.model.graph
        if product.op_type == "MatMulNBits"
    }


def level_notes(result):
    return [note for note in result.plan.notes if note.startswith("accuracy level")]


def outlier_product():
    """A product that int8 inputs ruin: the largest of each block of them has weights of zero."""
    rng = np.random.default_rng(0)
    weight = (rng.integers(-7, 8, size=(64, 32)) / 7).astype(np.float32)
    gain = np.ones(64, np.float32)
    weight[::32], gain[::32] = 0, 1000
    nodes = [
        node("Mul", ["x", "gain"], ["large"]),
        node("MatMul", ["large", "w"], ["y"], "product"),
    ]
    constants = {"gain": gain, "w": weight}
    return build(nodes, [info("x", ["n", 64])], [info("y", ["n", 32])], constants)


def outlier_samples():
    rng = np.random.default_rng(1)
    return [{"x": rng.normal(size=(4, 64)).astype(np.float32)} for _ in range(8)]


def test_level_4_is_taken_where_samples_show_that_it_costs_little():
    result = run(data=make_samples())
    assert set(levels(result).values()) == {4}
    assert result.plan.recipe.weights.accuracy_level == 4
    (note,) = level_notes(result)
    assert note.startswith("accuracy level 4 of 4-bit products") and "KL" in note


def test_level_0_is_kept_where_int8_inputs_cost_much():
    result = run(outlier_product(), data=outlier_samples())
    assert levels(result) == {"product": 0}
    assert result.plan.recipe.weights.accuracy_level is None
    (note,) = level_notes(result)
    assert note.startswith("accuracy level 0") and "beyond the 5 %" in note


def test_the_losses_in_the_note_are_those_of_models_at_both_levels():
    data = make_samples(7)  # too few for a holdout
    (note,) = level_notes(run(data=data))
    for level in (0, 4):
        loss = run(data=data, accuracy_level=level).judgement.loss
        assert f"{100 * loss:#.3g}" in note


def test_it_is_chosen_on_16_samples_where_there_are_so_many():
    (note,) = level_notes(run(data=make_samples(24)))
    assert "on 16 samples" in note


@pytest.mark.parametrize(
    ("model", "data"),
    [(make_block(), make_samples()), (outlier_product(), outlier_samples())],
    ids=["level 4", "level 0"],
)
def test_the_plan_of_the_result_gives_the_same_bytes_with_any_data(model, data):
    result = run(model, data=data, rounding=Nearest(weighted=False))
    for more in (None, data[:3]):
        again = bitwright.apply_plan(result.plan, model, data=more)
        assert again.to_proto().SerializeToString() == result.to_proto().SerializeToString()


def test_a_plan_made_before_leaves_the_level_to_the_samples():
    recipe = Recipe(mode="weight-only", weights=WeightOnly())
    plan = bitwright.make_plan(make_block(), recipe=recipe)
    assert plan.recipe.weights.accuracy_level == "auto"
    applied = bitwright.apply_plan(plan, make_block(), data=make_samples())
    assert set(levels(applied).values()) == {4}


@pytest.mark.parametrize(
    "data", [None, RandomData(count=4, shapes={"n": 8})], ids=["none", "random"]
)
def test_without_real_samples_products_compute_in_float_and_a_note_says_so(data):
    result = run(data=data)
    assert set(levels(result).values()) == {0}
    (note,) = level_notes(result)
    assert "was not tried: there are no real samples" in note


def test_8_bit_products_need_level_4_whatever_the_samples_show():
    model, data = outlier_product(), outlier_samples()
    result = run(model, data=data, bits=8)
    assert levels(result) == {"product": 4} and level_notes(result) == []


def test_nothing_is_chosen_where_neither_level_is_fast():
    result = run(data=make_samples(), rounding=HQQ(float_zero_points=True))
    assert set(levels(result).values()) == {0} and level_notes(result) == []


@pytest.mark.parametrize("level", [None, 0, 1])
def test_a_level_that_is_given_is_not_measured(level):
    result = run(data=make_samples(), accuracy_level=level)
    assert set(levels(result).values()) == {level or 0} and level_notes(result) == []
    assert result.plan.recipe.weights.accuracy_level == level
