"""A graph in parts, against the same graph as a whole."""

import numpy as np
import pytest
from support.models import build, make_cnn, make_samples, make_transformer, node, weight

import bitwright
from bitwright.graph import infer_shapes, load_model
from bitwright.run import part_runner
from bitwright.run.part_runner import PartRunner, open_runner
from bitwright.run.tensor_groups import SessionRunner


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(part_runner, "MOST_NODES", 1)
    monkeypatch.setattr(part_runner, "PART_NODES", 2)


def tensors_of(model):
    made = [value.name for each in model.graph for value in each.outputs]
    return [*(value.name for value in model.graph.inputs), *made]


def run_all(runner, sample):
    return {
        name: array
        for group in runner.groups(sample)
        for name, array in runner.run(group, sample).items()
    }


@pytest.mark.parametrize("group_bytes", [1, 1 << 30])
@pytest.mark.parametrize("make", [make_cnn, make_transformer])
def test_parts_give_what_the_whole_gives(small, make, group_bytes):
    source = make()
    model = load_model(source)
    infer_shapes(model)
    names = tensors_of(model)
    whole = SessionRunner(model, names, group_bytes=1 << 30)
    runner = open_runner(model, names, group_bytes=group_bytes)
    assert isinstance(runner, PartRunner)
    for sample in make_samples(source, 2):
        expected, found = run_all(whole, sample), run_all(runner, sample)
        assert found.keys() >= set(names)
        for name in names:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5)


def test_ranges_are_observed_in_parts(small):
    model = make_cnn()
    samples = make_samples(model, 3)
    in_parts = bitwright.make_plan(model, data=samples)
    part_runner.MOST_NODES = 1000
    whole = bitwright.make_plan(model, data=samples)
    assert in_parts.tensors.keys() == whole.tensors.keys()
    for name, entry in whole.tensors.items():
        if entry.role == "activation" and entry.scale is not None:
            assert in_parts.tensors[name].scale == pytest.approx(entry.scale, rel=1e-3)


def test_what_cannot_pass_between_parts_keeps_a_graph_whole(small):
    nodes = [
        node("Cast", ["x"], ["b"], to=16),
        node("Relu", ["b"], ["r"]),
        node("Abs", ["r"], ["a"]),
        node("Cast", ["a"], ["y"], to=1),
    ]
    model = load_model(build(nodes, {"x": [1, 4]}, {"y": [1, 4]}))
    infer_shapes(model)
    assert isinstance(open_runner(model, ["y"], group_bytes=1 << 20), SessionRunner)


def test_a_weight_that_is_asked_for_keeps_a_graph_whole(small):
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])]
    model = load_model(build(nodes, {"x": [1, 4]}, {"y": [1, 4]}, {"w": weight(4, 4)}))
    assert isinstance(open_runner(model, ["w", "y"], group_bytes=1 << 20), SessionRunner)
