"""Units take other states: the plan says so, the model runs, and its error is what is measured."""

import msgspec
import numpy as np
import pytest
from support.models import make_cnn, make_samples

import bitwright
from bitwright.graph import iter_values
from bitwright.jobs.improve.states import Unit, with_states
from bitwright.jobs.output import Planned, emit_model
from bitwright.jobs.qat import open_for_plan
from bitwright.jobs.tuning import units as module
from bitwright.jobs.tuning.units import measure_errors, open_unit_variants
from bitwright.numerics.quantize import fake_quantize
from bitwright.numerics.types import INT4, UINT16


@pytest.fixture(scope="module")
def planned():
    model = make_cnn()
    samples = make_samples(model, 4)
    plan = bitwright.make_plan(model, data=samples, recipe="int8-per-channel")
    prepared = open_for_plan(model, plan)
    names = [name for name, node in plan.nodes.items() if node.op in ("Conv", "Gemm")]
    units = [Unit(node=name, op="Conv", nodes=(name,)) for name in names]
    return prepared, plan, units, samples


def written(prepared, plan):
    again = open_for_plan(prepared.source, plan)
    return emit_model(again, Planned(msgspec.structs.replace(plan, fingerprint=again.fingerprint)))


def variants_for(prepared, plan, samples):
    return open_unit_variants(prepared, plan, written(prepared, plan).model, samples)


def test_four_bit_weights_are_stored_in_four_bits_over_the_best_of_ranges(planned):
    prepared, plan, units, _ = planned
    changed = with_states(prepared, plan, units, {units[0].node: "w4"})
    key = changed.nodes[units[0].node].inputs[1]
    entry = changed.tensors[key]
    assert entry.qtype == INT4
    weight = dict(iter_values(prepared.model))[entry.tensor].const_value.numpy()

    def lost(scale):
        zeros = np.zeros(np.shape(scale), np.int64)
        return np.square(weight - fake_quantize(weight, scale, zeros, INT4, axis=entry.axis)).sum()

    whole = np.asarray(plan.tensors[key].scale) * 127 / 7
    assert lost(np.asarray(entry.scale)) <= lost(whole)
    model = written(prepared, changed).model
    assert [v for v in model.graph.initializers.values() if v.dtype.name == "INT4"]
    assert written(prepared, changed).session is not None


def test_wide_activations_and_float_are_in_the_plan(planned):
    prepared, plan, units, _ = planned
    one, other = units[0].node, units[-1].node
    changed = with_states(prepared, plan, units, {one: "a16", other: "float"})
    read = changed.nodes[one].inputs[0]
    assert changed.tensors[changed.root(read)].qtype == UINT16
    assert changed.nodes[other].action == "float"
    assert written(prepared, changed).session is not None


def test_no_state_is_the_plan_itself(planned):
    prepared, plan, units, _ = planned
    assert with_states(prepared, plan, units, {}) == plan


def test_errors_of_units_add_up_and_fall_with_bits(planned):
    prepared, plan, _, samples = planned
    variants = variants_for(prepared, plan, samples)
    found = measure_errors(variants, ("w4", "int8", "a16", "float"))
    assert 0.3 < variants.total().loss / sum(found.errors["int8"].values()) < 3
    for unit in found.units:
        errors = [found.errors[state][unit.node] for state in ("w4", "int8", "a16")]
        assert errors == sorted(errors, reverse=True)


def test_a_unit_has_all_nodes_that_the_runtime_computes_as_one(planned):
    prepared, plan, _, samples = planned
    found = measure_errors(variants_for(prepared, plan, samples[:1]), ("int8", "float"))
    nodes = [node for unit in found.units for node in unit.nodes]
    assert len(nodes) == len(set(nodes))
    assert all(plan.nodes[node].action == "quantize" for node in nodes)


def test_where_errors_do_not_add_up_what_goes_without_a_unit_counts(planned, monkeypatch):
    prepared, plan, _, samples = planned
    plain = measure_errors(variants_for(prepared, plan, samples[:1]), ("int8", "float"))
    monkeypatch.setattr(module, "ADDITIVE", (2.0, 1.0))  # never
    other = measure_errors(variants_for(prepared, plan, samples[:1]), ("int8", "float"))
    assert other.errors["int8"] != plain.errors["int8"]
