"""Mixed bits: weights that lose most get more, within the budget, and the answers come closer."""

import numpy as np
import onnx_ir as ir
import pytest
from support.language_models import make_block, make_samples

import bitwright
from bitwright.decide.layout.branches import Branch
from bitwright.errors import DataError, RecipeError
from bitwright.jobs.weight_only.layers import planned_weights
from bitwright.jobs.weight_only.mixed_bits import choose_by_loss, choose_by_place, measure_losses
from bitwright.numerics.blocks import SHRINKS, quantize_in_blocks
from bitwright.recipe import ByLoss, ByPlace

MIXED = {"base": "int4-rtn", "weights": {"mixed": {"by": "loss", "average_bits": 5.5}}}


def sizes(plan, model):
    constants = {c.name: np.prod(c.dims) for c in model.graph.initializer}
    return {name: int(constants[name]) for name in plan.weights}


def test_the_average_is_kept_and_the_answers_come_closer():
    model, data = make_block(), make_samples(16)
    plain = bitwright.quantize(model, data=data, recipe="int4-rtn")
    mixed = bitwright.quantize(model, data=data, recipe=MIXED)
    weights, counts = mixed.plan.weights, sizes(mixed.plan, model)
    average = sum(counts[n] * w.bits for n, w in weights.items()) / sum(counts.values())
    assert 5 < average <= 5.5 and {w.bits for w in weights.values()} == {4, 8}
    assert f"{average:.2f} bits on average" in " ".join(mixed.plan.notes)
    assert mixed.judgement.loss < 0.9 * plain.judgement.loss


def test_the_loss_of_a_weight_is_that_of_its_branch_run_in_the_runtime():
    import onnxruntime

    model, (sample,) = make_block(), make_samples(1)
    plan = bitwright.make_plan(model, recipe="int4-rtn")
    graph = ir.serde.deserialize_model(model)
    weights = planned_weights(graph, plan)
    losses = measure_losses(graph, weights, [sample])
    weight = next(w for w in weights if w.name == "up1")
    found = []
    for rounded in (False, True):
        changed = make_block()
        end = changed.graph.node[-2].output[0]
        changed.graph.output.append(type(changed.graph.output[0])(name=end))
        if rounded:
            blocks = quantize_in_blocks(weight.read(), weight.format(), shrinks=SHRINKS)
            (stored,) = (c for c in changed.graph.initializer if c.name == "up1")
            stored.raw_data = weight.restore(blocks).astype(np.float32).tobytes()
        session = onnxruntime.InferenceSession(changed.SerializeToString())
        found.append(session.run([end], sample)[0])
    exact, other = (array.astype(np.float64) for array in found)
    wanted = (np.square(other - exact).sum(-1) / np.square(exact).sum(-1)).mean()
    assert losses["up1"] == pytest.approx(wanted, rel=1e-3)
    assert losses.keys() == {w.name for w in weights}


def test_a_mixture_by_place_needs_no_data():
    recipe = {"base": "int4-k", "weights": {"head_bits": None}}
    result = bitwright.quantize(make_block(depth=3), recipe=recipe)
    wide = {name for name, w in result.plan.weights.items() if w.bits == 8}
    assert wide == {"down2", "embedding"}


def test_a_plan_of_mixed_bits_applies_as_it_is():
    model, data = make_block(), make_samples(8)
    plan = bitwright.make_plan(model, data=data, recipe=MIXED)
    again = bitwright.apply_plan(plan, model, data=data)
    whole = bitwright.quantize(model, data=data, recipe=MIXED)
    assert again.to_proto().SerializeToString() == whole.to_proto().SerializeToString()


def test_what_it_cannot_do_is_said():
    with pytest.raises(DataError, match="needs calibration data"):
        bitwright.quantize(make_block(), recipe=MIXED)
    with pytest.raises(RecipeError, match="not more than the 8"):
        bitwright.WeightOnly(bits=8, mixed=ByPlace())
    with pytest.raises(RecipeError, match="would be left"):
        bitwright.quantize(
            make_block(),
            data=make_samples(4),
            recipe={"base": "int4-mixed", "weights": {"mixed": {"average_bits": 9}}},
        )
    assert ByLoss().needs_data and not ByPlace().needs_data


def test_half_a_bit_is_spent_where_there_is_room_for_it():
    model, data = make_block(depth=3), make_samples(8)

    def widths(**weights):
        found = bitwright.make_plan(model, data=data, recipe={"base": "int4", "weights": weights})
        products = {n: w for n, w in found.weights.items() if n != "embedding"}
        return [w.bits for w in products.values()]

    assert set(widths()) == {4, 8} and widths().count(8) <= 2
    assert set(widths(bits=8)) == {8}
    assert widths(head_bits=8).count(8) == 1  # the head has taken it
    assert set(widths(bits=3, head_bits=3, mixed={"wide_bits": 4})) == {3, 4}


def test_one_that_loses_more_for_its_size_comes_first():
    sizes = {"small": 10, "large": 100, "rest": 390}
    losses = {"small": 1.0, "large": 5.0, "rest": 1.0}
    found = choose_by_loss(losses, sizes, narrow=2, wide=4, average_bits=2.04)
    assert found == {"small"}
    assert choose_by_loss(losses, sizes, narrow=2, wide=4, average_bits=2.45) == {"small", "large"}


def test_weights_that_lose_nothing_come_last():
    sizes, losses = {"a": 10, "b": 10, "c": 20}, {"a": 0.0, "b": 1.0, "c": 1e-40}
    for average, found in ((5, "b"), (6, "ab"), (7, "bc"), (8, "abc")):
        chosen = choose_by_loss(losses, sizes, narrow=4, wide=8, average_bits=average)
        assert chosen == set(found)


def test_weights_without_a_loss_stay_narrow():
    assert choose_by_loss({}, {"a": 10}, narrow=4, wide=8, average_bits=8) == set()


@pytest.mark.parametrize("average", [4, 8.5, 2])
def test_a_budget_that_no_mixture_has_is_refused(average):
    with pytest.raises(RecipeError, match="between 4 and 8 bits"):
        choose_by_loss({}, {"a": 1}, narrow=4, wide=8, average_bits=average)


def test_places_are_those_of_k_quants():
    layers = 30
    branches = []
    for i in range(layers):
        branches.append(Branch(f"s{i}", (f"q{i}", f"v{i}", f"o{i}"), True, (f"v{i}",)))
        branches.append(Branch(f"t{i}", (f"up{i}", f"down{i}"), False, ()))
    edge = layers // 8
    more = [i for i in range(layers) if i < edge or i >= 7 * layers / 8 or (i - edge) % 3 == 2]
    wanted = {f"v{i}" for i in more} | {f"down{i}" for i in more}
    assert choose_by_place(branches) == wanted
