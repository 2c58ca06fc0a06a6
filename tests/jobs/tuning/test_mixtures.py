"""Costs of units are what the cost table and the files say."""

from collections import Counter

import pytest
from support.models import build, make_cnn, make_samples, node, weight

import bitwright
from bitwright.assess.bench.profile import profile_models
from bitwright.decide.left_float import fall_back
from bitwright.decide.placement.place import place
from bitwright.jobs.improve.states import with_states
from bitwright.jobs.output import Planned, emit_model
from bitwright.jobs.qat import open_for_plan
from bitwright.jobs.tuning import mixtures
from bitwright.jobs.tuning.mixtures import estimate_times, measure_bytes
from bitwright.jobs.tuning.units import measure_errors, open_unit_variants
from bitwright.targets.costs import read_costs


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


def test_units_that_are_all_float_take_what_the_float_model_takes(made):
    """And as planned what the plan takes, as placing has it."""
    variants, _, found, sample = made
    prepared, plan = variants.prepared, variants.plan
    times = estimate_times(prepared, plan, found.units, [sample])
    paired = {entry.tensor for entry in plan.tensors.values() if entry.role == "activation"}
    table = read_costs(plan.recipe.place.cpu)
    whole = place(prepared.model, plan.nodes, paired, table, preference=1.0)
    for state, wanted in (("float", whole.float_time), ("int8", whole.planned_time)):
        assert set(times.costs[state]) == {unit.node for unit in found.units}
        assert times.fixed + sum(times.costs[state].values()) == pytest.approx(wanted)
    assert all(edge.cost > 0 for edge in times.edges) and times.edges


def test_units_of_which_the_sizes_are_not_known_count_the_same(made, monkeypatch):
    monkeypatch.setattr(mixtures, "estimate_parts", lambda *_: None)
    variants, _, found, sample = made
    times = estimate_times(variants.prepared, variants.plan, found.units, [sample])
    assert set(times.costs["int8"].values()) == {1.0} and set(times.costs["float"].values()) == {
        2.0
    }


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
