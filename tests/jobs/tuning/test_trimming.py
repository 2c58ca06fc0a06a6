"""Ranges are cut where what reads them does not see it, and stay where it does."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import bitwright
from bitwright.jobs.improve.front import Option
from bitwright.jobs.improve.mixtures import UnitTable
from bitwright.jobs.output import Planned, emit_model
from bitwright.jobs.qat import open_for_plan
from bitwright.jobs.tuning.trimming import trim_ranges
from bitwright.jobs.tuning.units import measure_errors, open_unit_variants
from bitwright.run import Session

WIDTH = 16


def far_below_zero():
    """A product whose results are spread on both sides, and then cut off below zero, by a Softplus.

    Values are moved in between: they are one unit, with what reads them.
    """
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(WIDTH, WIDTH, 1, 1)).astype(np.float32)
    weight[:2] *= 40  # the ends of the range
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="first"),
        helper.make_node("Slice", ["a", "start", "end"], ["b"], name="some"),
        helper.make_node("Transpose", ["b"], ["c"], name="turned", perm=[0, 2, 3, 1]),
        helper.make_node("Min", ["c", "limit"], ["d"], name="limited"),
        helper.make_node("Softplus", ["d"], ["e"], name="cut"),
        helper.make_node("MatMul", ["e", "v"], ["y"], name="last"),
    ]
    constants = {
        "w": weight,
        "v": rng.normal(size=(WIDTH, 4)).astype(np.float32),
        "start": np.array([0, 0, 0, 0], np.int64),
        "end": np.array([1, WIDTH, 3, 3], np.int64),
        "limit": np.array(20.0, np.float32),
    }
    graph = helper.make_graph(
        nodes,
        "far_below_zero",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, WIDTH, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 3, 4])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


@pytest.fixture(scope="module")
def planned():
    model = far_below_zero()
    rng = np.random.default_rng(1)
    samples = [{"x": rng.normal(size=(1, WIDTH, 4, 4)).astype(np.float32)} for _ in range(32)]
    plan = bitwright.make_plan(model, data=samples, recipe="int8")
    prepared = open_for_plan(model, plan)
    written = emit_model(prepared, Planned(plan)).model
    variants = open_unit_variants(prepared, plan, written, samples)
    return prepared, plan, samples, variants, measure_errors(variants, ("int8", "float"))


def table_of(found):
    errors = found.errors["int8"]
    return UnitTable(
        units=found.units,
        options=tuple((Option("int8", 1.0, errors[unit.node]),) for unit in found.units),
    )


def test_what_only_moves_values_is_one_unit_with_what_reads_them(planned):
    _, _, _, variants, errors = planned
    nodes = {node: unit.node for unit in errors.units for node in unit.nodes}
    moved = [name for name in ("some", "turned") if name in variants.unit_of]
    assert len(moved) == 2
    assert nodes["some"] == nodes["turned"]
    assert sum(len(unit.nodes) for unit in errors.units) == len(nodes)
    whole = sum(errors.errors["int8"].values())
    assert whole < sum(found.loss for key, found in variants.run("alone").items() if key != "float")


def test_a_range_is_cut_where_its_end_does_not_reach_the_outputs(planned):
    prepared, plan, samples, _, errors = planned
    trimmed = trim_ranges(prepared, plan, table_of(errors), samples[:8])
    changed = [key for key in plan.tensors if trimmed.tensors[key] != plan.tensors[key]]
    assert plan.root("a") in {plan.root(key) for key in changed}
    root = plan.root("a")
    (low, high), (before, _) = trimmed.tensors[root].range, plan.tensors[root].range
    assert before < low < 0 < high
    assert any("ranges cut" in note for note in trimmed.notes)

    def lost(of):
        float_model = Session(prepared.model)
        session = emit_model(prepared, Planned(of)).session
        pairs = [
            [one.run(sample)["y"] for one in (float_model, session)]
            for sample in samples[8:]  # which nothing was chosen by
        ]
        return sum(float(np.square(a - b).sum()) for a, b in pairs)

    assert lost(trimmed) < 0.8 * lost(plan)


def test_ranges_whose_ends_belong_together_stay(planned):
    prepared, _, samples, _, errors = planned
    model = far_below_zero()
    symmetric = bitwright.make_plan(
        model,
        data=samples,
        recipe={"base": "int8", "ranges": {"method": "minmax", "symmetric": True}},
    )
    assert trim_ranges(prepared, symmetric, table_of(errors), samples[:2]) is symmetric


def test_units_that_another_plan_has_the_same_are_not_measured_again(planned, monkeypatch):
    prepared, plan, samples, variants, errors = planned
    lines = []
    again = measure_errors(variants, ("int8", "float"), before=(plan, errors), report=lines.append)
    assert again.errors == errors.errors
    assert "error of 0 units" in lines[0]
    trimmed = trim_ranges(prepared, plan, table_of(errors), samples[:8])
    other = open_unit_variants(
        prepared, trimmed, emit_model(prepared, Planned(trimmed)).model, samples
    )
    known = measure_errors(other, ("int8", "float"), before=(plan, errors), report=lines.append)
    assert known.errors == measure_errors(other, ("int8", "float")).errors
