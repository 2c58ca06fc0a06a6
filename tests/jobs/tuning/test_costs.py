"""Costs of units are what the profile and the files show."""

import pytest
from support.models import make_cnn, make_samples

import bitwright
from bitwright.jobs.output import Planned, emit_model
from bitwright.jobs.qat import open_for_plan
from bitwright.jobs.tuning import costs, latency
from bitwright.jobs.tuning.candidates import StaticCandidates
from bitwright.jobs.tuning.costs import UnitCosts, conversion_rate, measure_bytes, measure_times
from bitwright.jobs.tuning.journal import Journal
from bitwright.jobs.tuning.latency import measure_latency
from bitwright.jobs.tuning.states import Unit, with_states
from bitwright.jobs.tuning.units import UnitErrors, measure_errors


@pytest.fixture(scope="module")
def made():
    model = make_cnn()
    samples = make_samples(model, 2)
    plan = bitwright.make_plan(model, data=samples, recipe="int8-per-channel")
    prepared = open_for_plan(model, plan)
    found = measure_errors(prepared, plan, samples[:1], ("int8", "float"))
    return prepared, plan, emit_model(prepared, Planned(plan)).model, found, samples[0]


def test_the_times_of_all_units_are_most_of_both_models(made, monkeypatch):
    monkeypatch.setattr(costs, "_SECONDS", 0.05)
    prepared, _, quantized, found, sample = made
    times = measure_times(prepared, quantized, found, sample)
    assert set(times.costs["int8"]) == {unit.node for unit in found.units}
    assert all(time > 0 for time in times.costs["float"].values())
    assert sum(times.costs["int8"].values()) > times.fixed > 0
    assert times.float_cost > 0
    assert times.conversion > 0


def test_converting_an_element_takes_nanoseconds():
    assert 1e-9 < conversion_rate() < 1e-3  # in milliseconds


def test_a_latency_is_a_number_of_milliseconds(made, monkeypatch):
    monkeypatch.setattr(latency, "_SECONDS", 0.05)
    prepared, _, quantized, _, sample = made
    assert all(0 < measure_latency(one, sample) < 1000 for one in (prepared.model, quantized))


def test_bytes_predict_the_size_of_the_file(made):
    prepared, plan, quantized, found, _ = made
    sizes = measure_bytes(prepared, plan, quantized, found)
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


def test_a_product_that_only_float_reads_counts_as_float():
    made = StaticCandidates(None, None, "low", Journal(None, {}), (), "speed")
    names = ("conv", "slice", "shared", "left", "right")
    ops = ("Conv", "Slice", "Conv", "Add", "Add")
    units = tuple(Unit(node=n, op=op, nodes=(n,)) for n, op in zip(names, ops, strict=True))
    edges = ((0, 1, 1000), (2, 3, 1000), (2, 4, 1000))
    errors = {"int8": dict.fromkeys(names, 0.1)}
    vars(made)["_errors"] = UnitErrors(units=units, errors=errors, total=0.5, edges=edges)
    times = {"int8": dict.fromkeys(names, 1.0), "float": dict.fromkeys(names, 4.0)}
    vars(made)["_costs"] = UnitCosts(costs=times, fixed=1.0, float_cost=20.0, conversion=1e-3)
    # Where two read it, one of them keeps its quantizer.
    assert [(edge.cost, edge.lost) for edge in made.edges] == [(1.0, 3.0), (1.0, 0.0), (1.0, 0.0)]
