"""Placement by cost on models whose best placement is known, and by planted prices."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter

import msgspec
import numpy as np
import pytest
from support.models import build, constants_of, make_samples, node, normal, ops, weight

import bitwright
from bitwright.decide.left_float import leave_float
from bitwright.decide.placement.cut import priced
from bitwright.decide.placement.kernels import KERNELS
from bitwright.decide.placement.place import MIN_GAIN, _Sites, place, time_parts
from bitwright.errors import RecipeError, TargetError
from bitwright.jobs.opening import open_model
from bitwright.recipe import Recipe
from bitwright.targets.costs import Cost, CostTable, read_costs

CPU = "x86-vnni"


def make_chain(channels=64, size=14):
    """Convolution, Relu, MaxPool, convolution, Sigmoid times itself, convolution, a float end."""
    nodes = [
        node("Conv", ["x", "w1"], ["c1"], name="first", pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"], name="relu"),
        node("MaxPool", ["r1"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p", "w2"], ["c2"], name="second", pads=[1, 1, 1, 1]),
        node("Sigmoid", ["c2"], ["s"], name="gate"),
        node("Mul", ["c2", "s"], ["m"], name="swish"),
        node("Conv", ["m", "w3"], ["c3"], name="third", pads=[1, 1, 1, 1]),
        node("Erf", ["c3"], ["y"], name="end"),
    ]
    shape = (channels, channels, 3, 3)
    constants = {f"w{i}": weight(*shape, seed=i) for i in (1, 2, 3)}
    half = size // 2
    return build(
        nodes,
        {"x": [1, channels, size, size]},
        {"y": [1, channels, half, half]},
        constants,
    )


@pytest.fixture(scope="module")
def chain():
    model = make_chain()
    plan = bitwright.make_plan(model, data=make_samples(model), recipe={"base": "int8"})
    return open_model(model, Recipe()).model, plan


def paired(plan):
    return {entry.tensor for entry in plan.tensors.values() if entry.role == "activation"}


def planted(**calls):
    """Return a table in which each kernel takes 1 microsecond, but for these."""
    kernels = {name: Cost(call=calls.get(name, 1.0)) for name in KERNELS}
    free = {name: Cost() for name in ("view", "fused")}
    return CostTable(cpu=CPU, kernels=kernels | free)


def dear_integers(**more):
    return {name: 100.0 for name in KERNELS if name.startswith("q")} | more


def test_integers_that_cost_nothing_are_all_taken(chain):
    model, plan = chain
    table = planted(**{name: 100.0 for name in KERNELS if name.startswith("conv")})
    placed = place(model, plan.nodes, paired(plan), table, preference=1.0)
    assert placed is not None and not placed.times
    assert placed.time == placed.planned_time < placed.float_time


def test_integers_that_only_cost_are_all_left(chain):
    model, plan = chain
    placed = place(model, plan.nodes, paired(plan), planted(**dear_integers()), preference=1.0)
    assert placed is not None
    assert set(placed.times) == {name for name, n in plan.nodes.items() if n.quantized}
    assert placed.time == placed.float_time < placed.planned_time
    assert all(in_float < in_integers for in_float, in_integers in placed.times.values())


def test_a_gain_within_the_error_of_estimates_is_none(chain):
    model, plan = chain
    same = {name: 100.0 for name in KERNELS if "conv" in name}
    close = same | {name: 100.0 * (1 - MIN_GAIN / 2) for name in same if name.startswith("q")}
    placed = place(model, plan.nodes, paired(plan), planted(**close), preference=1.0)
    assert placed is not None and placed.time == placed.float_time
    clear = same | {name: 100.0 * (1 - 3 * MIN_GAIN) for name in same if name.startswith("q")}
    placed = place(model, plan.nodes, paired(plan), planted(**clear), preference=1.0)
    assert placed is not None and placed.time < (1 - MIN_GAIN) * placed.float_time


def test_what_rounding_is_worth_more_than_its_time_stays_float_and_the_rest_does_not(chain):
    model, plan = chain
    table = planted(**{name: 100.0 for name in KERNELS if name.startswith("conv")})
    cheap, dear = (  # a convolution is about a third of the float model's time
        place(model, plan.nodes, paired(plan), table, preference=1.0, noises={"m": share})
        for share in (0.1, 0.6)
    )
    assert not cheap.times
    assert {"swish", "third"} <= dear.times.keys() and not {"first", "second"} & dear.times.keys()
    in_float, in_integers = dear.times["third"]
    assert in_float > in_integers


@pytest.mark.parametrize(("activation", "counted"), [("Relu", False), ("HardSwish", True)])
@pytest.mark.parametrize("action", ["quantize", "float"])
def test_what_a_float_convolution_does_as_well_costs_its_elements(activation, counted, action):
    """Whether it may run in integers, or is float whatever becomes of the others."""
    weights = {name: np.ones((16, 16, 1, 1), np.float32) for name in ("w", "v")}
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="first"),
        node(activation, ["c"], ["a"], name="activation"),
        node("Conv", ["a", "v"], ["y"], name="last"),
    ]
    model = build(nodes, {"x": [1, 16, 8, 8]}, {"y": [1, 16, 8, 8]}, weights)
    plan = bitwright.make_plan(model, data=make_samples(model), recipe={"base": "int8"})
    decided = msgspec.structs.replace(plan.nodes["activation"], action=action)
    nodes = {**plan.nodes, "activation": decided}
    opened = open_model(model, Recipe()).model
    times = []
    for read in (0.0, 8.0):
        table = planted()
        slow = {name: Cost(call=5.0, read=read) for name in ("activation_cheap", "activation_dear")}
        table = msgspec.structs.replace(table, kernels=table.kernels | slow)
        times.append(place(opened, nodes, paired(plan), table, preference=1.0).float_time)
    assert times[0] == 2.0  # no call of its own
    assert times[1] == 2.0 + (8.192 if counted else 0)


def test_a_pool_is_in_integers_only_with_its_neighbours(chain):
    model, plan = chain
    for preference in (1.0, 1.05):
        for first, border in itertools.product((0.5, 300.0), (0.1, 5.0, 60.0)):
            costs = {"conv_blocked": first, "quantize_image": border, "dequantize_image": border}
            placed = place(
                model, plan.nodes, paired(plan), planted(**costs, qconv=20.0), preference=preference
            )
            assert placed is not None
            if "pool" not in placed.times:
                assert not {"first", "second"} & set(placed.times)


def make_pyramid(end):
    """Return two convolutions of two sizes whose results meet: the small one's is enlarged."""
    nodes = [
        node("Conv", ["x", "w1"], ["c1"], name="small", pads=[1, 1, 1, 1]),
        node("Resize", ["c1", "", "scales"], ["r"], name="resize", mode="nearest",
             coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        node("Conv", ["z", "w2"], ["c2"], name="large", pads=[1, 1, 1, 1]),
        node("Add", ["r", "c2"], ["a"], name="sum"),
        node("Conv", ["a", "w3"], ["c3"], name="last", pads=[1, 1, 1, 1]),
        node(end, ["c3"], ["y"], name="end"),
    ]  # fmt: skip
    constants = {f"w{i}": weight(64, 64, 3, 3, seed=i) for i in (1, 2, 3)}
    constants["scales"] = np.array([1, 1, 2, 2], np.float32)
    shapes = {"x": [1, 64, 20, 20], "z": [1, 64, 40, 40]}
    return build(nodes, shapes, {"y": [1, 64, 40, 40]}, constants)


def test_a_float_resize_behind_integers_runs_on_no_blocks_and_is_transposed_at_its_own_size():
    model = make_pyramid("Erf")
    plan = bitwright.make_plan(model, data=make_samples(model), recipe={"base": "int8"})
    kernels = {name: Cost(call=1.0) for name in KERNELS} | {
        "transpose": Cost(written=0.5),
        "resize_nearest": Cost(call=40.0),
        "resize_nearest_blocked": Cost(call=3.0),
    }
    opened = open_model(model, Recipe()).model
    sites = _Sites(opened, plan.nodes, paired(plan), CostTable(cpu=CPU, kernels=kernels))
    behind = Counter[tuple[tuple[str, ...], ...]]()
    for price in sites.prices():
        behind[price[:2]] += price.time
    large, small = 64 * 40 * 40, 64 * 20 * 20
    assert behind[("small",), ("resize",)] - 1.0 == pytest.approx(40.0 - 3.0)  # 1: the border
    assert behind[("small",), ("sum",)] == pytest.approx(0.5 * (large - small) / 1000)


@pytest.mark.parametrize("seed", range(12))
def test_no_subset_of_nodes_is_faster_by_the_same_prices(chain, seed):
    """All placements, priced by `place` itself as the plan that it is given."""
    model, plan = chain
    rng = np.random.default_rng(seed)
    table = planted(**dict(zip(KERNELS, rng.uniform(1, 60, len(KERNELS)), strict=True)))
    found = place(model, plan.nodes, paired(plan), table, preference=1.0)
    assert found is not None
    free = [name for name, n in plan.nodes.items() if n.quantized and name != "relu"]
    for count in range(len(free) + 1):
        for chosen in itertools.combinations(free, count):
            left = set(chosen) | ({"relu"} if "first" in chosen else set())
            if "pool" not in left and {"first", "second"} & left:
                continue  # it goes with its neighbours
            nodes = leave_float(model, plan, dict.fromkeys(left, "")).nodes
            tried = place(model, nodes, paired(plan), table, preference=1)
            assert tried is not None
            assert found.time <= tried.planned_time + 1e-6 or found.time == found.float_time


@pytest.mark.parametrize("seed", range(4))
def test_parts_take_together_what_their_nodes_take(chain, seed):
    """Where both directions of a border cost the same, whichever parts are in float."""
    model, plan = chain
    times = dict(
        zip(KERNELS, np.random.default_rng(seed).uniform(1, 60, len(KERNELS)), strict=True)
    )
    table = planted(**{name: 7.0 if "quantize" in name else t for name, t in times.items()})
    parts = [{"first"}, {"pool"}, {"second"}, {"gate", "swish"}, {"third"}]
    found = time_parts(model, plan.nodes, paired(plan), table, parts)
    sites = _Sites(model, plan.nodes, paired(plan), table)
    prices = [price for price in sites.prices() if math.isfinite(price.time)]
    assert found is not None
    for places in itertools.product([False, True], repeat=len(parts)):
        chosen = {name for part, taken in zip(parts, places, strict=True) if taken for name in part}
        chosen |= {"relu"} if places[0] else set()
        own = [
            in_integers if taken else in_float
            for in_integers, in_float, taken in zip(
                found.in_integers, found.in_float, places, strict=True
            )
        ]
        between = [time for (a, b), time in found.borders.items() if places[a] != places[b]]
        wanted = sites.always_float() + priced(prices, chosen)
        assert found.fixed + sum(own) + sum(between) == pytest.approx(wanted)


def test_products_of_unknown_sizes_are_not_placed():
    nodes = [node("Conv", ["x", "w"], ["y"], name="conv", pads=[1, 1, 1, 1])]
    model = build(nodes, {"x": None}, {"y": None}, {"w": weight(8, 8, 3, 3)})
    sample = {"x": normal(1, 8, 9, 9)}
    plan = bitwright.make_plan(model, data=[sample], recipe={"base": "int8"})
    prepared = open_model(model, Recipe()).model
    assert place(prepared, plan.nodes, paired(plan), read_costs(CPU), preference=1) is None


# As users ask for it ------------------------------------------------------------------------


def test_a_placed_model_says_why_and_is_closer_to_float(tmp_path):
    model = make_chain(channels=8)
    samples = make_samples(model)
    sized = bitwright.quantize(model, data=samples, recipe="int8")
    placed = bitwright.quantize(model, data=samples, recipe="int8", purpose="speed", cpu=CPU)
    assert sized.plan.recipe.place.cpu is None and "quantized" not in str(sized.plan.notes)
    assert any("placed by the costs of x86-vnni" in note for note in placed.plan.notes)
    left = {n: p for n, p in placed.plan.nodes.items() if p.times is not None}
    assert left and all("µs instead of" in (p.why or "") for p in left.values())
    assert placed.outputs[0].sqnr > sized.outputs[0].sqnr
    again = bitwright.apply_plan(placed.plan, model)
    assert again.plan.nodes == placed.plan.nodes
    assert again.to_proto().graph == placed.to_proto().graph


def test_a_model_that_is_fastest_in_float_stays_so():
    nodes = [
        node("Gemm", ["x", "w1"], ["h"], name="in"),
        node("Relu", ["h"], ["r"], name="relu"),
        node("Gemm", ["r", "w2"], ["y"], name="out"),
    ]
    constants = {"w1": weight(16, 32), "w2": weight(32, 4)}
    model = build(nodes, {"x": [1, 16]}, {"y": [1, 4]}, constants)
    result = bitwright.quantize(
        model, data=make_samples(model), recipe="int8", purpose="balanced", cpu=CPU
    )
    assert not result.quantized and "QuantizeLinear" not in ops(result.model)
    assert all(np.array_equal(a, constants[n]) for n, a in constants_of(result.model).items())


@pytest.mark.parametrize("purpose", ["balanced", "speed"])
def test_the_same_input_gives_the_same_bytes(purpose):
    model = make_chain(channels=16)
    one, other = (
        bitwright.quantize(
            model, data=make_samples(model), recipe="int8", purpose=purpose, cpu=CPU
        ).to_proto()
        for _ in range(2)
    )
    assert one.SerializeToString() == other.SerializeToString()


def test_what_cannot_be_placed_is_refused():
    model, data = make_chain(channels=8), [{"x": normal(1, 8, 14, 14)}]
    with pytest.raises(RecipeError, match="is not for these: it needs static mode"):
        bitwright.quantize(model, data=data, recipe="int8-dynamic", purpose="speed")
    with pytest.raises(RecipeError, match="add purpose='balanced'"):
        bitwright.quantize(model, data=data, recipe="int8", cpu=CPU)
    with pytest.raises(TargetError, match="Did you mean 'x86-vnni'"):
        bitwright.quantize(model, data=data, recipe="int8", purpose="speed", cpu="x86-vni")


def test_costs_of_ones_own_decide(tmp_path):
    model, path = make_chain(channels=16), tmp_path / "mine.json"
    kernels = {name: {"call": 100.0 if name.startswith("q") else 1.0} for name in KERNELS}
    path.write_text(json.dumps({"cpu": CPU, "kernels": kernels}))
    data = make_samples(model)
    result = bitwright.quantize(model, data=data, recipe="int8", purpose="speed", cpu=str(path))
    assert not result.quantized
    assert str(path) not in result.plan.to_json()  # the class alone
