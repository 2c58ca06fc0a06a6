"""Costs of units are what the profile and the files show."""

from collections import Counter

import pytest
from support.models import build, make_cnn, make_samples, node, weight

import bitwright
from bitwright.assess.bench.profile import profile_models
from bitwright.decide.fallback import fall_back
from bitwright.jobs.improve.states import with_states
from bitwright.jobs.output import Planned, emit_model
from bitwright.jobs.qat import open_for_plan
from bitwright.jobs.tuning import costs, latency
from bitwright.jobs.tuning.costs import conversion_times, measure_bytes, measure_times
from bitwright.jobs.tuning.latency import LatencyMeter, summarize_turns
from bitwright.jobs.tuning.units import (
    find_units,
    measure_errors,
    open_unit_variants,
)


@pytest.fixture(scope="module")
def made():
    model = make_cnn()
    samples = make_samples(model, 2)
    plan = bitwright.make_plan(model, data=samples, recipe="int8-per-channel")
    prepared = open_for_plan(model, plan)
    quantized = emit_model(prepared, Planned(plan)).model
    variants = open_unit_variants(prepared, plan, quantized, samples[:1])
    found = measure_errors(variants, ("int8", "float"))
    return variants, quantized, found, samples[0]


def test_the_times_of_all_units_are_most_of_both_models(made, monkeypatch):
    monkeypatch.setattr(costs, "_SECONDS", 0.05)
    variants, _, found, sample = made
    times = measure_times(variants, found.units, sample)
    assert set(times.costs["int8"]) == {unit.node for unit in found.units}
    # On some machines the runtime computes the sum with the convolution before it.
    in_float = times.costs["float"]
    assert all(time > 0 for unit, time in in_float.items() if unit != "residual")
    assert in_float["residual"] >= 0
    assert sum(times.costs["int8"].values()) > times.fixed >= 0
    assert times.float_cost > 0
    assert times.conversion > 0


def test_all_units_in_float_cost_what_the_float_model_costs(made, monkeypatch):
    monkeypatch.setattr(costs, "_SECONDS", 0.05)
    monkeypatch.setattr(costs, "_surely_faster", lambda times: times["float"])
    variants, _, found, sample = made
    times = measure_times(variants, found.units, sample)
    whole = times.fixed + sum(times.costs["float"].values())
    assert whole == pytest.approx(times.float_cost)


def test_an_activation_that_stays_float_is_the_cost_of_the_product_before_it():
    """Between floats, the runtime computes it with the product; between integers it is apart."""
    pads = {"pads": [1, 1, 1, 1]}
    model = build(
        [
            node("Conv", ["x", "w"], ["y"], "conv", **pads),
            node("HardSwish", ["y"], ["z"], "swish"),
            node("Conv", ["z", "v"], ["o"], "last", **pads),
        ],
        {"x": (1, 4, 6, 6)},
        {"o": (1, 4, 6, 6)},
        {"w": weight(4, 4, 3, 3), "v": weight(4, 4, 3, 3, seed=1)},
    )
    samples = make_samples(model, 2)
    plan = bitwright.make_plan(model, data=samples, recipe="int8-per-channel")
    prepared = open_for_plan(model, plan)
    quantized = emit_model(prepared, Planned(plan)).model
    variants = open_unit_variants(prepared, plan, quantized, samples[:1])
    nodes = costs._nodes_of(variants.units, find_units(variants).units)
    assert nodes["conv"][0] == {"conv", "swish"}
    assert {"conv", "swish"} <= nodes["conv"][1]
    assert nodes["last"][0] == {"last"}


def test_converting_a_tensor_takes_microseconds_and_an_element_of_it_nanoseconds():
    start, rate = conversion_times()  # in milliseconds
    assert 0 <= start < 1
    assert 1e-9 < rate < 1e-3


def test_a_latency_is_a_number_of_milliseconds_and_times_that(made, monkeypatch):
    monkeypatch.setattr(latency, "_SECONDS", 0.02)
    variants, quantized, _, sample = made
    meter = LatencyMeter(variants.prepared.model, sample)
    beside, found = meter.measure(quantized)
    for timing in (beside, found):
        assert 0 < timing.least <= timing.low <= timing.high < 1000
    assert 0.01 < found.least / beside.least < 100
    alone, same = meter.measure()
    assert alone == same


def test_time_that_others_had_the_cores_for_is_not_the_model_s():
    """Each run took ten times as long as the cores worked for it."""
    runs = [[(0.4, 0.03), (0.3, 0.04)], [(0.2, 0.06), (0.5, 0.07)]]
    assert least(runs, on_cpu=True) == pytest.approx([30.0, 60.0])
    assert least(runs, on_cpu=False) == pytest.approx([300.0, 200.0])
    calm = [[(0.03, 0.06)], [(0.06, 0.08)]]  # on two cores
    assert least(calm, on_cpu=True) == pytest.approx([30.0, 60.0])


def test_the_spread_of_a_time_holds_all_but_the_fastest_and_slowest_tenth():
    [timing] = summarize_turns([[(x / 1000, x / 1000) for x in range(10, 21)]], on_cpu=True)
    assert timing == pytest.approx((10.0, 11.0, 19.0))


def least(runs, **where):
    return [timing.least for timing in summarize_turns(runs, **where)]


def test_bytes_predict_the_size_of_the_file(made):
    variants, quantized, found, _ = made
    prepared, plan = variants.prepared, variants.plan
    sizes = measure_bytes(prepared, plan, quantized, found.units)
    whole = sizes.fixed + sum(sizes.costs["int8"].values())
    assert whole == bitwright.graph.written_size(quantized)
    unit = max(found.units, key=lambda unit: sizes.costs["float"][unit.node])
    for state in ("float", "w4"):
        changed = with_states(prepared, plan, found.units, {unit.node: state})
        again = open_for_plan(prepared.source, changed)
        model = emit_model(again, Planned(changed)).model
        grown = bitwright.graph.written_size(model) - whole
        wanted = sizes.costs[state][unit.node] - sizes.costs["int8"][unit.node]
        assert grown == pytest.approx(wanted, abs=0.15 * abs(wanted) + 600)


def test_a_product_that_a_float_node_reads_keeps_its_integer_kernel():
    """What the costs rely on: between two units, only the tensor is converted."""
    model = build(
        [
            node("Conv", ["x", "w"], ["y"], "product"),
            node("Conv", ["y", "w"], ["a"], "first"),
            node("Conv", ["y", "v"], ["b"], "second"),
        ],
        {"x": (1, 4, 8, 8)},
        {"a": (1, 4, 4, 4), "b": (1, 4, 4, 4)},
        {"w": weight(4, 4, 3, 3), "v": weight(4, 4, 3, 3, seed=1)},
    )
    samples = make_samples(model, 2)
    plan = bitwright.make_plan(model, data=samples, recipe="int8-per-channel")
    prepared = open_for_plan(model, plan)
    for left in (["second"], ["first", "second"], ["product"]):
        chosen = fall_back(prepared.model, plan, left)
        written = emit_model(prepared, Planned(chosen)).model
        [profile] = profile_models([written], [samples], seconds=0.01)
        kernels = Counter(each.op for each in profile.nodes)
        assert kernels["QLinearConv"] == 3 - len(left)
