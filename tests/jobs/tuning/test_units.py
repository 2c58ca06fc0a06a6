"""The errors of units: by all samples, or of many those of the worst, and the others near them."""

from dataclasses import replace

import pytest
from support.models import make_cnn, make_samples

import bitwright
from bitwright.jobs.output import Planned, emit_model
from bitwright.jobs.qat import open_for_plan
from bitwright.jobs.tuning import units
from bitwright.jobs.tuning.units import measure_errors, open_unit_variants


@pytest.fixture(scope="module")
def variants():
    model = make_cnn()
    samples = make_samples(model, 4)
    plan = bitwright.make_plan(model, data=samples, recipe="int8-per-channel", effort="low")
    prepared = open_for_plan(model, plan)
    quantized = emit_model(prepared, Planned(plan)).model
    return open_unit_variants(prepared, plan, quantized, samples)


def errors_of(variants):
    lines = []
    found = measure_errors(variants, ("int8", "float"), report=lines.append)
    return found.errors["int8"], lines


def test_of_many_units_only_the_worst_run_on_all_samples(variants, monkeypatch):
    exact, _ = errors_of(variants)
    monkeypatch.setattr(units, "MANY_ERRORS", 3)
    monkeypatch.setattr(units, "MIN_WORST", 2)
    monkeypatch.setattr(units, "WORST_SHARE", 0.01)
    monkeypatch.setattr(units, "ADDITIVE", (0.0, 1e9))
    monkeypatch.setattr(units, "_regained", pytest.fail)
    found, lines = errors_of(variants)
    assert found.keys() == exact.keys()
    same = [name for name in exact if found[name] == pytest.approx(exact[name], rel=1e-6)]
    assert len(same) >= 2
    assert max(exact, key=exact.get) in same
    assert all(error >= 0 for error in found.values())
    assert any("one sample tells the 2 units" in line for line in lines)


def test_what_goes_without_a_unit_is_measured_for_the_worst_of_many(variants, monkeypatch):
    """Errors that do not add up count by half as what goes without them."""
    monkeypatch.setattr(units, "ADDITIVE", (2.0, 1.0))  # none do
    every, _ = errors_of(variants)
    monkeypatch.setattr(units, "MANY_ERRORS", 3)
    monkeypatch.setattr(units, "MIN_WORST", 2)
    monkeypatch.setattr(units, "WORST_SHARE", 0.01)
    some, _ = errors_of(variants)
    same = [name for name in every if some[name] == pytest.approx(every[name], rel=1e-6)]
    assert len(same) == 2
    assert all(error >= 0 for error in some.values())


def test_the_others_are_as_much_larger_than_by_one_sample_as_the_worst_are(variants, monkeypatch):
    by_one, _ = errors_of(replace(variants, samples=variants.samples[:1]))
    by_all, _ = errors_of(variants)
    monkeypatch.setattr(units, "MANY_ERRORS", 3)
    monkeypatch.setattr(units, "MIN_WORST", 2)
    monkeypatch.setattr(units, "WORST_SHARE", 0.01)
    monkeypatch.setattr(units, "ADDITIVE", (0.0, 1e9))
    found, _ = errors_of(variants)
    worst = sorted(by_one, key=by_one.get)[-2:]
    factor = sum(by_all[name] for name in worst) / sum(by_one[name] for name in worst)
    others = [name for name in found if name not in worst]
    assert [found[n] for n in others] == pytest.approx([factor * by_one[n] for n in others])
