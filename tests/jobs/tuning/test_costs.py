"""Costs of units are what the profile and the files show."""

import pytest
from support.models import make_cnn, make_samples

import bitwright
from bitwright.jobs.output import Planned, emit_model
from bitwright.jobs.qat import open_for_plan
from bitwright.jobs.tuning import costs, latency
from bitwright.jobs.tuning.costs import conversion_rate, measure_bytes, measure_times
from bitwright.jobs.tuning.latency import measure_latency
from bitwright.jobs.tuning.states import with_states
from bitwright.jobs.tuning.units import measure_errors


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
